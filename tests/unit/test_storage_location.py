"""Where a checkpoint is, and stores whose puts lose their reply or whose names are not durable yet."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from sparkonce.decision_log import DecisionLog, check_whole, record_name
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import Landed, Taken, prove
from sparkonce.storage.hdfs import RenamingFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.location import checked_location, local_folder


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("/data/checkpoint", "/data/checkpoint"),
        ("file:/data/checkpoint", "/data/checkpoint"),
        ("file:///data/checkpoint", "/data/checkpoint"),
        ("file:///data/a%20b", "/data/a%20b"),
        ("file:///data/a b?c#d", "/data/a b?c#d"),
        ("file://localhost/data/checkpoint", "/data/checkpoint"),
        ("/data/a b", "/data/a b"),
        ("/data/100%25", "/data/100%25"),
    ],
)
def test_local_places(given, folder):
    assert checked_location(given) == given
    assert local_folder(given) == Path(folder)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("s3://bucket/checkpoint", "as s3a://"),
        ("wasbs://c@a.net/c", "as abfss://"),
        ("dbfs:/c", "/dbfs/… is the same folder"),
        ("ftp://host/c", "Give a path, or a URL with one of file, hdfs"),
    ],
)
def test_places_that_may_not_put_a_file_once_are_refused(given, advice):
    with pytest.raises(
        ConfigurationError, match=f"checkpoint='{given}': .* is not known to be able to put a file"
    ) as caught:
        checked_location(given)
    assert advice in caught.value.next_step


@pytest.mark.parametrize("given", [Path("s3a://bucket/c"), "s3a:///bucket/c", "abfss:/b@a.net/c", Path("gs://b/c")])
def test_a_url_whose_bucket_is_lost_is_refused(given):
    with pytest.raises(ConfigurationError, match="names no bucket: two slashes") as caught:
        checked_location(given)
    assert f"'{str(given).partition(':')[0]}://bucket/" in caught.value.next_step


def test_a_place_that_is_no_url_is_refused():
    with pytest.raises(ConfigurationError, match="is not a URL: Invalid IPv6"):
        checked_location("file://[x/checkpoint")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "names no folder"),
        ("rows", "another folder would not find the rows"),
        ("s3://bucket/rows", "a sink whose rows wait there needs that"),
        ("file://[x/rows", "is not a URL"),
    ],
)
def test_a_folder_of_rows_is_called_by_its_own_setting(given, told):
    with pytest.raises(ConfigurationError, match=f"{re.escape(repr(given))}.* {told}") as caught:
        checked_location(given, "folder")
    assert str(caught.value).startswith("folder=")


def test_a_rename_whose_answer_is_lost_has_landed_if_its_temporary_file_is_gone(tmp_path, monkeypatch):
    class LosesAnswers(LocalFiles, RenamingFiles):
        """Loses the reply of each rename. If `does` is False, the rename is not executed either."""

        does = True

        def _write(self, path: str, pieces: Iterable[bytes]) -> None:
            (self.folder / path).write_bytes(b"".join(pieces))

        def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
            if self.does:
                (self.folder / source).rename(self.folder / target)
            raise OSError(errno.ETIMEDOUT, "no answer")

        def _delete(self, path: str) -> bool:
            there = (self.folder / path).exists()
            self.delete([path])
            return there

        def _read(self, path: str) -> bytes | None:
            return self.read(path)

        def _exists(self, path: str) -> bool:
            return self.exists(path)

        def _sync(self, folder: str) -> None:
            self.sync(folder)

    monkeypatch.setattr("sparkonce.storage.hdfs.TRIES_S", -1.0)
    files = LosesAnswers(tmp_path)
    assert files._put("decision", b"mine") == Taken(standing=b"mine")

    files.does = False
    with pytest.raises(OSError, match="no answer"):
        files._put("another", b"mine")
    assert [one.name for one in tmp_path.iterdir()] == ["decision"], "what was refused cannot be carried out later"


def test_what_a_run_has_read_from_the_log_survives_a_power_cut(tmp_path):
    class SharedDisk(LocalFiles):
        """A network disk. Names created by another client become durable on this one when their folder is synced."""

        def __init__(self, folder: Path, synced: set[str] | None = None) -> None:
            super().__init__(folder)
            self.synced = set() if synced is None else synced

        def sync(self, folder: str) -> None:
            self.synced.update(str(one) for one in (self.folder / folder).iterdir())

        def inside(self, folder: str) -> SharedDisk:
            return SharedDisk(self.folder / folder, self.synced)

        def lose_power(self) -> None:
            for one in self.folder.rglob("*"):
                if one.is_file() and str(one) not in self.synced:
                    one.unlink()

    another = DecisionLog(LocalFiles(tmp_path))
    another.put_bytes(0, b"claim")
    another.put_bytes(1, b"commit")
    another.raise_floor_bytes(1, b"floor")

    disk = SharedDisk(tmp_path)
    log = DecisionLog(disk)
    assert (log.read_bytes(0), log.floor_bytes()) == ([b"claim", b"commit"], b"floor")
    disk.lose_power()
    assert (another.read_bytes(0), another.floor_bytes()) == ([b"claim", b"commit"], b"floor")


def test_a_store_whose_puts_are_sent_twice_proves_that_one_of_two_lands(tmp_path):
    class SendsTwice(LocalFiles):
        """A client that sends each put twice. The second put finds its own bytes."""

        endpoint = "http://store.example"

        def put(self, path: str, data: bytes) -> Landed | Taken:
            super().put(path, data)
            return super().put(path, data)

    files = SendsTwice(tmp_path)
    prove(files)
    assert files.names("sparkonce") == ["proved"]


def test_records_that_another_driver_tidies_meanwhile_are_not_missing(tmp_path):
    class TidiedMeanwhile(LocalFiles):
        """After the listing, another driver raises the floor and deletes the records below it."""

        def names(self, folder: str) -> Sequence[str]:
            names = super().names(folder)
            first = f"records/{record_name(0)}"
            if folder == "records" and self.read(first) is not None:
                self.put(f"floors/{record_name(1)}", b"")
                self.delete([first])
                return [name for name in names if name != record_name(0)]
            return names

        def inside(self, folder: str) -> LocalFiles:
            return type(self)(self.folder / folder)

    files = TidiedMeanwhile(tmp_path)
    for position in range(3):
        files.put(f"sparkonce/records/{record_name(position)}", b"")
    check_whole(files)

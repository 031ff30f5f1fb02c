"""Puts that lose their reply, names that are not durable yet, and other drivers that are active at the same time."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from sparkonce.log import DecisionLog, check_whole, record_name
from sparkonce.storage.files import Landed, Taken, prove
from sparkonce.storage.hdfs import RenamingFiles
from sparkonce.storage.local import LocalFiles


def test_a_rename_whose_answer_is_lost_has_landed_if_its_temporary_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_a_run_has_read_from_the_log_survives_a_power_cut(tmp_path: Path) -> None:
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


def test_a_store_whose_puts_are_sent_twice_proves_that_one_of_two_lands(tmp_path: Path) -> None:
    class SendsTwice(LocalFiles):
        """A client that sends each put twice. The second put finds its own bytes."""

        endpoint = "http://store.example"

        def put(self, path: str, data: bytes) -> Landed | Taken:
            super().put(path, data)
            return super().put(path, data)

    files = SendsTwice(tmp_path)
    prove(files)
    assert files.names("sparkonce") == ["proved"]


def test_records_that_another_driver_tidies_meanwhile_are_not_missing(tmp_path: Path) -> None:
    class TidiedMeanwhile(LocalFiles):
        """After the listing, another driver raises the floor and deletes the records below it."""

        def names(self, folder: str) -> Sequence[str]:
            names = super().names(folder)
            first = f"sparkonce/records/{record_name(0)}"
            if folder.endswith("records") and self.read(first) is not None:
                self.put(f"sparkonce/floors/{record_name(1)}", b"")
                self.delete([first])
                return [name for name in names if name != record_name(0)]
            return names

    files = TidiedMeanwhile(tmp_path)
    for position in range(3):
        files.put(f"sparkonce/records/{record_name(position)}", b"")
    check_whole(files)

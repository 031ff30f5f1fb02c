"""Features that only a local disk has: links, fsync, and errors of both.

The rest is in `conformance/checkpoint_suite.py`.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkonce import decision_log as log_module
from sparkonce.decision_log import DecisionLog, Landed
from sparkonce.errors import CorruptRecordError
from sparkonce.protocol import codec
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit, Floor, LogView
from sparkonce.storage import local as local_files
from sparkonce.storage.files import PutUnknownError
from sparkonce.storage.local import LocalFiles, make_folder


@pytest.fixture
def log(tmp_path) -> DecisionLog:
    return DecisionLog(LocalFiles(tmp_path))


def record_file(tmp_path: Path, position: int) -> Path:
    return tmp_path / "sparkonce" / "records" / f"{position:020d}"


def temporaries(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "sparkonce").rglob(".*")]


def claim(nonce: str = "00000000") -> Claim:
    return Claim(nonce=nonce, run="run", query="query", location="here")


def commit(batch: int, position: int = 0) -> Commit:
    return Commit(token=Token(position, "00000000"), query="query", batch=batch, offsets=("1",), handles=())


def test_files_are_not_for_everybody(log, tmp_path):
    log.put_bytes(0, b"record")
    log.raise_floor_bytes(1, b"floor")
    files = [path for path in (tmp_path / "sparkonce").rglob("*") if path.is_file()]
    assert len(files) == 2
    assert [stat.S_IMODE(path.stat().st_mode) & 0o007 for path in files] == [0, 0]


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """Records the system calls that matter for durability, in order: fsync of a file or folder, link, read."""
    found: list[str] = []
    fsync, link, read_bytes = os.fsync, os.link, Path.read_bytes

    def spy_fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        found.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}" if is_folder else "fsync file")
        fsync(descriptor)

    def spy_link(source: Path, target: Path) -> None:
        found.append(f"link {int(Path(target).name)} with {Path(source).stat().st_size} bytes")
        link(source, target)

    def spy_read(path: Path) -> bytes:
        found.append(f"read {int(path.name)}")
        return read_bytes(path)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "link", spy_link)
    monkeypatch.setattr(Path, "read_bytes", spy_read)
    return found


def test_a_record_is_durable_before_it_has_its_name_and_its_name_before_the_answer(log, calls):
    log.put_bytes(7, b"record")
    assert calls == ["fsync file", "link 7 with 6 bytes", "fsync records"]


def test_spark_s_files_are_synced_ahead_of_a_decision_unless_tasks_write_state(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(local_files, "sync_file_system", synced.append)
    files = LocalFiles(tmp_path)
    log = DecisionLog(files, decides=True)
    log.put(0, claim())
    assert synced == []
    log.put(1, commit(0))
    log.sync_ahead()
    pickle.dumps(files)  # like a sink that keeps its rows next to the log
    log.put(2, commit(1))
    assert synced == [tmp_path] * 2, "once for each decision"
    (tmp_path / "state").mkdir()
    log.sync_ahead()
    log.put(3, commit(2))
    assert synced == [tmp_path] * 4, "once more when the tasks have ended"


def test_nothing_is_decided_after_a_sync_that_failed_even_if_a_later_one_did_not(tmp_path, monkeypatch):
    log = DecisionLog(LocalFiles(tmp_path), decides=True)
    log.put(0, claim())
    with monkeypatch.context() as once:  # the kernel reports a failed write once
        once.setattr(local_files, "sync_file_system", failing(errno.EIO, "the checkpoint"))
        log.sync_ahead()
    for _ in range(2):
        log.sync_ahead()
    with pytest.raises(OSError, match="the checkpoint"):
        log.put(1, commit(0))
    assert not record_file(tmp_path, 1).exists()


def test_whoever_comes_second_makes_the_first_durable(log, calls):
    log.put_bytes(7, b"first")
    calls.clear()
    log.put_bytes(7, b"second")
    assert calls == ["fsync file", "link 7 with 6 bytes", "read 7", "fsync records"]


def test_a_reader_makes_a_record_durable_before_anybody_acts_on_it(log, calls):
    log.put_bytes(7, b"record")
    log.put_bytes(8, b"record")
    log.raise_floor_bytes(3, b"floor")
    calls.clear()
    log.read_bytes(7)
    log.floor_bytes()
    assert calls == ["read 7", "read 8", "read 9", "fsync records", "read 3", "fsync floors"]
    calls.clear()
    log.floor_bytes()
    assert calls == [], "it is the one that was made durable before"


def failing(error: int, name: str) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error), name)

    return fail


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        *((code, OSError, "link") for code in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)),
        *((code, OSError, "hard links") for code in (errno.ENOSYS, errno.EPERM, errno.EXDEV, errno.ENOTSUP)),
        *((code, PutUnknownError, "link") for code in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)),
    ],
)
def test_a_link_that_fails_was_surely_not_made_or_may_have_been(log, tmp_path, monkeypatch, code, kind, says):
    monkeypatch.setattr(os, "link", failing(code, "link"))
    with pytest.raises(kind, match=says) as caught:
        log.put_bytes(0, b"record")
    assert getattr(caught.value, "errno", None) == (code if kind is OSError else None)
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("broken", [(Path, "read_bytes"), (local_files, "sync_folder")], ids=["read", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_a_record_that_stands_and_cannot_be_read_is_in_doubt(log, monkeypatch, code, broken):
    """It may be from this same put, since NFS retries a link whose reply was lost, and then reports that it exists."""
    log.put_bytes(0, b"record")
    monkeypatch.setattr(*broken, failing(code, "it"))
    with pytest.raises(PutUnknownError, match="already exists"):
        log.put_bytes(0, b"record")


def test_a_record_that_does_not_fit_on_the_disk_leaves_nothing(log, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC, "fsync"))
    with pytest.raises(OSError, match="fsync"):
        log.put_bytes(0, b"record")
    assert not record_file(tmp_path, 0).exists()
    assert temporaries(tmp_path) == []


def test_a_name_that_may_not_be_durable_is_in_doubt(log, tmp_path, monkeypatch):
    fsync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(PutUnknownError, match="fsync of"):
        log.put_bytes(0, b"record")
    assert record_file(tmp_path, 0).exists()


def test_a_temporary_file_that_stays_does_not_call_a_landed_record_in_doubt(log, monkeypatch):
    """An error here used to count as a definite failure of the put, and records in the log were undone."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing(errno.EIO, "unlink"))
        assert log.put_bytes(0, b"record") == Landed()
    assert log.read_bytes(0) == [b"record"]


def test_no_permission(log, tmp_path):
    records = tmp_path / "sparkonce" / "records"
    for folder in (one for one in (tmp_path, *tmp_path.parents) if "pytest" in str(one)):  # pytest's own are private
        folder.chmod(0o755)
    was, nobody = os.geteuid(), 65534
    records.chmod(0o555)
    if was == 0:  # root may do everything
        os.seteuid(nobody)
    try:
        with pytest.raises(PermissionError):
            log.put_bytes(0, b"record")
    finally:
        os.seteuid(was)
        records.chmod(0o700)
    assert log.read_bytes(0) == []


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "sparkonce").write_text("in the way")
    with pytest.raises(OSError, match="sparkonce"):
        DecisionLog(LocalFiles(tmp_path))


def test_a_floor_is_taken_apart_once(tmp_path, monkeypatch):
    """The floor is read after every put, and contains the facts of a hundred runs."""
    asked, decode = [], codec.decode_floor

    def noted(data: bytes) -> Floor:
        asked.append(data)
        return decode(data)

    monkeypatch.setattr(codec, "decode_floor", noted)
    log = DecisionLog(LocalFiles(tmp_path))
    for position in (3, 5):
        log.raise_floor(Floor(position))
        assert [log.floor() for _ in range(10)] == [Floor(position)] * 10
    assert len(asked) == 2


def test_clean_up_deletes_what_dead_writers_left(log, tmp_path):
    records = tmp_path / "sparkonce" / "records"
    dead, living = records / ".dead.tmp", records / ".living.tmp"
    for path in (dead, living):
        path.write_text("half")
    long_ago = time.time() - 7200
    os.utime(dead, (long_ago, long_ago))
    log.delete_below(0)
    assert temporaries(tmp_path) == [".living.tmp"]


def test_a_reader_that_races_with_clean_up_starts_again(log, tmp_path, monkeypatch):
    """Cleanup deletes position 2 just before it is read, which must not look like the end of the log."""
    log.put(0, claim())
    for batch in range(6):
        log.put(batch + 1, commit(batch))
    floor = log.read(LogView()).raised(2)
    read_bytes = Path.read_bytes

    def clean_up_first(path: Path) -> bytes:
        if path.parent.name == "records" and int(path.name) == 2:
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            log.raise_floor(floor)
            log.delete_below(floor.position)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", clean_up_first)
    view = DecisionLog(LocalFiles(tmp_path)).read(LogView())
    assert Path.read_bytes is read_bytes
    assert (view.end, [decision.batch for decision in view.decisions]) == (7, [4, 5])


def test_a_floor_that_is_deleted_while_it_is_read(log, monkeypatch):
    log.raise_floor_bytes(1, b"1")
    read_bytes = Path.read_bytes

    def raise_it_first(path: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        log.raise_floor_bytes(2, b"2")
        log.delete_below(2)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", raise_it_first)
    assert log.floor_bytes() == b"2"


def test_a_reader_that_never_catches_up_gives_up(log, monkeypatch):
    log.put(0, claim())
    floors = iter(range(1, 10 * log_module.MOST_READS))
    monkeypatch.setattr(DecisionLog, "floor", lambda self: Floor(position=next(floors)))
    with pytest.raises(CorruptRecordError, match="rose 100 times"):
        log.read(LogView())


def test_the_names_of_all_folders_that_are_made_are_durable(tmp_path, monkeypatch):
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))  # noqa: PTH115

    monkeypatch.setattr(os, "fsync", noted)
    make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(synced) == [".", "a", "a/b", "a/b/c"]
    synced.clear()
    make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(synced) == ["a/b", "a/b/c"], "who made it may have been killed before it was durable"

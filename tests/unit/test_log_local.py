from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkonce import log as log_module
from sparkonce.errors import CorruptRecordError
from sparkonce.log import DecisionLog, FilesLogStore, Landed, Taken
from sparkonce.protocol import codec
from sparkonce.protocol.codec import encode_floor, encode_record
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit, Floor, LogView, LogViolation
from sparkonce.storage import local as local_files
from sparkonce.storage.files import PutUnknownError
from sparkonce.storage.local import LocalFiles


@pytest.fixture
def store(tmp_path: Path) -> FilesLogStore:
    return FilesLogStore(LocalFiles(tmp_path))


def record_file(tmp_path: Path, position: int) -> Path:
    return tmp_path / "sparkonce" / "records" / f"{position:020d}"


def temporaries(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "sparkonce").rglob(".*")]


def claim(nonce: str = "00000000") -> Claim:
    return Claim(nonce=nonce, run="run", query="query", location="here")


def commit(batch: int, position: int = 0) -> Commit:
    return Commit(token=Token(position, "00000000"), query="query", batch=batch, offsets=("1",), handles=())


def filled(store: FilesLogStore, batches: int) -> DecisionLog:
    """A claim at position 0, and batch N decided at position N + 1."""
    log = DecisionLog(store)
    assert log.put(0, claim()) is None
    for batch in range(batches):
        assert log.put(batch + 1, commit(batch)) is None
    return log


def test_what_is_put_is_got(store: FilesLogStore, tmp_path: Path) -> None:
    assert store.put(0, b"zero") == Landed()
    assert store.put(1, b"one") == Landed()
    assert [store.read(position) for position in range(3)] == [[b"zero", b"one"], [b"one"], []]
    assert FilesLogStore(LocalFiles(tmp_path)).read(0) == [b"zero", b"one"]


def test_a_position_is_taken_once(store: FilesLogStore) -> None:
    store.put(0, b"first")
    assert store.put(0, b"second") == Taken(standing=b"first")
    assert store.put(0, b"first") == Taken(standing=b"first")
    assert store.read(0) == [b"first"]


def test_threads_race_for_a_position(store: FilesLogStore) -> None:
    runners = 8
    for position in range(20):
        ready = threading.Barrier(runners)
        answers: dict[int, Landed | Taken] = {}

        def race(number: int, position: int = position, ready: threading.Barrier = ready) -> None:
            ready.wait()
            answers[number] = store.put(position, str(number).encode())  # noqa: B023 - joined below

        threads = [threading.Thread(target=race, args=(number,)) for number in range(runners)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [number for number, answer in answers.items() if answer == Landed()]
        losers = [answer for number, answer in answers.items() if number != winner]
        assert losers == [Taken(standing=str(winner).encode())] * (runners - 1)


RACER = """
import sys
from pathlib import Path
from sparkonce.log import FilesLogStore
from sparkonce.storage.files import Landed
from sparkonce.storage.local import LocalFiles
store = FilesLogStore(LocalFiles(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
print([position for position in range(100) if store.put(position, sys.argv[2].encode()) == Landed()])
"""


def test_processes_race_for_positions(store: FilesLogStore, tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = {name: json.loads(racer.communicate(timeout=60)[0]) for name, racer in zip("abc", racers, strict=True)}
    assert sorted(position for positions in won.values() for position in positions) == list(range(100))
    stands = store.read(0)
    assert all(stands[position] == name.encode() for name, positions in won.items() for position in positions)
    assert temporaries(tmp_path) == []


def test_files_are_not_for_everybody(store: FilesLogStore, tmp_path: Path) -> None:
    store.put(0, b"record")
    store.raise_floor(1, b"floor")
    files = [path for path in (tmp_path / "sparkonce").rglob("*") if path.is_file()]
    assert len(files) == 2
    assert [stat.S_IMODE(path.stat().st_mode) & 0o007 for path in files] == [0, 0]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls that durability depends on, in order: fsync of a file or folder, link, read."""
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


def test_a_record_is_durable_before_it_has_its_name_and_its_name_before_the_answer(
    store: FilesLogStore, calls: list[str]
) -> None:
    store.put(7, b"record")
    assert calls == ["fsync file", "link 7 with 6 bytes", "fsync records"]


def test_a_floor_is_as_durable_as_a_record(store: FilesLogStore, calls: list[str]) -> None:
    store.raise_floor(7, b"floor")
    assert calls == ["fsync file", "link 7 with 5 bytes", "fsync floors"]


def test_whoever_comes_second_makes_the_first_durable(store: FilesLogStore, calls: list[str]) -> None:
    store.put(7, b"first")
    calls.clear()
    store.put(7, b"second")
    assert calls == ["fsync file", "link 7 with 6 bytes", "read 7", "fsync records"]


def test_a_reader_makes_a_record_durable_before_anybody_acts_on_it(store: FilesLogStore, calls: list[str]) -> None:
    store.put(7, b"record")
    store.put(8, b"record")
    store.raise_floor(3, b"floor")
    calls.clear()
    store.read(7)
    store.floor()
    assert calls == ["read 7", "read 8", "read 9", "fsync records", "read 3", "fsync floors"]
    calls.clear()
    store.floor()
    assert calls == [], "it is the one that was made durable before"


def test_new_folders_are_durable(tmp_path: Path, calls: list[str]) -> None:
    checkpoint = tmp_path / "checkpoint"
    FilesLogStore(LocalFiles(checkpoint))
    folders = ("records", "floors", "sparkonce", "checkpoint", tmp_path.name)
    assert set(calls) == {f"fsync {folder}" for folder in folders}
    assert calls[-2:] == ["fsync floors", "fsync sparkonce"], "after the last was made"


def failing(error: int, name: str) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error), name)

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_link_that_was_surely_not_made(
    store: FilesLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code, "link"))
    with pytest.raises(OSError, match="link") as caught:
        store.put(0, b"record")
    assert caught.value.errno == code
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_link_that_may_have_been_made(store: FilesLogStore, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "link", failing(code, "link"))
    with pytest.raises(PutUnknownError, match="link"):
        store.put(0, b"record")


@pytest.mark.parametrize("broken", [(Path, "read_bytes"), (local_files, "sync_folder")], ids=["read", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_a_record_that_stands_and_cannot_be_read_is_in_doubt(
    store: FilesLogStore, monkeypatch: pytest.MonkeyPatch, code: int, broken: tuple[object, str]
) -> None:
    """It may be this very put's: NFS sends a link again whose reply was lost, and is told that the name is taken."""
    store.put(0, b"record")
    monkeypatch.setattr(*broken, failing(code, "it"))
    with pytest.raises(PutUnknownError, match="stands already"):
        store.put(0, b"record")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EXDEV, errno.ENOTSUP])
def test_a_disk_without_links_is_said_to_be_one(
    store: FilesLogStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code, "link"))
    with pytest.raises(OSError, match="hard links") as caught:
        store.put(0, b"record")
    assert caught.value.errno == code


def test_a_record_that_does_not_fit_on_the_disk_leaves_nothing(
    store: FilesLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC, "fsync"))
    with pytest.raises(OSError, match="fsync"):
        store.put(0, b"record")
    assert not record_file(tmp_path, 0).exists()
    assert temporaries(tmp_path) == []


def test_a_name_that_may_not_be_durable_is_in_doubt(
    store: FilesLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(PutUnknownError, match="fsync of"):
        store.put(0, b"record")
    assert record_file(tmp_path, 0).exists()


def test_a_temporary_file_that_stays_does_not_call_a_landed_record_in_doubt(
    store: FilesLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error here was taken for a put that surely failed, and what stands in the log was undone."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing(errno.EIO, "unlink"))
        assert store.put(0, b"record") == Landed()
    assert store.read(0) == [b"record"]


def test_no_permission(store: FilesLogStore, tmp_path: Path) -> None:
    records = tmp_path / "sparkonce" / "records"
    for folder in (one for one in (tmp_path, *tmp_path.parents) if "pytest" in str(one)):  # pytest's own are private
        folder.chmod(0o755)
    was, nobody = os.geteuid(), 65534
    records.chmod(0o555)
    if was == 0:  # root may do everything
        os.seteuid(nobody)
    try:
        with pytest.raises(PermissionError):
            store.put(0, b"record")
    finally:
        os.seteuid(was)
        records.chmod(0o700)
    assert store.read(0) == []


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "sparkonce").write_text("in the way")
    with pytest.raises(OSError, match="sparkonce"):
        FilesLogStore(LocalFiles(tmp_path))


def test_floors_only_rise(store: FilesLogStore) -> None:
    assert store.floor() is None
    assert DecisionLog(store).floor() == Floor()

    for position in (5, 9, 7):
        store.raise_floor(position, str(position).encode())
    assert store.floor() == b"9"
    store.raise_floor(9, b"again")
    assert store.floor() == b"9"

    store.raise_floor(9, b"9")
    store.delete_below(9)
    store.raise_floor(5, b"5")
    assert store.floor() == b"9"


def test_a_floor_is_taken_apart_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for after each put, and holds what a hundred runs knew."""
    asked, decode = [], codec.decode_floor

    def noted(data: bytes) -> Floor:
        asked.append(data)
        return decode(data)

    monkeypatch.setattr(codec, "decode_floor", noted)
    log = DecisionLog(FilesLogStore(LocalFiles(tmp_path)))
    for position in (3, 5):
        log.raise_floor(Floor(position))
        assert [log.floor() for _ in range(10)] == [Floor(position)] * 10
    assert len(asked) == 2


def test_clean_up_deletes_below_and_nothing_else(store: FilesLogStore, tmp_path: Path) -> None:
    for position in range(6):
        store.put(position, b"record")
    for position in (2, 4):
        store.raise_floor(position, str(position).encode())
    store.delete_below(4)
    assert [position for position in range(7) if store.read(position)] == [4, 5]
    assert [path.name for path in (tmp_path / "sparkonce" / "floors").iterdir()] == [f"{4:020d}"]
    store.delete_below(4)
    assert store.floor() == b"4"

    foreign = tmp_path / "sparkonce" / "records" / "README"
    foreign.write_text("not ours")
    store.put(0, b"record")
    store.delete_below(1)
    assert foreign.exists()

    records = tmp_path / "sparkonce" / "records"
    dead, living = records / ".dead.tmp", records / ".living.tmp"
    for path in (dead, living):
        path.write_text("half")
    long_ago = time.time() - 7200
    os.utime(dead, (long_ago, long_ago))
    store.delete_below(0)
    assert temporaries(tmp_path) == [".living.tmp"]


def test_reading_goes_on_from_a_view(store: FilesLogStore) -> None:
    log = filled(store, 2)
    view = log.read(LogView())
    assert (view.end, [decision.batch for decision in view.decisions]) == (3, [0, 1])
    log.put(3, commit(2))
    assert [decision.batch for decision in log.read(view).decisions] == [0, 1, 2]


def test_a_put_says_what_stands_there(store: FilesLogStore) -> None:
    log = filled(store, 1)
    assert log.put(1, commit(7)) == commit(0)
    assert log.put(2, commit(1)) is None


def test_reading_begins_at_the_floor(store: FilesLogStore) -> None:
    log = filled(store, 5)
    log.raise_floor(log.read(LogView()).raised(2))
    log.store.delete_below(4)
    view = DecisionLog(store).read(LogView())
    assert [decision.batch for decision in view.decisions] == [3, 4]
    assert view.newest_run is not None
    assert view.newest_run.token == Token(0, "00000000")


def test_a_view_forgets_what_fell_below_the_floor(store: FilesLogStore) -> None:
    log = filled(store, 5)
    view = log.read(LogView())
    log.raise_floor(view.raised(2))
    assert [decision.batch for decision in log.read(view).decisions] == [3, 4]


def test_a_reader_that_races_with_clean_up_starts_again(store: FilesLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean-up frees position 2 while it is about to be read: that is not the log's end."""
    log = filled(store, 6)
    floor = log.read(LogView()).raised(2)
    read_bytes = Path.read_bytes

    def clean_up_first(path: Path) -> bytes:
        if path.parent.name == "records" and int(path.name) == 2:
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            log.raise_floor(floor)
            store.delete_below(floor.position)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", clean_up_first)
    view = DecisionLog(store).read(LogView())
    assert Path.read_bytes is read_bytes
    assert (view.end, [decision.batch for decision in view.decisions]) == (7, [4, 5])


def test_a_floor_that_is_deleted_while_it_is_read(store: FilesLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.raise_floor(1, b"1")
    read_bytes = Path.read_bytes

    def raise_it_first(path: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        store.raise_floor(2, b"2")
        store.delete_below(2)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", raise_it_first)
    assert store.floor() == b"2"


def test_a_reader_that_never_catches_up_gives_up(store: FilesLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(store, 0)
    floors = iter(range(1, 10 * log_module.MOST_READS))
    monkeypatch.setattr(DecisionLog, "floor", lambda self: Floor(position=next(floors)))
    with pytest.raises(CorruptRecordError, match="rose 100 times"):
        log.read(LogView())


def test_a_gap_ends_the_log(store: FilesLogStore) -> None:
    log = filled(store, 1)
    store.put(5, encode_record(commit(4), at_ms=0))
    assert log.read(LogView()).end == 2


def test_a_record_that_no_correct_run_can_have_written(store: FilesLogStore) -> None:
    log = filled(store, 2)
    log.put(3, commit(0))
    with pytest.raises(LogViolation, match="decides batch 0 after batch 1"):
        log.read(LogView())


def damaged(data: bytes, how: str) -> bytes:
    if how == "torn":
        return data[:-5]
    if how == "empty":
        return b""
    if how == "altered":
        return data.replace(b'"batch":0', b'"batch":1')
    if how == "zeros":
        return bytes(len(data))
    return b"something else entirely\n{}"


@pytest.mark.parametrize("how", ["torn", "empty", "altered", "zeros", "foreign"])
def test_a_damaged_record_is_refused(store: FilesLogStore, tmp_path: Path, how: str) -> None:
    log = filled(store, 1)
    path = record_file(tmp_path, 1)
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(CorruptRecordError, match="Record 1 of the decision log") as caught:
        log.read(LogView())
    assert store.location in str(caught.value)
    assert "Restore the file from a copy" in caught.value.next_step


def test_a_damaged_record_that_stands_in_the_way_of_a_put_is_refused(store: FilesLogStore, tmp_path: Path) -> None:
    log = filled(store, 1)
    record_file(tmp_path, 1).write_bytes(b"")
    with pytest.raises(CorruptRecordError, match="Record 1"):
        log.put(1, commit(0))


@pytest.mark.parametrize("how", ["torn", "empty", "zeros", "foreign"])
def test_a_damaged_floor_is_refused(store: FilesLogStore, how: str) -> None:
    store.raise_floor(1, damaged(encode_floor(Floor(position=1)), how))
    with pytest.raises(CorruptRecordError, match="The floor of the decision log"):
        DecisionLog(store).floor()


def test_the_location_is_the_same_through_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    locations = {FilesLogStore(LocalFiles(folder)).location for folder in (link, real)}
    assert locations == {str(real / "sparkonce")}

"""Compaction of files: on each store; killed and overtaken at each step; next to a query; next to readers."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdfs_native import Client

from integration.files_scene import QUERY, Life
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.errors import CorruptRecordError, FilesGoneError
from sparkonce.files import Compacted, compact, read_manifests, whole_batches
from sparkonce.sinks.files import committer, compaction, manifests
from sparkonce.sinks.files.local import LocalStagedFile
from sparkonce.sinks.files.locations import open_store
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.store import FileStore

BATCHES = 4
OLD = BATCHES - 2
ROWS = list(range(4 * BATCHES))


def run_batch(life: Life, batch: int) -> None:
    rows = list(range(4 * batch, 4 * batch + 4))
    life.run_batch(pa.table({"number": rows, "day": [1, 1, 2, 2]}), batch=batch)


def filled(url: str, **options: Any) -> None:
    life = Life(FilesSink(url, partition_by="day", store_options=options))
    for batch in range(BATCHES):
        run_batch(life, batch)


def plain(folder: Path) -> list[str]:
    found = [one for one in folder.rglob("*") if one.is_file()]
    return [str(one) for one in found if not any(part[:1] in "._" for part in one.relative_to(folder).parts)]


def numbers(paths: list[str]) -> list[int]:
    return sorted(one for path in paths for one in pq.ParquetFile(path).read().column("number").to_pylist())


def run(folder: Path, delete_after_s: float = 0) -> Compacted:
    (done,) = compact(str(folder), keep_batches=2, delete_after_s=delete_after_s)
    return done


def assert_settled(folder: Path) -> None:
    run(folder)
    assert numbers(whole_batches(folder)) == numbers(plain(folder)) == ROWS
    assert len(plain(folder)) == 2 + 2 * 2
    assert not list(open_store(str(folder), {}).list_staged())


@pytest.mark.parametrize("store", ["disk", "s3", pytest.param("hdfs", marks=[USES_HDFS, pytest.mark.slow])])
def test_files_of_old_batches_become_one_in_each_folder(store, tmp_path):
    options: Mapping[str, Any] = {}
    read: Callable[[str], Any]
    if store == "disk":
        url, read = str(tmp_path), pq.ParquetFile
    elif store == "s3":
        bucket = Bucket()
        url, options = f"s3://{bucket.name}/out", bucket.server.settings()
        read = lambda path: pq.ParquetFile(pa.BufferReader(bucket.content(path.removeprefix(f"s3://{bucket.name}/"))))  # noqa: E731
    else:
        server, folder = hdfs_server(), f"/out-{secrets.token_hex(6)}"
        url, client = f"{server.url}{folder}", Client(server.url)
        read = lambda path: pq.ParquetFile(pa.BufferReader(client.read(path.removeprefix(server.url)).read()))  # noqa: E731

    def whole() -> list[int]:
        found = [read(path).read().column("number") for path in whole_batches(url, store_options=options)]
        return sorted(number for one in found for number in one.to_pylist())

    filled(url, **options)
    (done,) = compact(url, keep_batches=2, delete_after_s=3600, store_options=options)
    assert (done.batches, done.rows, done.files_before, done.files_after) == (OLD, 4 * OLD, 2 * OLD, 2)
    assert (done.deleted, done.left, done.done) == (0, 2 * OLD, True)
    assert whole() == ROWS
    compacted, *single = read_manifests(url, store_options=options)
    assert (compacted.batch, compacted.rows, compacted.compacted) == (OLD - 1, 4 * OLD, ((0, OLD - 1),))
    assert sorted(file.partition["day"] or "" for file in compacted.files) == ["1", "2"]
    assert [one.batch for one in single] == [OLD, OLD + 1]
    (again,) = compact(url, keep_batches=2, delete_after_s=0, store_options=options)
    assert again.deleted == 2 * OLD
    assert whole() == ROWS
    if store == "disk":
        assert_settled(tmp_path)


# --- at each step ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a process."""


class Steps:
    """A store that calls `at` with a number before and after each change. If `at` raises `Killed`, it stops."""

    def __init__(self, inner: FileStore, at: Callable[[int], None]) -> None:
        self._inner, self._at = inner, at
        self._count, self._dead = 0, False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name == "close" or not callable(call):
            return call
        if name in ("publish", "discard", "delete"):  # one at a time, because it may end between two writes
            return lambda items: [one for item in items for one in self.step(call, [item]) or ()]
        if name == "stage":
            return lambda *given: Staged(self, self.step(call, *given))
        return partial(self.step, call) if name == "put_new" else partial(self._alive, call)

    def _alive(self, call: Callable[..., Any], *given: Any) -> Any:
        if self._dead:
            raise Killed
        return call(*given)

    def _point(self) -> None:
        try:
            self._alive(self._at, self._count)
        except Killed:
            self._dead = True
            raise
        self._count += 1

    def step(self, call: Callable[..., Any], *given: Any) -> Any:
        self._point()
        done = call(*given)
        try:
            self._point()
        except Killed:
            if isinstance(done, LocalStagedFile):
                done._stream.file.close()
            raise
        return done


class Staged:
    def __init__(self, steps: Steps, inner: Any) -> None:
        self._steps, self._inner = steps, inner

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        return partial(self._steps.step, call) if name == "seal" else call

    def discard(self) -> None:
        if self._steps._dead:
            self._inner._stream.file.close()
        else:
            self._steps.step(self._inner.discard)


def test_a_compaction_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path, monkeypatch):
    for point in count():
        folder = tmp_path / str(point)
        filled(str(folder))

        def at(number: int, point: int = point) -> None:
            if number == point:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "open_store", lambda *given, at=at: Steps(open_store(*given), at))
            try:
                run(folder)
                break
            except Killed:
                pass
        assert numbers(whole_batches(folder)) == ROWS
        assert sorted(set(numbers(plain(folder)))) == ROWS
        assert_settled(folder)
    assert point > 15


@pytest.mark.slow
def test_a_compaction_that_is_overtaken_at_any_step_does_no_harm(tmp_path, monkeypatch):
    for point in count():
        folder = tmp_path / str(point)
        filled(str(folder))
        overtaken: list[Compacted] = []

        def at(number: int, point: int = point, folder: Path = folder, done: list[Compacted] = overtaken) -> None:
            if number == point:
                with monkeypatch.context() as patch:
                    patch.setattr(compaction, "open_store", open_store)
                    done.append(run(folder))

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "open_store", lambda *given, at=at: Steps(open_store(*given), at))
            run(folder)
        if not overtaken:
            break
        assert numbers(whole_batches(folder)) == ROWS
        assert_settled(folder)
    assert point > 15


# --- next to other writers ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readers_of_whole_batches_see_each_row_once(tmp_path):
    life = Life(FilesSink(tmp_path, partition_by="day"))
    run_batch(life, 0)
    ended = threading.Event()
    seen: list[int] = []
    wrong: list[object] = []

    def read() -> None:
        while not (ended.is_set() and seen):
            try:
                found = numbers(whole_batches(tmp_path))
            except FileNotFoundError:  # deleted after it was listed; the next listing shows its replacement
                continue
            except FilesGoneError as error:
                wrong.append(error)
                return
            seen.append(len(found))
            if len(found) % 4 or found != list(range(len(found))):
                wrong.append(found)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    for batch in range(1, 40):
        run_batch(life, batch)
        run(tmp_path, delete_after_s=0 if batch % 3 else 3600)
    ended.set()
    for one in readers:
        one.join(60)
    assert not wrong
    assert seen
    assert numbers(whole_batches(tmp_path)) == list(range(4 * 40))


def test_a_running_query_tidies_and_finds_its_traces_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(committer, "KEPT_BATCHES", 4)
    monkeypatch.setattr(committer, "TIDY_EVERY", 1)
    monkeypatch.setattr(manifests, "MERGED", 2)
    life = Life(FilesSink(tmp_path, partition_by="day"))
    for batch in range(24):
        run_batch(life, batch)
        if batch >= 2:
            before = life.committer.list_traces(QUERY, life.owner.facts)
            run(tmp_path)
            assert life.committer.list_traces(QUERY, life.owner.facts) == before
        assert numbers(whole_batches(tmp_path)) == list(range(4 * batch + 4))
    handles = life.run_batch(pa.table({"number": [96], "day": [1]}), batch=24)
    assert life.committer.missing(handles) == []
    assert life.committer.list_lingering([life.owner]) == []
    assert numbers(plain(tmp_path)) == list(range(97))


def test_several_compactions_at_once(tmp_path):
    filled(str(tmp_path))
    several = [threading.Thread(target=run, args=[tmp_path]) for _ in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join(60)
    assert_settled(tmp_path)


@pytest.mark.slow
def test_600_rows_in_300_files(tmp_path):
    life = Life(FilesSink(tmp_path))
    for batch in range(300):
        life.run_batch(pa.table({"number": [2 * batch, 2 * batch + 1]}), batch=batch)
    (done,) = compact(str(tmp_path), delete_after_s=0)
    assert (done.batches, done.rows, done.files_before, done.files_after, done.deleted) == (290, 580, 290, 1, 290)
    assert numbers(whole_batches(tmp_path)) == numbers(plain(tmp_path)) == list(range(600))
    assert len(plain(tmp_path)) == 11


def test_a_dry_run_changes_nothing(tmp_path):
    filled(str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    (done,) = compact(str(tmp_path), keep_batches=2, dry_run=True)
    assert (done.files_before, done.files_after, done.done) == (2 * OLD, 2, False)
    assert sorted(tmp_path.rglob("*")) == before


def test_damaged_or_deleted_files_stop_it_and_nothing_changes(tmp_path):
    filled(str(tmp_path))
    first = Path(sorted(plain(tmp_path))[0])
    content = first.read_bytes()
    first.write_bytes(content[:-1] + b"x")
    with pytest.raises(CorruptRecordError, match="bytes, which are not those"):
        run(tmp_path)
    first.unlink()
    with pytest.raises(FilesGoneError):
        run(tmp_path)
    first.write_bytes(content)
    assert_settled(tmp_path)


def test_files_that_were_deleted_on_purpose_are_left_out(tmp_path):
    filled(str(tmp_path))
    for path in plain(tmp_path):
        if "day=1" in path:
            Path(path).unlink()
    (done,) = compact(str(tmp_path), keep_batches=2, missing_ok=True)
    assert (done.rows, done.files_after) == (2 * OLD, 1)
    assert numbers(whole_batches(tmp_path, missing_ok=True)) == [one for one in ROWS if one % 4 > 1]

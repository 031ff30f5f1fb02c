"""Compaction on each store: killed at each step, overtaken at each step, beside a query, beside readers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from integration.compact_scene import S3, Disk, Killed, OnHdfs, Place, life_of, numbers, run_batch, with_steps
from integration.files_scene import QUERY
from shared_servers import USES_HDFS
from sparkonce.errors import CorruptRecordError, FilesGoneError
from sparkonce.files import Compacted, compact, read_manifests, whole_batches
from sparkonce.sinks.files import committer, compaction, manifests
from sparkonce.sinks.files.places import open_store

BATCHES = 4
OLD = BATCHES - 2
ROWS = list(range(4 * BATCHES))

PLACES = [
    pytest.param(Disk, id="disk"),
    pytest.param(lambda _: S3(), id="s3"),
    pytest.param(lambda _: OnHdfs(), id="hdfs", marks=USES_HDFS),
]


SLOW = [
    PLACES[0],
    *(pytest.param(*one.values, id=str(one.id), marks=[*one.marks, pytest.mark.slow]) for one in PLACES[1:]),
]
"""Where a step of a server takes longer, only the long tests try them all."""


def filled(place: Place) -> Place:
    life = life_of(place, partition_by="day")
    for batch in range(BATCHES):
        run_batch(life, batch)
    return place


def whole(place: Place) -> list[int]:
    return numbers(place, whole_batches(place.url, store_options=place.options))


def run(place: Place, delete_after_s: float = 0) -> Compacted:
    (done,) = compact(place.url, keep_batches=2, delete_after_s=delete_after_s, store_options=place.options)
    return done


def settled(place: Place) -> None:
    """Asserts that a last run leaves each row once for every reader, and two files for the old batches."""
    run(place)
    assert whole(place) == ROWS
    assert numbers(place, place.plain()) == ROWS
    assert len(place.plain()) == 2 + 2 * 2
    assert not list(compaction.open_store(place.url, place.options).list_staged())


@pytest.mark.parametrize("make", PLACES)
def test_files_of_old_batches_become_one_in_each_folder(make: Callable[[Path], Place], tmp_path: Path) -> None:
    place = filled(make(tmp_path))
    done = run(place, delete_after_s=3600)
    assert (done.batches, done.rows, done.files_before, done.files_after) == (OLD, 4 * OLD, 2 * OLD, 2)
    assert (done.deleted, done.left, done.done) == (0, 2 * OLD, True)
    assert whole(place) == ROWS
    assert numbers(place, place.plain()) == sorted([*ROWS, *range(4 * OLD)])  # doubled until they are deleted
    compacted, *single = read_manifests(place.url, store_options=place.options)
    assert (compacted.batch, compacted.rows, compacted.compacted) == (OLD - 1, 4 * OLD, ((0, OLD - 1),))
    assert sorted(file.partition["day"] or "" for file in compacted.files) == ["1", "2"]
    assert [one.batch for one in single] == [OLD, OLD + 1]
    assert run(place).deleted == 2 * OLD
    settled(place)


@pytest.mark.parametrize("make", SLOW)
def test_a_compaction_that_is_killed_at_any_step_is_finished_by_the_next(
    make: Callable[[Path], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in count():
        place = filled(make(tmp_path / str(point)))

        def at(number: int, point: int = point) -> None:
            if number == point:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "open_store", with_steps(at))
            try:
                run(place)
                break
            except Killed:
                pass
        assert whole(place) == ROWS
        assert sorted(set(numbers(place, place.plain()))) == ROWS
        settled(place)
    assert point > 15


@pytest.mark.parametrize("make", SLOW[:2])
def test_a_compaction_that_is_overtaken_at_any_step_does_no_harm(
    make: Callable[[Path], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in count():
        place = filled(make(tmp_path / str(point)))
        overtaken: list[Compacted] = []

        def at(number: int, point: int = point, place: Place = place, overtaken: list[Compacted] = overtaken) -> None:
            if number == point:
                with monkeypatch.context() as patch:
                    patch.setattr(compaction, "open_store", open_store)
                    overtaken.append(run(place))

        with monkeypatch.context() as patch:
            patch.setattr(compaction, "open_store", with_steps(at))
            run(place)
        if not overtaken:
            break
        assert whole(place) == ROWS
        settled(place)
    assert point > 15


def test_readers_that_read_all_the_time_see_each_row_of_whole_batches_once(tmp_path: Path) -> None:
    place = Disk(tmp_path)
    life = life_of(place, partition_by="day")
    run_batch(life, 0)
    ended = threading.Event()
    seen: list[int] = []
    wrong: list[object] = []

    def read() -> None:
        while not (ended.is_set() and seen):
            try:
                found = whole(place)
            except FileNotFoundError:  # listed before it was deleted: the next list names the new one
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
        run(place, delete_after_s=0 if batch % 3 else 3600)
    ended.set()
    for one in readers:
        one.join(60)
    assert not wrong
    assert seen
    assert whole(place) == list(range(4 * 40))


def test_a_running_query_tidies_and_asks_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "KEPT_BATCHES", 4)
    monkeypatch.setattr(committer, "TIDY_EVERY", 1)
    monkeypatch.setattr(manifests, "MERGED", 2)
    place = Disk(tmp_path)
    life = life_of(place, partition_by="day")
    handles = []
    for batch in range(24):
        run_batch(life, batch)
        if batch >= 2:
            before = life.committer.list_traces(QUERY, life.owner.facts)
            run(place)
            assert life.committer.list_traces(QUERY, life.owner.facts) == before
        assert whole(place) == list(range(4 * batch + 4))
    handles = life.run_batch(pa.table({"number": [96], "day": [1]}), batch=24)
    assert life.committer.missing(handles) == []
    assert life.committer.other_queries(QUERY, life.owner.facts) == []
    assert life.committer.list_lingering([life.owner]) == []
    assert numbers(place, place.plain()) == list(range(97))


def test_two_at_once(tmp_path: Path) -> None:
    place = filled(Disk(tmp_path))
    both = [threading.Thread(target=partial(run, place)) for _ in range(4)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    settled(place)


def test_600_rows_in_300_files(tmp_path: Path) -> None:
    life = life_of(Disk(tmp_path))
    for batch in range(300):
        life.run_batch(pa.table({"number": [2 * batch, 2 * batch + 1]}), batch=batch)
    (done,) = compact(str(tmp_path), delete_after_s=0)
    assert (done.batches, done.rows, done.files_before, done.files_after, done.deleted) == (290, 580, 290, 1, 290)
    place = Disk(tmp_path)
    assert whole(place) == numbers(place, place.plain()) == list(range(600))
    assert len(place.plain()) == 11


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    place = filled(Disk(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    (done,) = compact(place.url, keep_batches=2, dry_run=True)
    assert (done.files_before, done.files_after, done.done) == (2 * OLD, 2, False)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_were_damaged_or_deleted_stop_it_and_nothing_changes(tmp_path: Path) -> None:
    place = filled(Disk(tmp_path))
    first = sorted(place.plain())[0]
    content = place.read(first)
    Path(first).write_bytes(content[:-1] + b"x")
    with pytest.raises(CorruptRecordError, match="bytes and not those"):
        run(place)
    Path(first).unlink()
    with pytest.raises(FilesGoneError):
        run(place)
    Path(first).write_bytes(content)
    settled(place)


def test_files_that_were_deleted_on_purpose_are_left_out(tmp_path: Path) -> None:
    place = filled(Disk(tmp_path))
    for path in place.plain():
        if "day=1" in path:
            Path(path).unlink()
    (done,) = compact(place.url, keep_batches=2, missing_ok=True)
    assert (done.rows, done.files_after) == (2 * OLD, 1)
    assert numbers(place, whole_batches(place.url, missing_ok=True)) == [one for one in ROWS if one % 4 > 1]


def test_versions_that_know_no_compaction_refuse_the_folder(tmp_path: Path) -> None:
    place = filled(Disk(tmp_path))
    run(place)
    (generation,) = (tmp_path / "_manifest").glob("compacted~1.*")
    # They take its name for a merged manifest's, and read it as one.
    assert manifests._NAME.fullmatch(generation.name)
    with pytest.raises(CorruptRecordError, match="has format 2, and this version knows 1"):
        manifests.decode(generation.read_bytes(), generation.name)

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration.write_ahead_child import POINTS, sink_of, target_of
from integration.write_ahead_scene import (
    LIMIT_S,
    QUERY,
    commit,
    files,
    kill_in_commit,
    ledger_of,
    numbers,
    open_writer,
    owner,
    path_of,
    prepare,
    root_of,
)
from sparkonce import Guarantee, WriteAheadSink
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.errors import ConfigurationError, PreflightError, PrepareError, SchemaError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import COMMITTED, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import WriterContext
from sparkonce.sinks.write_ahead import committer as committer_module
from sparkonce.sinks.write_ahead import folder as folder_module
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.sinks.write_ahead.disk import DiskFolder
from sparkonce.sinks.write_ahead.folder import RowsState
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.write_ahead import Applies, ApplyToken, RefusedError, RetryLaterError

TRANSACTIONAL, IDEMPOTENT, NEITHER = Applies.TRANSACTIONAL, Applies.IDEMPOTENT, Applies.NEITHER


# --- a driver is killed in a commit ---------------------------------------------------------------------------------


DOUBLED = ("applied",)
"""Where the first call has done its work, and nothing says so."""


@pytest.mark.drawn(7)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("grade", Applies, ids=lambda grade: grade.value)
def test_a_driver_that_is_killed_in_a_commit(tmp_path: Path, grade: Applies, point: str) -> None:
    sink, target = sink_of(tmp_path, grade, parallel=1), target_of(tmp_path, grade)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    kill_in_commit(tmp_path, grade, handles, point, parallel=1)
    # What a commit has begun with is no longer anybody's to abort.
    left = {handle["name"] for handle in sink.committer().list_lingering([owner()])}
    assert left == ({str(handle["name"]) for handle in handles} - {str(path.name) for path in started(sink)})

    assert set(commit(sink, *handles)) <= COMMITTED
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 2
    doubled = grade is NEITHER and point in DOUBLED
    assert sorted(target.visible()) == sorted(numbers(0, [0, 0, 1] if doubled else [0, 1]))
    assert files(sink) == {"open": 0, "prepared": 0, "started": 0, "done": 2}
    calls = [token for token, _, _ in target.calls()]
    assert calls.count(str(handles[0]["name"])) == (2 if point in DOUBLED else 1)


def started(sink: WriteAheadSink) -> list[Path]:
    root = root_of(sink)
    return [path for state in ("started", "done") for path in (root / state).iterdir()]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("grade", [TRANSACTIONAL, NEITHER], ids=lambda grade: grade.value)
def test_a_driver_that_is_killed_in_the_commit_of_a_whole_batch(tmp_path: Path, grade: Applies, point: str) -> None:
    sink, target = sink_of(tmp_path, grade, per="batch"), target_of(tmp_path, grade)
    handles = [prepare(sink, slot=slot) for slot in range(3)]
    kill_in_commit(tmp_path, grade, handles, point, per="batch")
    assert set(commit(sink, *handles)) <= COMMITTED
    assert commit(sink, handles[1]) == [Outcome.ALREADY_COMMITTED]
    doubled = grade is NEITHER and point in DOUBLED
    assert sorted(target.visible()) == sorted(numbers(0, [0, 1, 2]) * (2 if doubled else 1))
    assert {tuple(slots) for _, slots, _ in target.calls()} == {(0, 1, 2)}
    assert len({token for token, _, _ in target.calls()}) == 1
    assert files(sink) == {"open": 0, "prepared": 0, "started": 0, "done": 1}


def test_a_repeat_names_the_slot_that_may_be_there_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = sink_of(tmp_path, NEITHER, parallel=1)
    handles = [prepare(sink, batch=7, slot=slot) for slot in range(2)]
    kill_in_commit(tmp_path, NEITHER, handles, "applied", parallel=1)
    with caplog.at_level(logging.WARNING, logger="sparkonce"):
        commit(sink, *handles)
    (first, *_) = [record.getMessage() for record in caplog.records]
    assert "batch=7 sink=write-ahead slots=0 applied again" in first
    assert str(handles[0]["name"]) in first


def test_the_target_is_asked_before_a_repeat(tmp_path: Path) -> None:
    sink, target = sink_of(tmp_path, TRANSACTIONAL), target_of(tmp_path, TRANSACTIONAL)
    handle = prepare(sink)
    kill_in_commit(tmp_path, TRANSACTIONAL, [handle], "applied")
    asking = sink_of(tmp_path, TRANSACTIONAL, is_applied=target.is_applied)  # type: ignore[attr-defined]
    assert commit(asking, handle) == [Outcome.ALREADY_COMMITTED]
    assert len(target.calls()) == 1
    assert files(sink)["done"] == 1


def test_a_member_of_a_group_brings_the_others_with_it(tmp_path: Path) -> None:
    """Which rows one call gets never changes: not when fewer are asked for, and not when more are."""
    sink, target = sink_of(tmp_path, TRANSACTIONAL, per="batch"), target_of(tmp_path, TRANSACTIONAL)
    handles = [prepare(sink, slot=slot) for slot in range(4)]
    kill_in_commit(tmp_path, TRANSACTIONAL, handles[:2], "called", per="batch")
    assert commit(sink, handles[1]) == [Outcome.COMMITTED]
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 2 + [Outcome.COMMITTED] * 2
    assert [slots for _, slots, _ in target.calls()] == [[0, 1], [2, 3]]
    assert sorted(target.visible()) == numbers(0, range(4))


# --- two drivers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["slot", "batch"])
def test_two_drivers_at_once_apply_once(tmp_path: Path, per: str) -> None:
    """The second one is told to ask again while the first is at it, even where a repeat would double rows."""
    begun, second_asked = threading.Event(), threading.Event()
    target = target_of(tmp_path, NEITHER)

    def slow(rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if 0 in token.slots:
            begun.set()
        assert second_asked.wait(LIMIT_S)
        target(rows, token)

    first = sink_of(tmp_path, NEITHER, slow, per=per)
    second = sink_of(tmp_path, NEITHER, per=per)
    handles = [prepare(first, slot=slot) for slot in range(3)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(commit, first, *handles)
        assert begun.wait(LIMIT_S)
        answers = commit(second, handles[0])
        second_asked.set()
        assert running.result(LIMIT_S) == [Outcome.COMMITTED] * 3
    assert answers == [Outcome.RETRY]
    assert commit(second, *handles) == [Outcome.ALREADY_COMMITTED] * 3
    assert sorted(target.visible()) == numbers(0, range(3))


def test_many_drivers_at_once(tmp_path: Path) -> None:
    sink, target = sink_of(tmp_path, TRANSACTIONAL), target_of(tmp_path, TRANSACTIONAL)
    handles = [prepare(sink, slot=slot) for slot in range(8)]

    def drive(_: int) -> set[Outcome]:
        committer = sink_of(tmp_path, TRANSACTIONAL).committer()
        waiting, seen = list(handles), set()
        while waiting:
            answers = committer.commit(waiting)
            seen |= {answer.outcome for answer in answers}
            waiting = [one for one, answer in zip(waiting, answers, strict=True) if answer.outcome not in COMMITTED]
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = set().union(*pool.map(drive, range(4)))
    assert seen <= COMMITTED | {Outcome.RETRY}
    assert sorted(target.visible()) == numbers(0, range(8))
    assert len(target.calls()) == 8


@pytest.mark.parametrize("per", ["slot", "batch"])
def test_a_batch_that_another_driver_finishes_meanwhile_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str
) -> None:
    sink, target = sink_of(tmp_path, NEITHER, per=per), target_of(tmp_path, NEITHER)
    handles = [prepare(sink, slot=slot) for slot in range(3)]
    take = WriteAheadCommitter._take

    def paused(*arguments: Any) -> bool:
        """The other driver does all of its commit after this one has read the ledger."""
        monkeypatch.undo()
        assert commit(sink, *handles) == [Outcome.COMMITTED] * 3
        return take(*arguments)

    monkeypatch.setattr(WriteAheadCommitter, "_take", paused)
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 3
    assert sorted(target.visible()) == sorted(numbers(0, [0, 1, 2]))


def test_two_drivers_form_a_group_once(tmp_path: Path) -> None:
    target = target_of(tmp_path, TRANSACTIONAL)
    sinks = [sink_of(tmp_path, TRANSACTIONAL, per="batch") for _ in range(2)]
    handles = [prepare(sinks[0], slot=slot) for slot in range(4)]
    waiting = {0: handles[:3], 1: handles[1:]}
    while any(waiting.values()):
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda who: sinks[who].committer().commit(waiting[who]), waiting))
        for who, answers in enumerate(found):
            assert {answer.outcome for answer in answers} <= COMMITTED | {Outcome.RETRY}
            pairs = zip(waiting[who], answers, strict=True)
            waiting[who] = [one for one, answer in pairs if answer.outcome not in COMMITTED]
    assert sorted(target.visible()) == numbers(0, range(4))
    assert sorted(slot for _, slots, _ in target.calls() for slot in slots) == [0, 1, 2, 3]


# --- files that are not what they were ------------------------------------------------------------------------------


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [flip_a_byte, cut_off])
@pytest.mark.parametrize("per", ["slot", "batch"])
def test_a_spoilt_file_is_never_applied(tmp_path: Path, spoil: Callable[[Path], None], per: str) -> None:
    sink, target = sink_of(tmp_path, TRANSACTIONAL, per=per), target_of(tmp_path, TRANSACTIONAL)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    spoil(path_of(sink, handles[1], RowsState.PREPARED))
    good = [Outcome.COMMITTED] if per == "slot" else [Outcome.UNKNOWN]
    for _ in range(2):
        assert commit(sink, *handles) == [*good, Outcome.UNKNOWN]
        good = [Outcome.ALREADY_COMMITTED] if per == "slot" else good
    assert sorted(target.visible()) == (numbers(0, [0]) if per == "slot" else [])
    assert sink.committer().abort([handles[1]])[0].outcome is Outcome.UNKNOWN
    assert path_of(sink, handles[1], RowsState.STARTED).exists()


def test_another_folder_in_its_place_is_not_taken_for_a_loss(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, TRANSACTIONAL)
    facts = sink.preflight(QUERY, None)
    handle = prepare(sink)
    root_of(sink).rename(tmp_path / "elsewhere")
    assert commit(sink, handle) == [Outcome.RETRY]  # no folder at all: the disk may come back
    with pytest.raises(PreflightError, match="cannot be used"):
        sink.preflight(QUERY, facts)
    sink.preflight(QUERY, None)
    assert commit(sink, handle) == [Outcome.UNKNOWN]
    with pytest.raises(PreflightError, match="identity="):
        sink.preflight(QUERY, facts)


def test_an_executor_that_does_not_see_the_folder_writes_nothing(tmp_path: Path) -> None:
    facts = sink_of(tmp_path, TRANSACTIONAL).preflight(QUERY, None)
    for other in (tmp_path / "none", tmp_path / "own"):
        sink = sink_of(other, TRANSACTIONAL)
        if other.name == "own":
            sink.preflight(QUERY, None)
        context = WriterContext(owner=replace(owner(), facts=facts), batch=0, slot=0, copy="1.1.0")
        with pytest.raises(PrepareError, match=r"executors see|this executor too"):
            sink.writer(context).begin()


# --- what the function may do ---------------------------------------------------------------------------------------


class Moody:
    """Raises what it is told to, in turn."""

    def __init__(self, target: Callable[..., object], *errors: Exception) -> None:
        self.target, self.errors = target, list(errors)

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.target(rows, token)


def test_any_error_is_tried_again(tmp_path: Path) -> None:
    target = target_of(tmp_path, TRANSACTIONAL)
    moody = Moody(target, ConnectionError("reset"), RetryLaterError("busy"))
    sink = sink_of(tmp_path, TRANSACTIONAL, moody)
    handle = prepare(sink)
    committer = sink.committer()
    first, second, third = (committer.commit([handle])[0] for _ in range(3))
    assert (first.outcome, first.reason) == (Outcome.RETRY, "The function failed: ConnectionError: reset")
    assert (second.outcome, second.reason) == (Outcome.RETRY, "The function says: busy")
    assert third.outcome is Outcome.COMMITTED
    assert sorted(target.visible()) == numbers(0, [0])


def test_later_is_not_before_the_time(tmp_path: Path) -> None:
    moody = Moody(target_of(tmp_path, TRANSACTIONAL), RetryLaterError("busy", after_s=3600), RuntimeError("too soon"))
    sink = sink_of(tmp_path, TRANSACTIONAL, moody)
    handle = prepare(sink)
    committer = sink.committer()
    reasons = [committer.commit([handle])[0].reason for _ in range(2)]
    assert reasons == ["The function says: busy", "The function asked not to be called for 3600 s."]


def test_a_refusal_stops_at_once_and_keeps_the_rows(tmp_path: Path) -> None:
    target = target_of(tmp_path, TRANSACTIONAL)
    moody = Moody(target, RefusedError("no such table"))
    sink = sink_of(tmp_path, TRANSACTIONAL, moody, parallel=1)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    committer = sink.committer()
    answers = committer.commit(handles)
    assert [answer.outcome for answer in answers] == [Outcome.UNKNOWN, Outcome.RETRY]
    with pytest.raises(UnknownOutcomeError, match="no such table"):
        committer.commit(handles)
    assert target.calls() == []
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2  # the next run, the table made
    assert sorted(target.visible()) == numbers(0, range(2))


def test_one_after_the_other_in_the_order_of_slots(tmp_path: Path) -> None:
    target = target_of(tmp_path, NEITHER)
    sink = sink_of(tmp_path, NEITHER, parallel=1)
    handles = [prepare(sink, slot=slot) for slot in range(12)]
    commit(sink, *reversed(handles))
    assert target.visible() == numbers(0, range(12))


def test_a_function_that_hangs_does_not_hang_the_driver(tmp_path: Path) -> None:
    go_on, target = threading.Event(), target_of(tmp_path, NEITHER)

    def hang(rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        assert go_on.wait(LIMIT_S)
        target(rows, token)

    sink = sink_of(tmp_path, NEITHER, hang, wait_s=0.01, parallel=1)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    committer = sink.committer()
    for _ in range(3):
        answers = committer.commit(handles)
        assert [answer.outcome for answer in answers] == [Outcome.RETRY] * 2
        assert "has not returned after 0.01 s" in answers[0].reason
    assert commit(sink, handles[0]) == [Outcome.RETRY]  # nor does another run in this process call it beside
    go_on.set()
    while {answer.outcome for answer in committer.commit(handles)} - COMMITTED:
        pass
    assert sorted(target.visible()) == numbers(0, range(2))
    assert len(target.calls()) == 2


def test_what_could_not_be_noted_is_not_applied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, target = sink_of(tmp_path, NEITHER), target_of(tmp_path, NEITHER)
    handle = prepare(sink)
    committer = sink.committer()
    with monkeypatch.context() as broken:
        broken.setattr(folder_module, "put_note", disk_full)
        (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.RETRY
    assert "No space left" in answer.reason
    assert committer.commit([handle])[0].outcome is Outcome.COMMITTED
    assert len(target.calls()) == 1


def disk_full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


# --- prepare --------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_of(tmp_path, TRANSACTIONAL)
    writer = open_writer(sink)
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(PrepareError, match="No space left on device"):
        writer.prepare()
    writer.abort()
    assert files(sink) == {"open": 0, "prepared": 0, "started": 0, "done": 0}


def test_large_slots_are_written_down_piece_by_piece(tmp_path: Path) -> None:
    seen: list[int] = []
    sink = sink_of(tmp_path, NEITHER, lambda rows, token: seen.extend(batch.num_rows for batch in rows))
    writer = open_writer(sink)
    held = []
    for start in range(0, 3_000_000, 100_000):
        writer.write(pa.record_batch({"number": range(start, start + 100_000)}))
        held.append(writer._file._waiting_bytes)  # type: ignore[attr-defined]
    fields = transaction_fields(writer.prepare())
    assert max(held) < 17 * 2**20
    assert commit(sink, Handle(sink=sink.name, slot=0, transaction=fields)) == [Outcome.COMMITTED]
    assert sum(seen) == 3_000_003
    assert max(seen) <= 65_536


def test_types_come_back_as_they_went(tmp_path: Path) -> None:
    seen: list[pa.Table] = []
    sink = sink_of(tmp_path, NEITHER, lambda rows, token: seen.append(rows.read_all()))
    rows = pa.record_batch(
        {
            "text": pa.array(["ä", None]),
            "bytes": pa.array([b"\0", None]),
            "when": pa.array([0, None], pa.timestamp("us", tz="UTC")),
            "local": pa.array([0, None], pa.timestamp("us")),
            "day": pa.array([0, None], pa.date32()),
            "money": pa.array([None, None], pa.decimal128(38, 18)),
            "list": pa.array([[1, None], None], pa.list_(pa.int16())),
            "struct": pa.array([{"a": 1.5}, None], pa.struct([("a", pa.float32())])),
            "span": pa.array([1, None], pa.duration("us")),
            "nothing": pa.nulls(2),
        }
    )
    assert sink.columns(rows.schema) == rows.schema.names
    writer = open_writer(sink)
    writer.abort()
    context = WriterContext(owner=replace(owner(), facts=sink.preflight(QUERY, None)), batch=0, slot=0, copy="1.1.0")
    writer = sink.writer(context)
    writer.begin()
    writer.write(rows)
    handle = Handle(sink=sink.name, slot=0, transaction=transaction_fields(writer.prepare()))
    assert commit(sink, handle) == [Outcome.COMMITTED]
    assert seen[0].schema.equals(rows.schema)
    assert seen[0].equals(pa.Table.from_batches([rows]))


class Unpicklable(Moody):
    def __reduce__(self) -> str:
        raise TypeError("it holds a connection")


class Unknown(Moody):
    """Stands for one of a module that only the driver has."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_fail, ())


def _fail() -> None:
    raise ModuleNotFoundError("no such module on this worker")


@pytest.mark.parametrize("kind", [Unpicklable, Unknown])
def test_workers_do_not_need_the_function(tmp_path: Path, kind: type[Moody]) -> None:
    target = target_of(tmp_path, TRANSACTIONAL)
    sink = sink_of(tmp_path, TRANSACTIONAL, kind(target))
    on_worker = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(sink))))  # noqa: S301 - pickled on the same line
    handle = prepare(on_worker)
    (answer,) = on_worker.committer().commit([handle])
    assert answer.outcome is Outcome.RETRY
    assert "cannot be pickled" in answer.reason or "no such module" in answer.reason
    assert commit(sink, handle) == [Outcome.COMMITTED]


# --- markers --------------------------------------------------------------------------------------------------------


def test_old_markers_are_tidied_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer_module, "KEEP_BATCHES", 3)
    monkeypatch.setattr(committer_module, "TIDY_EVERY_BATCHES", 2)
    for per in ("slot", "batch"):
        sink = sink_of(tmp_path / per, TRANSACTIONAL, per=per)
        handles = [prepare(sink, batch) for batch in range(9)]
        for batch, handle in enumerate(handles):
            assert commit(sink, handle) == [Outcome.COMMITTED]
            sink.committer().conclude(batch, [handle, Handle(sink=sink.name, slot=1)])
        assert files(sink)["done"] == 3
        assert commit(sink, *handles) == [Outcome.UNKNOWN] * 6 + [Outcome.ALREADY_COMMITTED] * 3
        assert len(list((ledger_of(sink) / "begun").iterdir())) == 3


def test_a_query_forgets_nothing_of_another(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, TRANSACTIONAL)
    handle = prepare(sink)
    commit(sink, handle)
    sink.folder().forget("0" * 12, 100)
    assert commit(sink, handle) == [Outcome.ALREADY_COMMITTED]


def test_names_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, TRANSACTIONAL)
    prepare(sink)
    (root_of(sink) / "prepared" / "somebody's.parquet").touch()
    (found,) = sink.committer().list_lingering([owner()])
    assert TransactionName.parse(str(found["name"])) is not None


# --- settings -------------------------------------------------------------------------------------------------------


def test_what_is_promised(tmp_path: Path) -> None:
    promises = {grade: sink_of(tmp_path, grade) for grade in Applies}
    assert {grade: sink.promise for grade, sink in promises.items()} == {
        TRANSACTIONAL: Guarantee.EXACTLY_ONCE,
        IDEMPOTENT: Guarantee.EXACTLY_ONCE,
        NEITHER: Guarantee.AT_LEAST_ONCE,
    }
    assert {sink.guarantee for sink in promises.values()} == {Guarantee.EXACTLY_ONCE}
    assert "effectively once" in promises[IDEMPOTENT].conditions()[0]
    assert "token.id" in promises[TRANSACTIONAL].conditions()[0]
    assert sink_of(tmp_path, NEITHER, guarantee=Guarantee.AT_MOST_ONCE).promise is Guarantee.AT_MOST_ONCE
    assert sink_of(tmp_path, NEITHER, guarantee=Guarantee.AT_MOST_ONCE).conditions() == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"per": "row"},
        {"parallel": 0},
        {"wait_s": 0},
        {"name": "é" * 40},
        {"name": ""},
        {"folder": "s3://b"},
        {"folder": "file://[b"},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        WriteAheadSink(print, applies=TRANSACTIONAL, **settings)


def test_a_sink_without_a_folder_says_so() -> None:
    with pytest.raises(ConfigurationError, match="folder="):
        WriteAheadSink(print, applies=TRANSACTIONAL).preflight(QUERY, None)


def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    for name in ("..", "../../x", "a/b"):
        sink = WriteAheadSink(target_of(tmp_path, TRANSACTIONAL), applies=TRANSACTIONAL, folder=tmp_path, name=name)
        assert root_of(sink).parent == tmp_path
        assert commit(sink, prepare(sink)) == [Outcome.COMMITTED]


def test_how_calls_are_made_does_not_change(tmp_path: Path) -> None:
    facts = sink_of(tmp_path, TRANSACTIONAL).preflight(QUERY, None)
    with pytest.raises(PreflightError, match="per='batch'"):
        sink_of(tmp_path, TRANSACTIONAL, per="batch").preflight(QUERY, facts)


def test_columns_that_parquet_does_not_take() -> None:
    sink = WriteAheadSink(print, applies=TRANSACTIONAL)
    with pytest.raises(SchemaError, match="'span'"):
        sink.columns(pa.schema([("span", pa.month_day_nano_interval())]))


def test_a_folder_that_cannot_be_listed_is_asked_again(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, TRANSACTIONAL)
    with pytest.raises(UnknownOutcomeError, match="cannot be read"):
        sink.committer().list_lingering([owner()])
    with pytest.raises(UnknownOutcomeError, match="cannot be read"):
        sink.committer().list_traces(QUERY, {})


def test_the_folder_is_found_again_by_its_identity(tmp_path: Path) -> None:
    identities = []
    for name in ("a", "a", "b"):
        folder = DiskFolder(tmp_path / name, Ledger(LocalFiles(tmp_path / name / "ledger")))
        folder.make()
        identities.append((folder.identity(), folder.ledger.identity()))
    assert identities[0] == identities[1]
    assert len({one for pair in identities for one in pair}) == 4

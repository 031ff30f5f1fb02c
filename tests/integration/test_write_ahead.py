"""The write-ahead sink without Spark: killed and repeated commits, lost rows and notes, functions that misbehave."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import one_run
from conformance.write_ahead_targets import AppendingTarget, KeyedTarget, SqliteTarget, Target
from eventually import LIMIT_S
from one_run import QUERY
from plain_store import PlainStore
from small_job import SmallJob
from sparkonce import Guarantee, WriteAheadSink
from sparkonce.errors import ConfigurationError, PreflightError, PrepareError, SchemaError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome, transaction_fields
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner, SinkWriter, WriterContext
from sparkonce.sinks.write_ahead import committer as committer_module
from sparkonce.sinks.write_ahead import folder as folder_module
from sparkonce.sinks.write_ahead import rows as rows_module
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.sinks.write_ahead.folder import DiskFolder, RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import SKIPPED, Applies, ApplyToken, RefusedError, RetryLaterError
from unit.driver_world import World

TARGETS: dict[Applies, type[Target]] = {
    Applies.TRANSACTIONAL: SqliteTarget,
    Applies.IDEMPOTENT: KeyedTarget,
    Applies.NEITHER: AppendingTarget,
}
METHODS: dict[str, tuple[type, str]] = {
    "started": (DiskFolder, "take"),
    "begun": (Ledger, "begin"),
    "noted": (WriteAheadFolder, "note_done"),
    "deleted": (DiskFolder, "delete_rows"),
}
POINTS = ("before", "started", "begun", "called", "applied", "noted", "deleted")
"""Points in a commit, in order.

At the first step, nothing is done yet. At the next ones, the rows are protected from aborts, the start of the call is
recorded, the function is called but has done nothing, and the function has returned. Then the commit is recorded, and
the rows are deleted.
"""


class KilledError(BaseException):
    """The code under test must not catch it. Processes are really killed in tests/crashes."""


def target_of(root: Path, grade: Applies) -> Target:
    return TARGETS[grade](root / "target")


def sink_of(root: Path, grade: Applies, apply: Callable[..., object] | None = None, **settings: Any) -> WriteAheadSink:
    sink = WriteAheadSink(apply or target_of(root, grade), applies=grade, **settings)
    sink.use_checkpoint(LocalFiles(root / "checkpoint"))
    return sink


def numbers(batch: int, slots: Sequence[int]) -> list[int]:
    return [1000 * batch + 10 * slot + place for slot in slots for place in range(3)]


def open_writer(sink: WriteAheadSink, batch: int = 0, slot: int = 0) -> SinkWriter:
    return one_run.open_writer(sink, pa.record_batch({"number": numbers(batch, [slot])}), batch=batch, slot=slot)


def prepare(sink: WriteAheadSink, batch: int = 0, slot: int = 0) -> Handle:
    return one_run.prepare(sink, pa.record_batch({"number": numbers(batch, [slot])}), batch=batch, slot=slot)


def commit(sink: WriteAheadSink, *handles: Handle) -> list[Outcome]:
    return [finished.outcome for finished in sink.committer().commit(handles)]


def root_of(sink: WriteAheadSink) -> Path:
    return Path(sink.folder().location)


def ledger_of(sink: WriteAheadSink) -> Path:
    return Path(sink.folder().ledger.files.location)


def path_of(sink: WriteAheadSink, handle: Handle, state: RowsState) -> Path:
    return root_of(sink) / state.value / str(handle["name"])


def files(sink: WriteAheadSink) -> dict[str, int]:
    return {state.value: len(list((root_of(sink) / state.value).iterdir())) for state in RowsState}


def owner() -> Owner:
    return Owner(query=QUERY, token=one_run.RUN)


def kill_in_commit(
    monkeypatch: pytest.MonkeyPatch, root: Path, grade: Applies, handles: Sequence[Handle], point: str, **settings: Any
) -> None:
    def apply(rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if point == "called":
            raise KilledError
        target_of(root, grade)(rows, token)
        if point == "applied":
            raise KilledError

    if point == "before":
        return
    with monkeypatch.context() as patch:
        if point in METHODS:
            kind, method = METHODS[point]
            inner = getattr(kind, method)

            def dying(*given: Any, **named: Any) -> None:
                inner(*given, **named)
                raise KilledError

            patch.setattr(kind, method, dying)
        committer = sink_of(root, grade, apply, parallel=1, **settings).committer()
        with pytest.raises(KilledError):
            committer.commit(handles)


TRANSACTIONAL, IDEMPOTENT, NEITHER = Applies.TRANSACTIONAL, Applies.IDEMPOTENT, Applies.NEITHER


# --- a driver is killed in a commit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("per", ["slot", "batch"])
@pytest.mark.parametrize("grade", Applies, ids=lambda grade: grade.value)
def test_a_driver_that_is_killed_in_a_commit(tmp_path, monkeypatch, grade, per, point):
    sink, target = sink_of(tmp_path, grade, per=per, parallel=1), target_of(tmp_path, grade)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    kill_in_commit(monkeypatch, tmp_path, grade, handles, point, per=per)
    # Once a commit has begun with rows, nobody may abort them.
    started = {path.name for state in ("started", "done") for path in (root_of(sink) / state).iterdir()}
    left = {handle["name"] for handle in sink.committer().list_lingering([owner()])}
    if per == "slot":
        assert left == {str(handle["name"]) for handle in handles} - started
    else:
        assert bool(left) == (point in ("before", "started"))

    assert set(commit(sink, *handles)) <= COMMITTED
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 2
    # The first call has done its work, but nothing has recorded that.
    again = 0 if point != "applied" or grade is not NEITHER else 1
    slots = [0, 1] + ([0] if again and per == "slot" else [0, 1] if again else [])
    assert sorted(target.visible()) == sorted(numbers(0, slots))
    assert files(sink) == {"open": 0, "prepared": 0, "started": 0, "done": 2 if per == "slot" else 1}
    calls = [(token, tuple(slots)) for token, slots, _ in target.calls()]
    assert set(calls) == ({(h["name"], (h.slot,)) for h in handles} if per == "slot" else {(calls[0][0], (0, 1))})
    assert calls.count(calls[0]) == (2 if point == "applied" else 1)


def test_a_repeat_names_the_slot_that_may_be_there_twice(tmp_path, monkeypatch, caplog):
    sink = sink_of(tmp_path, NEITHER, parallel=1)
    handles = [prepare(sink, batch=7, slot=slot) for slot in range(2)]
    kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, "applied")
    with caplog.at_level(logging.WARNING, logger="sparkonce"):
        commit(sink, *handles)
    (first, *_) = [record.getMessage() for record in caplog.records]
    assert "batch=7 sink=write-ahead slots=0 applied again" in first
    assert str(handles[0]["name"]) in first


def test_a_member_of_a_group_brings_the_others_with_it(tmp_path, monkeypatch):
    """The rows of a call never change, whether fewer or more handles are committed."""
    sink, target = sink_of(tmp_path, TRANSACTIONAL, per="batch"), target_of(tmp_path, TRANSACTIONAL)
    handles = [prepare(sink, slot=slot) for slot in range(4)]
    kill_in_commit(monkeypatch, tmp_path, TRANSACTIONAL, handles[:2], "called", per="batch")
    assert commit(sink, handles[1]) == [Outcome.COMMITTED]
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 2 + [Outcome.COMMITTED] * 2
    assert [slots for _, slots, _ in target.calls()] == [[0, 1], [2, 3]]
    assert sorted(target.visible()) == numbers(0, range(4))


# --- two drivers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["slot", "batch"])
def test_two_drivers_at_once_apply_once(tmp_path, per):
    """The second driver is told to retry while the first is busy, even where a repeated call would duplicate rows."""
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


@pytest.mark.parametrize("per", ["slot", "batch"])
def test_a_batch_that_another_driver_finishes_meanwhile_is_not_called_lost(tmp_path, monkeypatch, per):
    sink, target = sink_of(tmp_path, NEITHER, per=per), target_of(tmp_path, NEITHER)
    handles = [prepare(sink, slot=slot) for slot in range(3)]
    take = WriteAheadCommitter._take

    def paused(*arguments: Any) -> bool:
        """The other driver does its complete commit after this one has read the ledger."""
        monkeypatch.undo()
        assert commit(sink, *handles) == [Outcome.COMMITTED] * 3
        return take(*arguments)

    monkeypatch.setattr(WriteAheadCommitter, "_take", paused)
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 3
    assert sorted(target.visible()) == sorted(numbers(0, [0, 1, 2]))


# --- files that have changed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["a flipped bit", "cut off"])
@pytest.mark.parametrize("per", ["slot", "batch"])
def test_a_spoilt_file_is_never_applied(tmp_path, how, per):
    sink, target = sink_of(tmp_path, TRANSACTIONAL, per=per), target_of(tmp_path, TRANSACTIONAL)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    path = path_of(sink, handles[1], RowsState.PREPARED)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= how != "cut off"
    path.write_bytes(data[:-1] if how == "cut off" else data)
    good = [Outcome.COMMITTED] if per == "slot" else [Outcome.UNKNOWN]
    for _ in range(2):
        assert commit(sink, *handles) == [*good, Outcome.UNKNOWN]
        good = [Outcome.ALREADY_COMMITTED] if per == "slot" else good
    assert sorted(target.visible()) == (numbers(0, [0]) if per == "slot" else [])
    assert sink.committer().abort([handles[1]])[0].outcome is Outcome.UNKNOWN
    assert path_of(sink, handles[1], RowsState.STARTED).exists()


def test_another_folder_in_its_place_is_not_taken_for_a_loss(tmp_path):
    sink = sink_of(tmp_path, TRANSACTIONAL)
    facts = sink.preflight(QUERY, None)
    handle = prepare(sink)
    root_of(sink).rename(tmp_path / "elsewhere")
    assert commit(sink, handle) == [Outcome.RETRY]  # the whole folder is missing, but the disk may be mounted again
    with pytest.raises(PreflightError, match="cannot be used"):
        sink.preflight(QUERY, facts)
    sink.preflight(QUERY, None)
    assert commit(sink, handle) == [Outcome.UNKNOWN]
    with pytest.raises(PreflightError, match="identity="):
        sink.preflight(QUERY, facts)


def test_rows_that_wait_are_found_in_a_new_folder_once_they_were_moved_there(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    sink = sink_of(tmp_path, TRANSACTIONAL, folder=str(old))
    facts, handle = sink.preflight(QUERY, None), prepare(sink)
    moved = sink_of(tmp_path, TRANSACTIONAL, folder=str(new))
    moved.preflight(QUERY, None)
    with pytest.raises(PreflightError) as told:
        moved.preflight(QUERY, facts)
    assert "Move the old folder's content to the new location with its file 'identity'" in told.value.next_step
    shutil.rmtree(new)
    old.rename(new)
    assert moved.preflight(QUERY, facts) == facts
    assert commit(moved, handle) == [Outcome.COMMITTED]
    assert sorted(target_of(tmp_path, TRANSACTIONAL).visible()) == numbers(0, [0])


def test_an_executor_that_does_not_see_the_folder_writes_nothing(tmp_path):
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
    def __init__(self, target: Callable[..., object], *errors: Exception) -> None:
        self.target, self.errors = target, list(errors)

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.target(rows, token)


def test_any_error_is_tried_again_but_not_before_the_function_asks_for_it(tmp_path):
    target = target_of(tmp_path, TRANSACTIONAL)
    later = RetryLaterError("busy", after_s=3600)
    moody = Moody(target, ConnectionError("reset"), RetryLaterError("busy"), later, RuntimeError("too soon"))
    sink = sink_of(tmp_path, TRANSACTIONAL, moody)
    handle = prepare(sink)
    committer = sink.committer()
    answers = [committer.commit([handle])[0] for _ in range(4)]
    assert {answer.outcome for answer in answers} == {Outcome.RETRY}
    assert [answer.reason for answer in answers] == [
        "The function failed: ConnectionError: reset",
        "The function reports: busy",
        "The function reports: busy",
        "The function asked not to be called for 3600 s.",
    ]
    moody.errors.clear()
    assert commit(sink, handle) == [Outcome.COMMITTED]
    assert sorted(target.visible()) == numbers(0, [0])


def test_a_refusal_stops_at_once_and_keeps_the_rows(tmp_path):
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
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2  # the next run, after the table was created
    assert sorted(target.visible()) == numbers(0, range(2))


def test_one_after_the_other_in_the_order_of_slots(tmp_path):
    target = target_of(tmp_path, NEITHER)
    sink = sink_of(tmp_path, NEITHER, parallel=1)
    handles = [prepare(sink, slot=slot) for slot in range(12)]
    commit(sink, *reversed(handles))
    assert target.visible() == numbers(0, range(12))


def test_a_function_that_hangs_does_not_hang_the_driver(tmp_path):
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
    # another run in this process does not call the function concurrently, either
    assert commit(sink, handles[0]) == [Outcome.RETRY]
    go_on.set()
    while {answer.outcome for answer in committer.commit(handles)} - COMMITTED:
        pass
    assert sorted(target.visible()) == numbers(0, range(2))
    assert len(target.calls()) == 2


def test_what_could_not_be_noted_is_not_applied_again(tmp_path, monkeypatch):
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


def test_a_full_disk_at_prepare(tmp_path, monkeypatch):
    sink = sink_of(tmp_path, TRANSACTIONAL)
    writer = open_writer(sink)
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(PrepareError, match="No space left on device"):
        writer.prepare()
    writer.abort()
    assert files(sink) == {"open": 0, "prepared": 0, "started": 0, "done": 0}


@pytest.mark.parametrize("why", ["cannot be pickled", "No module named 'no_such_module'"])
def test_workers_do_not_need_the_function(tmp_path, why):
    class OfTheDriver:
        def __reduce__(self) -> tuple[Any, ...]:
            if why == "cannot be pickled":
                raise TypeError("it holds a connection")
            return import_module, ("no_such_module",)

        def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
            target_of(tmp_path, TRANSACTIONAL)(rows, token)

    sink = sink_of(tmp_path, TRANSACTIONAL, OfTheDriver())
    on_worker = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(sink))))  # noqa: S301 - pickled on the same line
    handle = prepare(on_worker)
    (answer,) = on_worker.committer().commit([handle])
    assert answer.outcome is Outcome.RETRY
    assert why in answer.reason
    assert commit(sink, handle) == [Outcome.COMMITTED]


# --- markers --------------------------------------------------------------------------------------------------------


def test_old_markers_are_tidied_away(tmp_path, monkeypatch):
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


def test_a_name_does_not_lead_out_of_the_folder(tmp_path):
    for name in ("..", "../../x", "a/b"):
        sink = WriteAheadSink(target_of(tmp_path, TRANSACTIONAL), applies=TRANSACTIONAL, folder=tmp_path, name=name)
        assert root_of(sink).parent == tmp_path
        assert commit(sink, prepare(sink)) == [Outcome.COMMITTED]


def test_how_calls_are_made_does_not_change(tmp_path):
    facts = sink_of(tmp_path, TRANSACTIONAL).preflight(QUERY, None)
    with pytest.raises(PreflightError, match="per='batch'"):
        sink_of(tmp_path, TRANSACTIONAL, per="batch").preflight(QUERY, facts)


def test_the_folder_is_found_again_by_its_identity(tmp_path):
    identities = []
    for name in ("a", "a", "b"):
        folder = DiskFolder(tmp_path / name, Ledger(LocalFiles(tmp_path / name / "ledger")))
        folder.make()
        identities.append((folder.identity(), folder.ledger.identity()))
    assert identities[0] == identities[1]
    assert len({one for pair in identities for one in pair}) == 4


def test_settings_and_what_they_promise(tmp_path):
    promises = {grade: sink_of(tmp_path, grade) for grade in Applies}
    assert {grade: sink.promise for grade, sink in promises.items()} == {
        TRANSACTIONAL: Guarantee.EXACTLY_ONCE,
        IDEMPOTENT: Guarantee.EXACTLY_ONCE,
        NEITHER: Guarantee.AT_LEAST_ONCE,
    }
    assert {sink.guarantee for sink in promises.values()} == {Guarantee.EXACTLY_ONCE}
    assert "effectively once" in promises[IDEMPOTENT].conditions()[0]
    assert "token.id" in promises[TRANSACTIONAL].conditions()[0]
    at_most_once = sink_of(tmp_path, NEITHER, guarantee=Guarantee.AT_MOST_ONCE)
    assert (at_most_once.promise, at_most_once.conditions()) == (Guarantee.AT_MOST_ONCE, ())
    wrong = [{"per": "row"}, {"parallel": 0}, {"wait_s": 0}, {"name": "é" * 40}, {"name": ""}, {"folder": "file://[b"}]
    for settings in wrong:
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            WriteAheadSink(print, applies=TRANSACTIONAL, **settings)
    with pytest.raises(ConfigurationError, match="folder="):
        WriteAheadSink(print, applies=TRANSACTIONAL).preflight(QUERY, None)
    with pytest.raises(SchemaError, match="'span'"):
        promises[NEITHER].columns(pa.schema([("span", pa.month_day_nano_interval())]))
    with pytest.raises(UnknownOutcomeError, match="cannot be read"):
        sink_of(tmp_path / "none", TRANSACTIONAL).committer().list_lingering([owner()])


# --- missing rows: which of them may have been applied, and which certainly were not ----------------------------------


NEITHER = Applies.NEITHER
PERS = ["slot", "batch"]


def delete_rows(sink: WriteAheadSink, handles: Sequence[Handle], *, markers: bool = False) -> None:
    for handle in handles:
        for state in (RowsState.PREPARED, RowsState.STARTED, *([RowsState.DONE] if markers else [])):
            path_of(sink, handle, state).unlink(missing_ok=True)


def put_back(root: Path) -> None:
    shutil.rmtree(root / "rows")
    shutil.copytree(root / "backup", root / "rows")


def stage(root: Path, per: str) -> tuple[WriteAheadSink, list[Handle]]:
    """A sink whose rows wait outside the checkpoint, which has a backup, and a prepared batch."""
    sink = sink_of(root, NEITHER, per=per, folder=root / "rows")
    sink.preflight(QUERY, None)
    shutil.copytree(root / "rows", root / "backup")
    return sink, [prepare(sink, slot=slot) for slot in range(2)]


@pytest.mark.parametrize("per", PERS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("injury", ["rows", "markers", "folder"])
def test_only_rows_that_no_commit_has_begun_with_are_lost(tmp_path, monkeypatch, per, point, injury):
    """Lost rows are written again. If they may have been applied, they would be duplicated."""
    # Here, no driver can have called the function.
    never_begun = ("before", "started")
    sink, handles = stage(tmp_path, per)
    kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, point, per=per, folder=tmp_path / "rows")
    if injury == "folder":
        put_back(tmp_path)
    else:
        delete_rows(sink, handles, markers=injury == "markers")
    answers = commit(sink, *handles)
    if point in never_begun:
        assert answers == [Outcome.LOST] * 2
        assert target_of(tmp_path, NEITHER).calls() == []
    elif injury == "rows" and point in ("noted", "deleted"):
        second = Outcome.ALREADY_COMMITTED if per == "batch" else Outcome.UNKNOWN
        assert answers == [Outcome.ALREADY_COMMITTED, second]
    else:
        assert answers == [Outcome.UNKNOWN] * 2
    aborted = {answer.outcome for answer in sink.committer().abort(handles)}
    assert (Outcome.ABORTED in aborted) == (point in never_begun)


@pytest.mark.parametrize("per", PERS)
def test_rows_of_one_call_are_lost_together(tmp_path, per):
    """Two calls might not have the same effect as one. Rows that can be applied in a separate call are applied."""
    sink, handles = stage(tmp_path, per)
    delete_rows(sink, handles[1:])
    first = [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED] if per == "slot" else [Outcome.LOST] * 2
    for expected in first:
        assert commit(sink, *handles) == [expected, Outcome.LOST]
    assert sorted(target_of(tmp_path, NEITHER).visible()) == (numbers(0, [0]) if per == "slot" else [])
    second = Outcome.ALREADY_COMMITTED if per == "slot" else Outcome.ABORTED
    assert [one.outcome for one in sink.committer().abort(handles)] == [second, Outcome.ABORTED]
    again = [prepare(sink, slot=slot) for slot in range(2)]
    assert commit(sink, *(again[1:] if per == "slot" else again)) == [Outcome.COMMITTED] * (1 if per == "slot" else 2)
    assert sorted(target_of(tmp_path, NEITHER).visible()) == sorted(numbers(0, [0, 1]))


def test_no_part_of_a_call_is_applied_while_a_file_of_it_comes_and_goes(tmp_path, monkeypatch):
    """A file system may list a file that it cannot open yet."""
    sink, handles = stage(tmp_path, "batch")
    take = DiskFolder.take
    monkeypatch.setattr(DiskFolder, "take", lambda self, name: name.slot == 0 and take(self, name))
    assert commit(sink, *handles) == [Outcome.RETRY] * 2
    monkeypatch.undo()
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2
    assert len(target_of(tmp_path, NEITHER).calls()) == 1


def test_no_commit_begins_with_rows_that_another_driver_has_given_up(tmp_path, monkeypatch):
    """Some of them are gone after this one has taken them all."""
    sink, handles = stage(tmp_path, "batch")
    begin = Ledger.begin

    def begin_late(*given: Any) -> bool:
        monkeypatch.undo()
        delete_rows(sink, handles[1:])
        assert commit(sink, *handles) == [Outcome.LOST] * 2
        return begin(*given)

    monkeypatch.setattr(Ledger, "begin", begin_late)
    assert commit(sink, *handles) == [Outcome.LOST] * 2
    assert target_of(tmp_path, NEITHER).calls() == []


def test_rows_that_a_commit_has_begun_with_are_not_given_up(tmp_path, monkeypatch):
    """Another driver finds all of them, and finishes first."""
    sink, handles = stage(tmp_path, "batch")
    path, give_up = path_of(sink, handles[1], RowsState.PREPARED), Ledger.give_up
    away = path.rename(tmp_path / "away")

    def give_up_late(*given: Any) -> bool:
        monkeypatch.undo()
        away.rename(path)
        assert commit(sink, *handles) == [Outcome.COMMITTED] * 2
        return give_up(*given)

    monkeypatch.setattr(Ledger, "give_up", give_up_late)
    assert commit(sink, *handles) == [Outcome.ALREADY_COMMITTED] * 2
    assert sorted(target_of(tmp_path, NEITHER).visible()) == sorted(numbers(0, [0, 1]))


@pytest.mark.parametrize("per", PERS)
def test_a_query_stops_rather_than_write_rows_again_that_may_be_there(tmp_path, per):
    class Query(World):
        def __init__(self, root: Path, per: str) -> None:
            super().__init__(root / "checkpoint")
            self.root, self.per = root, per
            self.apply: Callable[..., object] = target_of(root, NEITHER)

        def sinks(self) -> Any:
            return {"write-ahead": sink_of(self.root, NEITHER, self.apply, per=self.per)}

    target, query = target_of(tmp_path, NEITHER), Query(tmp_path, per)

    def interrupted(rows: Any, token: ApplyToken) -> None:
        target(rows, token)
        raise KilledError

    query.apply = interrupted
    with pytest.raises(KilledError):
        query.run(query.start(), 0)
    for path in (tmp_path / "checkpoint").rglob("started/*"):
        path.unlink()
    written = target.visible()
    assert written
    query.apply = target
    with pytest.raises(UnknownOutcomeError, match="may have been applied"):
        query.run(query.start(deadline_s=0.05), 0)
    assert target.visible() == written


@pytest.mark.parametrize("per", PERS)
def test_rows_that_come_back_are_applied_again_and_named(tmp_path, monkeypatch, caplog, per):
    """The backup was made when they were prepared, in a state in which an abort could delete them."""
    sink, handles = stage(tmp_path, per)
    shutil.rmtree(tmp_path / "backup")
    shutil.copytree(tmp_path / "rows", tmp_path / "backup")
    kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, "applied", per=per, folder=tmp_path / "rows")
    put_back(tmp_path)
    assert [one.outcome for one in sink.committer().abort(handles)] == [Outcome.UNKNOWN] * 2
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2
    assert "applied again" in caplog.text
    again = [0, 0, 1, 1] if per == "batch" else [0, 0, 1]
    assert sorted(target_of(tmp_path, NEITHER).visible()) == sorted(numbers(0, again))


@pytest.mark.parametrize("per", PERS)
def test_nothing_is_lost_where_the_ledger_is_not_there(tmp_path, per):
    sink, handles = stage(tmp_path, per)
    facts = sink.preflight(QUERY, None)
    delete_rows(sink, handles)
    ledger = ledger_of(sink)
    for gone in (ledger / "begun", ledger):
        gone.rename(tmp_path / f"was-{gone.name}")
        assert commit(sink, *handles) == [Outcome.RETRY] * 2
    with pytest.raises(PreflightError, match="ledger"):
        sink.preflight(QUERY, facts)
    Ledger(LocalFiles(ledger)).make()
    with pytest.raises(PreflightError, match="ledger="):
        sink.preflight(QUERY, facts)


@pytest.mark.parametrize("injury", ["another version", "torn", "of another kind"])
def test_a_note_that_cannot_be_read_is_not_taken_for_one_that_names_nothing(tmp_path, injury):
    """Its rows have been applied, and their markers are gone. If they counted as lost, they would be duplicated."""
    sink = sink_of(tmp_path, NEITHER)
    sink.preflight(QUERY, None)
    handle = prepare(sink)
    assert commit(sink, handle) == [Outcome.COMMITTED]
    delete_rows(sink, [handle], markers=True)
    (note,) = (ledger_of(sink) / "begun").iterdir()
    text = note.read_text()
    note.write_text(
        {"another version": text.replace("}", ', "more": 1}'), "torn": text[:-9], "of another kind": "{}7"}[injury]
    )
    (answer,) = sink.committer().commit([handle])
    assert answer.outcome is Outcome.RETRY
    assert str(note) in answer.reason
    note.write_text(text)
    assert commit(sink, handle) == [Outcome.UNKNOWN]


@pytest.mark.parametrize("per", PERS)
def test_a_driver_that_begins_late_finds_what_another_has_begun(tmp_path, per, monkeypatch):
    """One driver has read the ledger. Then the other one is killed during its call, and the rows are deleted."""
    sink, handles = stage(tmp_path, per)
    take = DiskFolder.take

    def paused(*arguments: object) -> bool:
        monkeypatch.undo()
        kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, "applied", per=per, folder=tmp_path / "rows")
        delete_rows(sink, handles)
        return take(*arguments)

    monkeypatch.setattr(DiskFolder, "take", paused)
    assert commit(sink, *handles) == [Outcome.UNKNOWN] * 2


def test_rows_are_durably_taken_before_it_is_noted_and_it_is_noted_before_the_call(tmp_path, monkeypatch):
    """No matter which part of a note survives a power failure, the function is never called without one."""
    sink, handles = stage(tmp_path, "slot")
    steps: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(path.name if path.is_dir() else path.parent.name)

    monkeypatch.setattr(os, "fsync", noting)
    sink.apply = lambda rows, token: steps.append("called")
    commit(sink, *handles)
    before = steps[: steps.index("called")]
    assert before.index("started") < before.index("begun")
    assert before[-1 - before[::-1].index("begun")] == "begun"
    assert before.count("begun") == 2, "a note is one file and its name, however many slots there are"


def test_a_driver_that_is_killed_while_it_tidies_leaves_nothing_that_looks_lost(tmp_path, monkeypatch):
    def killed_in(*_: object) -> None:
        raise KilledError

    sink = sink_of(tmp_path, NEITHER)
    handle = prepare(sink)
    assert commit(sink, handle) == [Outcome.COMMITTED]
    for method in ("names", "forget"):
        with monkeypatch.context() as killed:
            killed.setattr(WriteAheadFolder if method == "names" else Ledger, method, killed_in)
            with pytest.raises(KilledError):
                sink.folder().forget(QUERY, 0)
        assert set(commit(sink, handle)) <= COMMITTED | {Outcome.UNKNOWN}
    sink.folder().forget(QUERY, 0)
    assert commit(sink, handle) == [Outcome.UNKNOWN]
    assert sink.committer().list_lingering([owner()]) == []


# --- rows in a store without renames ----------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["goes on", "is killed", "is killed after the request"])
@pytest.mark.parametrize(
    ("first", "second"), [("commit", "abort"), ("abort", "commit"), ("write", "abort"), ("abort", "write")]
)
def test_two_processes_meet_at_any_request(tmp_path, first, second, then):
    """The first process stops before a request, the second one does all its work, and the first continues or dies."""
    for point in count():
        root = tmp_path / str(point)
        target = SqliteTarget(root / "target")
        met: list[int] = []
        hook: Callable[[], None] = lambda: None  # noqa: E731

        class Store(PlainStore):
            def __getattribute__(self, name: str) -> Any:
                if name in ("read", "names", "put", "replace", "delete"):
                    hook()  # noqa: B023
                return super().__getattribute__(name)

        def sink(store: type[PlainStore] = PlainStore, root: Path = root, target: Any = target) -> WriteAheadSink:
            made = WriteAheadSink(target, applies=Applies.TRANSACTIONAL, is_applied=target.is_applied, parallel=1)
            made.use_checkpoint(store(root / "checkpoint"))
            return made

        if "write" in (first, second):
            writer = open_writer(sink(Store))
            fields = transaction_fields({"name": str(writer._name)})
            handle = Handle(sink="write-ahead", slot=0, rows=0, transaction=fields)
        else:
            handle = prepare(sink())

        def do(what: str, store: type[PlainStore], handle: Handle = handle) -> Outcome | Handle | None:
            if what == "write":
                try:
                    return Handle(sink="write-ahead", slot=0, rows=3, transaction=transaction_fields(writer.prepare()))  # noqa: B023
                except PrepareError:
                    return None
            committer = sink(store).committer()
            return (committer.commit if what == "commit" else committer.abort)([handle])[0].outcome

        results: dict[str, Any] = {first: None, second: None}

        def stop() -> None:
            met.append(1)  # noqa: B023
            if len(met) == point + 1:  # noqa: B023
                results[second] = do(second, PlainStore)  # noqa: B023
                if then == "is killed":
                    raise KilledError
            elif len(met) > point + 1 and then == "is killed after the request":  # noqa: B023
                raise KilledError

        hook = stop
        with suppress(KilledError):
            results[first] = do(first, Store)
        hook = lambda: None  # noqa: E731
        if "write" in results:
            writer.close()
        if len(met) <= point:
            break
        aborted = results["abort"]
        assert aborted in {Outcome.ABORTED, Outcome.ALREADY_COMMITTED, Outcome.UNKNOWN, None}, point
        if "write" in results:
            assert aborted in {Outcome.ABORTED, None}, point
            if results["write"] is not None and aborted is Outcome.ABORTED:
                assert commit(sink(), results["write"]) == [Outcome.LOST], point
                assert target.visible() == [], point
            committer = sink().committer()
            committer.abort(committer.list_lingering([owner()]))
        else:
            committed = results["commit"]
            assert committed in {*COMMITTED, Outcome.LOST, Outcome.RETRY, None}, point
            (late,) = commit(sink(), handle)
            assert late in {*COMMITTED, Outcome.LOST}, point
            assert sorted(target.visible()) == ([] if late is Outcome.LOST else numbers(0, [0])), point
            if Outcome.ABORTED is aborted or committed is Outcome.LOST:
                assert late is Outcome.LOST, point
            (again,) = sink().committer().abort([handle])
            assert again.outcome is (Outcome.ABORTED if late is Outcome.LOST else Outcome.ALREADY_COMMITTED), point
        waiting = root / "checkpoint" / "sparkonce-write-ahead" / "write-ahead" / "rows"
        assert [one for one in waiting.rglob("*") if one.is_file()] == [], point
    assert point > 1


# --- functions that return before they have read their rows -----------------------------------------------------------


Function = Callable[[pa.RecordBatchReader, ApplyToken], object]


def read_nothing(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    return None


def read_the_first_part(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    return rows.read_next_batch().num_rows


def skip(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    return SKIPPED


@pytest.fixture
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(rows_module, "READ_ROWS", 2)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("per", ["slot", "batch"])
@pytest.mark.parametrize(("function", "read"), [(read_nothing, 0), (read_the_first_part, 2)])
def test_rows_that_were_not_read_stop_the_query_and_are_kept(tmp_path, function, read, per):
    sink, target = sink_of(tmp_path, NEITHER, function, per=per), target_of(tmp_path, NEITHER)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    committer = sink.committer()
    answers = committer.commit(handles)
    assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}
    assert f"had read {read} of the {3 if per == 'slot' else 6} rows" in answers[0].reason
    with pytest.raises(UnknownOutcomeError, match=r"return sparkonce\.write_ahead\.SKIPPED") as stopped:
        committer.commit(handles)
    assert "start the query again: the rows are kept" in stopped.value.next_step
    assert commit(sink, *handles) == [Outcome.UNKNOWN] * 2, "as often as it is called so"
    assert files(sink)["done"] == 0
    assert commit(sink_of(tmp_path, NEITHER, target, per=per), *handles) == [Outcome.COMMITTED] * 2
    assert sorted(target.visible()) == numbers(0, range(2))


@pytest.mark.usefixtures("small_parts")
def test_a_function_may_say_that_it_skips_rows(tmp_path):
    def read_the_first_part_and_skip(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
        read_the_first_part(rows, token)
        return SKIPPED

    for function in (skip, read_the_first_part_and_skip):
        sink = sink_of(tmp_path, NEITHER, function)
        assert commit(sink, prepare(sink)) == [Outcome.COMMITTED]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("way", ["read_all", "read_pandas", "for", "C++"])
@pytest.mark.parametrize("per", ["slot", "batch"])
def test_whatever_reads_them_all_has_read_them(tmp_path, way, per):
    reads: dict[str, Callable[[pa.RecordBatchReader], object]] = {
        "read_all": lambda rows: rows.read_all(),
        "read_pandas": lambda rows: rows.read_pandas(),
        "for": lambda rows: [batch.num_rows for batch in rows],
        "C++": lambda rows: ds.write_dataset(rows, tmp_path / uuid4().hex, format="parquet"),
    }
    sink = sink_of(tmp_path, NEITHER, lambda rows, _: reads[way](rows), per=per)
    assert commit(sink, prepare(sink), prepare(sink, slot=1)) == [Outcome.COMMITTED] * 2


def test_in_a_worker_unread_rows_fail_the_slot(tmp_path):
    def sink(function: Function) -> WriteAheadSink:
        return sink_of(tmp_path, NEITHER, function, guarantee=Guarantee.AT_LEAST_ONCE)

    with pytest.raises(PrepareError, match="had read 0 of the 3 rows"):
        open_writer(sink(read_nothing)).prepare()
    assert open_writer(sink(skip)).prepare() == {}


def test_a_query_stops_and_goes_on_with_a_function_that_reads(tmp_path):
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"number": numbers(batch, [slot])})

    target = target_of(tmp_path, NEITHER)
    function: list[Function] = [read_nothing]
    job = SmallJob(tmp_path, lambda: [WriteAheadSink(function[0], applies=NEITHER, parallel=1)], rows)
    phases: list[Phase] = []
    for _ in range(2):
        with pytest.raises(UnknownOutcomeError, match="had read 0 of the 3 rows"):
            job.run(0, listener=lambda phase, _: phases.append(phase))
    assert phases.count(Phase.DECIDING) == 1, "a start again is no way around it"
    function[0] = target
    job.run(0, 1)
    assert sorted(target.visible()) == [*numbers(0, range(2)), *numbers(1, range(2))]

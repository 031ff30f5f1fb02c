from __future__ import annotations

import logging
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration.write_ahead_scene import (
    LIMIT_S,
    POINTS,
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
    sink_of,
    target_of,
)
from sparkonce import Guarantee, WriteAheadSink
from sparkonce.errors import ConfigurationError, PreflightError, PrepareError, SchemaError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.sink import WriterContext
from sparkonce.sinks.write_ahead import committer as committer_module
from sparkonce.sinks.write_ahead import folder as folder_module
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.sinks.write_ahead.folder import DiskFolder, RowsState
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import Applies, ApplyToken, RefusedError, RetryLaterError

TRANSACTIONAL, IDEMPOTENT, NEITHER = Applies.TRANSACTIONAL, Applies.IDEMPOTENT, Applies.NEITHER


# --- a driver is killed in a commit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("per", ["slot", "batch"])
@pytest.mark.parametrize("grade", Applies, ids=lambda grade: grade.value)
def test_a_driver_that_is_killed_in_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grade: Applies, per: str, point: str
) -> None:
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


def test_a_repeat_names_the_slot_that_may_be_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = sink_of(tmp_path, NEITHER, parallel=1)
    handles = [prepare(sink, batch=7, slot=slot) for slot in range(2)]
    kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, "applied")
    with caplog.at_level(logging.WARNING, logger="sparkonce"):
        commit(sink, *handles)
    (first, *_) = [record.getMessage() for record in caplog.records]
    assert "batch=7 sink=write-ahead slots=0 applied again" in first
    assert str(handles[0]["name"]) in first


def test_a_member_of_a_group_brings_the_others_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_two_drivers_at_once_apply_once(tmp_path: Path, per: str) -> None:
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
def test_a_batch_that_another_driver_finishes_meanwhile_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str
) -> None:
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
    assert commit(sink, handle) == [Outcome.RETRY]  # the whole folder is missing: the disk may come back
    with pytest.raises(PreflightError, match="cannot be used"):
        sink.preflight(QUERY, facts)
    sink.preflight(QUERY, None)
    assert commit(sink, handle) == [Outcome.UNKNOWN]
    with pytest.raises(PreflightError, match="identity="):
        sink.preflight(QUERY, facts)


def test_rows_that_wait_are_found_in_a_new_folder_once_they_were_moved_there(tmp_path: Path) -> None:
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
    """Raises the given errors, one per call."""

    def __init__(self, target: Callable[..., object], *errors: Exception) -> None:
        self.target, self.errors = target, list(errors)

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.target(rows, token)


def test_any_error_is_tried_again_but_not_before_the_function_asks_for_it(tmp_path: Path) -> None:
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
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2  # the next run, after the table was created
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
    # another run in this process does not call it concurrently either
    assert commit(sink, handles[0]) == [Outcome.RETRY]
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


def _fail() -> None:
    raise ModuleNotFoundError("no such module on this worker")


@pytest.mark.parametrize("why", ["cannot be pickled", "no such module"])
def test_workers_do_not_need_the_function(tmp_path: Path, why: str) -> None:
    class OfTheDriver:
        def __reduce__(self) -> tuple[Any, ...]:
            if why == "cannot be pickled":
                raise TypeError("it holds a connection")
            return (_fail, ())

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


def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    for name in ("..", "../../x", "a/b"):
        sink = WriteAheadSink(target_of(tmp_path, TRANSACTIONAL), applies=TRANSACTIONAL, folder=tmp_path, name=name)
        assert root_of(sink).parent == tmp_path
        assert commit(sink, prepare(sink)) == [Outcome.COMMITTED]


def test_how_calls_are_made_does_not_change(tmp_path: Path) -> None:
    facts = sink_of(tmp_path, TRANSACTIONAL).preflight(QUERY, None)
    with pytest.raises(PreflightError, match="per='batch'"):
        sink_of(tmp_path, TRANSACTIONAL, per="batch").preflight(QUERY, facts)


def test_the_folder_is_found_again_by_its_identity(tmp_path: Path) -> None:
    identities = []
    for name in ("a", "a", "b"):
        folder = DiskFolder(tmp_path / name, Ledger(LocalFiles(tmp_path / name / "ledger")))
        folder.make()
        identities.append((folder.identity(), folder.ledger.identity()))
    assert identities[0] == identities[1]
    assert len({one for pair in identities for one in pair}) == 4


def test_settings_and_what_they_promise(tmp_path: Path) -> None:
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
            WriteAheadSink(print, applies=TRANSACTIONAL, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="folder="):
        WriteAheadSink(print, applies=TRANSACTIONAL).preflight(QUERY, None)
    with pytest.raises(SchemaError, match="'span'"):
        promises[NEITHER].columns(pa.schema([("span", pa.month_day_nano_interval())]))
    with pytest.raises(UnknownOutcomeError, match="cannot be read"):
        sink_of(tmp_path / "none", TRANSACTIONAL).committer().list_lingering([owner()])

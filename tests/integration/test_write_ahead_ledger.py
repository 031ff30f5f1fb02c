"""Missing rows: which of them may have been applied, and which certainly were not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from integration.write_ahead_scene import (
    POINTS,
    QUERY,
    KilledError,
    commit,
    kill_in_commit,
    ledger_of,
    numbers,
    owner,
    path_of,
    prepare,
    sink_of,
    target_of,
)
from sparkonce import WriteAheadSink
from sparkonce.errors import PreflightError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.sinks.write_ahead.folder import DiskFolder, RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import Applies, ApplyToken
from unit.driver_world import World

NEITHER = Applies.NEITHER
PERS = ["slot", "batch"]

Injury = Callable[[WriteAheadSink, Sequence[Handle]], None]


def delete_rows(sink: WriteAheadSink, handles: Sequence[Handle]) -> None:
    for handle in handles:
        for state in (RowsState.PREPARED, RowsState.STARTED):
            path_of(sink, handle, state).unlink(missing_ok=True)


def delete_rows_and_markers(sink: WriteAheadSink, handles: Sequence[Handle]) -> None:
    delete_rows(sink, handles)
    for handle in handles:
        path_of(sink, handle, RowsState.DONE).unlink(missing_ok=True)


def put_back(root: Path) -> Injury:
    """An injury: the folder as it was before the batch was prepared."""

    def restore(sink: WriteAheadSink, handles: Sequence[Handle]) -> None:
        shutil.rmtree(root / "rows")
        shutil.copytree(root / "backup", root / "rows")

    return restore


def stage(root: Path, per: str) -> tuple[WriteAheadSink, list[Handle]]:
    """A sink whose rows wait outside the checkpoint, which has a backup, and a prepared batch."""
    sink = sink_of(root, NEITHER, per=per, folder=root / "rows")
    sink.preflight(QUERY, None)
    shutil.copytree(root / "rows", root / "backup")
    return sink, [prepare(sink, slot=slot) for slot in range(2)]


@pytest.mark.parametrize("per", PERS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("injury", ["rows", "markers", "folder"])
def test_only_rows_that_no_commit_has_begun_with_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str, point: str, injury: str
) -> None:
    """Lost rows are written again. If they may have been applied, they would be duplicated."""
    # Here, no driver can have called the function.
    never_begun = ("before", "started")
    sink, handles = stage(tmp_path, per)
    kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, point, per=per, folder=tmp_path / "rows")
    {"rows": delete_rows, "markers": delete_rows_and_markers, "folder": put_back(tmp_path)}[injury](sink, handles)
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
def test_rows_of_one_call_are_lost_together(tmp_path: Path, per: str) -> None:
    """Two calls might have another effect than one. Rows that can be applied in a separate call are applied."""
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


def test_no_part_of_a_call_is_applied_while_a_file_of_it_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may list a file that it cannot open yet."""
    sink, handles = stage(tmp_path, "batch")
    take = DiskFolder.take
    monkeypatch.setattr(DiskFolder, "take", lambda self, name: name.slot == 0 and take(self, name))
    assert commit(sink, *handles) == [Outcome.RETRY] * 2
    monkeypatch.undo()
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2
    assert len(target_of(tmp_path, NEITHER).calls()) == 1


def test_no_commit_begins_with_rows_that_another_driver_has_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_rows_that_a_commit_has_begun_with_are_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver finds all of them, and is faster."""
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
def test_a_query_stops_rather_than_write_rows_again_that_may_be_there(tmp_path: Path, per: str) -> None:
    class Query(World):
        """A query whose only sink is this one."""

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
def test_rows_that_come_back_are_applied_again_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, per: str
) -> None:
    """The backup was made when they were prepared, in a state in which an abort could delete them."""
    sink, handles = stage(tmp_path, per)
    shutil.rmtree(tmp_path / "backup")
    shutil.copytree(tmp_path / "rows", tmp_path / "backup")
    kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, "applied", per=per, folder=tmp_path / "rows")
    put_back(tmp_path)(sink, handles)
    assert [one.outcome for one in sink.committer().abort(handles)] == [Outcome.UNKNOWN] * 2
    assert commit(sink, *handles) == [Outcome.COMMITTED] * 2
    assert "applied again" in caplog.text
    again = [0, 0, 1, 1] if per == "batch" else [0, 0, 1]
    assert sorted(target_of(tmp_path, NEITHER).visible()) == sorted(numbers(0, again))


@pytest.mark.parametrize("per", PERS)
def test_nothing_is_lost_where_the_ledger_is_not_there(tmp_path: Path, per: str) -> None:
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
def test_a_note_that_cannot_be_read_is_not_taken_for_one_that_names_nothing(tmp_path: Path, injury: str) -> None:
    """Its rows have been applied, and their markers are gone. If they counted as lost, they would be duplicated."""
    sink = sink_of(tmp_path, NEITHER)
    sink.preflight(QUERY, None)
    handle = prepare(sink)
    assert commit(sink, handle) == [Outcome.COMMITTED]
    delete_rows_and_markers(sink, [handle])
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
def test_a_driver_that_begins_late_finds_what_another_has_begun(
    tmp_path: Path, per: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One driver has read the ledger. Then the other one is killed during its call, and the rows are deleted."""
    sink, handles = stage(tmp_path, per)
    take = DiskFolder.take

    def paused(*arguments: object) -> bool:
        monkeypatch.undo()
        kill_in_commit(monkeypatch, tmp_path, NEITHER, handles, "applied", per=per, folder=tmp_path / "rows")
        delete_rows(sink, handles)
        return take(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskFolder, "take", paused)
    assert commit(sink, *handles) == [Outcome.UNKNOWN] * 2


def test_rows_are_durably_taken_before_it_is_noted_and_it_is_noted_before_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of a note survives a power failure, the function was not called without one."""
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


def test_a_driver_that_is_killed_while_it_tidies_leaves_nothing_that_looks_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

"""Tests the matrix with broken sinks: a matrix that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from conformance.folder_sink import FolderCommitter, FolderWriter
from crashes.cells import CUT, HALVED, KILL, LATE, ORPHAN, REPLY_LOST, Cell
from crashes.job import DoesNotRecover, Late
from crashes.target import COMMIT, Target
from crashes.toy import REQUESTS, ToySystem, toy
from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner
from sparkonce_lab.faults import Fault
from striking.points import BEGUN, HALFWAY, PREPARED

pytestmark = [pytest.mark.crashes, pytest.mark.timeout(300), pytest.mark.xdist_group("crashes-catches")]


class ShowsAtPrepare(FolderWriter):
    def prepare(self) -> Mapping[str, str | int]:
        fields = super().prepare()
        self.ask("commit", "committed")
        return fields


class CommitsTwice(FolderCommitter):
    """Its commit is not idempotent."""

    def finish(self, verb: str, name: str) -> Finished:
        return super().finish("append" if verb == "commit" else verb, name)


class CommitsAgainAfterAlready(FolderCommitter):
    def finish(self, verb: str, name: str) -> Finished:
        answer = super().finish(verb, name)
        return super().finish("append", name) if answer.outcome is Outcome.ALREADY_COMMITTED else answer


class SaysLostForNoAnswer(FolderCommitter):
    def unanswered(self, verb: str, reason: str) -> Finished:
        return Finished(outcome=Outcome.LOST if verb == "commit" else Outcome.RETRY, reason=reason)


class SaysCommittedForNoAnswer(FolderCommitter):
    def unanswered(self, verb: str, reason: str) -> Finished:
        return Finished(outcome=Outcome.COMMITTED if verb == "commit" else Outcome.RETRY, reason=reason)


class FindsNothing(FolderCommitter):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return ()


class FindsTheNewestRunOnly(FolderCommitter):
    """A transaction that an older run's worker prepares late remains open."""

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return super().list_lingering([max(owners, key=lambda owner: owner.token)])


class CommitsWhatLingers(FolderCommitter):
    """Treats prepared transactions as decided, like Flink's older sinks during recovery."""

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        self.commit(super().list_lingering(owners))
        return ()


class RaisesWhatTheClientRaises(FolderCommitter):
    def unanswered(self, verb: str, reason: str) -> Finished:
        raise ConnectionError(reason)


CAUGHT = [
    (ShowsAtPrepare, Cell(PREPARED, KILL), "early"),
    (ShowsAtPrepare, Cell(Phase.DECIDING.name, KILL), "early"),
    (CommitsTwice, Cell(HALFWAY, KILL), "doubled"),
    (CommitsTwice, Cell(COMMIT, REPLY_LOST), "doubled: 4"),
    (CommitsAgainAfterAlready, Cell(Phase.REPLAYING.name, KILL), "doubled"),
    (SaysLostForNoAnswer, Cell(COMMIT, REPLY_LOST), "doubled: 4"),
    (SaysCommittedForNoAnswer, Cell(COMMIT, HALVED), "missing: 4"),
    (SaysCommittedForNoAnswer, Cell(HALFWAY, CUT), "missing: 4"),
    (FindsNothing, Cell(BEGUN, KILL), "lingering"),
    (FindsNothing, Cell(PREPARED, KILL), "lingering"),
    (FindsTheNewestRunOnly, Cell(Phase.WRITING.name, ORPHAN), "lingering"),
    (CommitsWhatLingers, Cell(PREPARED, KILL), "doubled"),
    (RaisesWhatTheClientRaises, Cell(HALFWAY, CUT), "broken: ['ConnectionError"),
]


@cache
def broken(half: type) -> Target:
    return toy(half, preload=[__name__])


@pytest.mark.parametrize(("kind", "cell", "seen"), CAUGHT)
def test_a_broken_sink_is_caught(started, kind, cell, seen):
    verdict = started.strike(broken(kind), cell)
    assert verdict.missed == ""
    assert seen in verdict.violations


def test_a_late_request_that_changes_something_is_told_from_others(started):
    verdict = started.strike(broken(CommitsTwice), Cell(COMMIT, LATE))
    assert verdict.missed == "the late request to commit changed something"
    assert "doubled: 4" in verdict.violations


def test_a_late_request_that_is_not_delivered_is_none(started):
    class EndsConnections(ToySystem):
        """Called once the next run has recovered."""

        def state(self) -> object:
            self.inject(Fault.SERVER_KILLED)
            self.lift(Fault.SERVER_KILLED)
            return super().state()

    verdict = started.strike(toy(system=EndsConnections, server="its own"), Cell(COMMIT, LATE))
    assert verdict.late is Late.ENDED
    assert "found its connection ended" in verdict.missed


def test_a_request_that_never_came_is_no_pass(started):
    verdict = started.strike(toy(requests={**REQUESTS, "commit": b"something else"}), Cell(COMMIT, LATE))
    assert verdict.late is None
    assert verdict.missed == "there was no request to commit"


class RefusesToStartAgain(FolderCommitter):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        if len(owners) > 1:
            raise PreflightError("Once is enough.")
        return super().list_lingering(owners)


def test_a_query_that_does_not_recover_is_caught(started):
    with pytest.raises(DoesNotRecover, match="Once is enough"):
        started.strike(broken(RefusesToStartAgain), Cell(PREPARED, KILL))

"""The matrix is tried out on sinks that are broken: a matrix that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from crashes import broken
from crashes.cells import CUT, HALVED, KILL, LATE, ORPHAN, REPLY_LOST, Cell
from crashes.started import StartedTargets
from crashes.target import COMMIT
from crashes.toy import REQUESTS, ToySink, ToyTarget
from crashes.verdict import DoesNotRecover, Late
from sparkonce.lab.faults import Fault
from sparkonce.protocol.state import Phase
from striking.points import BEGUN, HALFWAY, PREPARED

pytestmark = [pytest.mark.crashes, pytest.mark.timeout(300), pytest.mark.xdist_group("crashes-catches")]

CAUGHT = [
    (broken.ShowsAtPrepare, Cell(PREPARED, KILL), "early"),
    (broken.ShowsAtPrepare, Cell(Phase.DECIDING.name, KILL), "early"),
    (broken.CommitsTwice, Cell(HALFWAY, KILL), "doubled"),
    (broken.CommitsTwice, Cell(COMMIT, REPLY_LOST), "doubled: 4"),
    (broken.CommitsAgainAfterAlready, Cell(Phase.REPLAYING.name, KILL), "doubled"),
    (broken.SaysLostForNoAnswer, Cell(COMMIT, REPLY_LOST), "doubled: 4"),
    (broken.SaysCommittedForNoAnswer, Cell(COMMIT, HALVED), "missing: 4"),
    (broken.SaysCommittedForNoAnswer, Cell(HALFWAY, CUT), "missing: 4"),
    (broken.FindsNothing, Cell(BEGUN, KILL), "lingering"),
    (broken.FindsNothing, Cell(PREPARED, KILL), "lingering"),
    (broken.FindsTheNewestRunOnly, Cell(Phase.WRITING.name, ORPHAN), "lingering"),
    (broken.CommitsWhatLingers, Cell(PREPARED, KILL), "doubled"),
    (broken.RaisesWhatTheClientRaises, Cell(HALFWAY, CUT), "broken: ['ConnectionError"),
]


@pytest.fixture(scope="module")
def targets() -> dict[type[ToySink], ToyTarget]:
    return {}


@pytest.mark.parametrize(("kind", "cell", "seen"), CAUGHT)
def test_a_broken_sink_is_caught(
    started: StartedTargets, targets: dict[type[ToySink], ToyTarget], kind: type[ToySink], cell: Cell, seen: str
) -> None:
    verdict = started.strike(targets.setdefault(kind, ToyTarget(kind)), cell)
    assert verdict.missed == ""
    assert seen in verdict.violations


def test_a_late_request_that_changes_something_is_told_from_others(started: StartedTargets) -> None:
    verdict = started.strike(ToyTarget(broken.CommitsTwice), Cell(COMMIT, LATE))
    assert verdict.missed == "the late request to commit changed something"
    assert "doubled: 4" in verdict.violations


class EndsConnections(ToyTarget):
    """Once the next run has recovered."""

    def state(self) -> object:
        self.inject(Fault.SERVER_KILLED)
        self.lift(Fault.SERVER_KILLED)
        return super().state()


def test_a_late_request_that_is_not_delivered_is_none(started: StartedTargets) -> None:
    verdict = started.strike(EndsConnections(), Cell(COMMIT, LATE))
    assert verdict.late is Late.ENDED
    assert "found its connection ended" in verdict.missed


def test_a_request_that_never_came_is_no_pass(started: StartedTargets) -> None:
    verdict = started.strike(ToyTarget(requests={**REQUESTS, "commit": b"something else"}), Cell(COMMIT, LATE))
    assert verdict.late is None
    assert verdict.missed == "there was no request to commit"


def test_a_query_that_does_not_recover_is_caught(started: StartedTargets) -> None:
    with pytest.raises(DoesNotRecover, match="Once is enough"):
        started.strike(ToyTarget(broken.RefusesToStartAgain), Cell(PREPARED, KILL))

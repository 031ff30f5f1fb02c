"""Where a query can be killed, how it is brought there, and what is true of it then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phases import PHASES
from spark.desk import Hold
from spark.faults import BEGIN, HALFWAY, PREPARED, WRITTEN
from spark.harness import AnyJob
from spark.pipeline import PHASE
from sparkonce.protocol.state import Phase

FIRST = (Phase.READING.name, Phase.CLAIMING.name, Phase.SWEEPING.name, Phase.REPLAYING.name)
"""Those that only the first batch of a run goes through."""

WITHIN_TASKS = (BEGIN, WRITTEN, PREPARED)

INSIDE = (*WITHIN_TASKS, HALFWAY)
"""What lies within a phase: a worker in the middle of its task, and the driver in the middle of its commits."""

POINTS = (*(phase.name for phase in PHASES), *INSIDE)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: where it was meant to be, in which phase of which batch the driver was, what the broker had open, up to
    which batch all was decided, and how many rows of its source the run had read for batches that it decided."""

    point: str
    phase: str
    batch: int
    open: int
    decided: int
    rows: int


def hold_at(point: str, job: AnyJob, is_due: Callable[[int], bool] | None = None) -> Hold:
    """Keeps the query when it comes to a point, in a batch of which a condition is true if there is one."""

    def when(_: object) -> bool:
        now = job.phase()
        return is_due is None or (now is not None and is_due(now.told["batch"]))

    if point in INSIDE:
        return job.desk.hold(point, when=when)
    return job.desk.hold(PHASE, when=when, phase=point)


def kill_now(point: str, job: AnyJob, before: int, decided: int) -> Kill:
    """What is true of the query at this moment, in which it is to be killed.

    Args:
        point: Where it was meant to be.
        job: Its job.
        before: How many visits the desk had had when the run started.
        decided: What was decided then.
    """
    phase = next(one for one in reversed(job.desk.visits[before:]) if one.point == PHASE)
    now = job.decided()
    return Kill(
        point=point,
        phase=phase.told["phase"],
        batch=phase.told["batch"],
        open=len(job.transactions("Ongoing")),
        decided=now,
        rows=(now - decided) * job.config.rows_per_batch,
    )


def check_points(kills: Sequence[Kill], points: Sequence[str] = POINTS) -> None:
    """Sees that each of these points was hit, and that the query really was there."""
    assert set(points) - set(INSIDE) - {kill.phase for kill in kills} == set(), "phases that were never hit"
    assert set(INSIDE) & set(points) <= {kill.point for kill in kills}
    for kill in kills:
        if kill.point == Phase.DECIDING.name:
            assert kill.open > 0, f"nothing was prepared: {kill}"
            assert kill.decided < kill.batch
        if kill.point in {WRITTEN, PREPARED}:
            assert kill.open > 0, f"nothing was written: {kill}"
        if kill.point in WITHIN_TASKS:
            assert kill.decided < kill.batch, f"written although it is decided: {kill}"
        if kill.point in {Phase.FINISHING.name, HALFWAY}:
            assert kill.open > 0, f"all was committed: {kill}"
        if kill.point in {Phase.FINISHING.name, HALFWAY, Phase.SWEEPING_OWN.name, Phase.IDLE.name}:
            assert kill.decided == kill.batch, f"not decided: {kill}"


def leaves_decided(kills: Sequence[Kill]) -> bool:
    """Whether the last kill left a batch that is decided, and not done for Spark: only that is replayed."""
    return bool(kills) and kills[-1].batch == kills[-1].decided

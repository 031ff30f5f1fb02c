"""Where a query can be killed, how it is brought there, and what is true of it then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from phases import PHASES
from spark.faults import BEGIN, HALFWAY, PREPARED, WRITTEN
from spark.gate import Arrival, Hold
from spark.harness import AnyJob, start_together
from spark.pipeline import ENDED, PHASE
from spark.processes import Run
from sparkonce.protocol.state import Phase

if TYPE_CHECKING:
    from spark.targets import Rows

FIRST = (Phase.READING.name, Phase.CLAIMING.name, Phase.SWEEPING.name, Phase.REPLAYING.name)
"""Those that only the first batch of a run goes through."""

WITHIN_TASKS = (BEGIN, WRITTEN, PREPARED)

INSIDE = (*WITHIN_TASKS, HALFWAY)
"""What lies within a phase: a worker in the middle of its task, and the driver in the middle of its commits."""

POINTS = (*(phase.name for phase in PHASES), *INSIDE)


OneJob = TypeVar("OneJob", bound=AnyJob)

Cell = tuple[str, dict[str, Any]]
"""A point, and what the arrival there must tell: of which sink, batch, or slot."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the systems themselves said while a job was held, and again when it had been killed.

    Attributes:
        point: Where it was held.
        batch: In which batch.
        decided: Up to which batch all was decided.
        open: What each target held that was neither committed nor aborted.
        visible: What a reader of each target found.
        after: What he found after the kill.
    """

    point: str
    batch: int
    decided: int
    open: Mapping[str, Sequence[str]]
    visible: Mapping[str, Rows]
    after: Mapping[str, Rows]


def hold_at(point: str, job: AnyJob, is_due: Callable[[int], bool] | None = None, **told: Any) -> Hold:
    """Keeps the query when it comes to a point, in a batch of which a condition is true if there is one."""

    def when(_: object) -> bool:
        now = job.phase()
        return is_due is None or (now is not None and is_due(now.told["batch"]))

    if point in Phase.__members__:
        return job.gate.hold(PHASE, when=when, phase=point, **told)
    return job.gate.hold(point, when=when, **told)


def is_new(job: AnyJob) -> Callable[[int], bool]:
    """Whether a batch is one that nobody has decided yet."""
    due = job.decided() + 1
    return lambda batch: batch >= due


def start_held(holds: Mapping[OneJob, Hold], points: Sequence[str], log: Path, **changed: Any) -> Run:
    """Starts the jobs in one process, and waits until each is held or has ended."""
    # A query that is held within a task occupies a core.
    cores = 2 + sum(point in WITHIN_TASKS for point in points)
    before = {job: len(job.gate.at(ENDED)) for job in holds}
    run = start_together(list(holds), log, **{"master": f"local[{cores}]", **changed})
    for job, hold in holds.items():

        def is_settled(job: OneJob = job, hold: Hold = hold) -> bool:
            return bool(hold.arrivals) or len(job.gate.at(ENDED)) > before[job]

        job.gate.wait_for(is_settled, hold.words, run.check)
        hold.cancel()
    return run


def strike(cells: Mapping[OneJob, Cell], log: Path, **changed: Any) -> dict[OneJob, Sight]:
    """Starts the jobs in one process, kills it when each is held at its point, and tells what was to be seen then.

    A job that ends without coming to its point has no sight.
    """
    holds = {}
    for job, (point, told) in cells.items():
        holds[job] = hold_at(point, job, None if point in FIRST else is_new(job), **told)
    run = start_held(holds, [point for point, _ in cells.values()], log, **changed)
    sights = {}
    for job, (point, told) in cells.items():
        if holds[job].arrivals:
            if "slot" in told:
                await_other_slots(job, holds[job].arrivals[0], run)
            sights[job] = look(point, job)
    run.kill()
    return {job: replace(sight, after=job.visible()) for job, sight in sights.items()}


def await_other_slots(job: AnyJob, held: Arrival, run: Run) -> None:
    """Waits until all slots but the one that is held have prepared."""
    same = {"sink": held.told["sink"], "batch": held.told["batch"]}
    others = job.config.slots - 1
    job.gate.wait_for(lambda: len(job.gate.at(PREPARED, **same)) == others, "the other slots have prepared", run.check)


def look(point: str, job: AnyJob) -> Sight:
    phase = job.phase()
    batch = phase.told["batch"] if phase is not None else -1
    # The log is read after the rows: what is not decided then was not decided when they were seen.
    visible, opened = job.visible(), job.open()
    return Sight(point=point, batch=batch, decided=job.decided(), open=opened, visible=visible, after=visible)


def kill_now(point: str, job: AnyJob, before: int, decided: int) -> Kill:
    """What is true of the query at this moment, in which it is to be killed.

    Args:
        point: Where it was meant to be.
        job: Its job.
        before: How many arrivals there had been when the run started.
        decided: What was decided then.
    """
    phase = next(one for one in reversed(job.gate.arrivals[before:]) if one.point == PHASE)
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

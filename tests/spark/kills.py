"""Holds queries at given points, kills them there, and reports what was true at that moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from eventually import LIMIT_S
from spark.harness import AnyJob, Rows, start_together
from spark.pipeline import ENDED, PHASE, REFUSED
from spark.processes import Run
from sparkonce.protocol.state import Phase
from striking.gate import Arrival, Hold
from striking.points import BEGIN, FIRST, HALFWAY, IN_DRIVER, PREPARED, WRITTEN

WITHIN_TASKS = (BEGIN, WRITTEN, PREPARED)
INSIDE = (*WITHIN_TASKS, HALFWAY)
POINTS = (*IN_DRIVER, *INSIDE)

OneJob = TypeVar("OneJob", bound=AnyJob)

Cell = tuple[str, dict[str, Any]]
"""A point, and the details that an arrival there must report: the sink, batch or slot."""

IsDue = Callable[[int], bool]
"""Returns True if the query should be held in the given batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the systems reported while a job was held.

    Attributes:
        point: The point at which the job should have been held.
        phase: The phase of its driver.
        batch: The batch of its driver.
        decided: The last batch up to which everything was decided.
        open: The transactions of each target that were neither committed nor aborted.
        visible: What a reader of each target found, if it was queried.
        after: What the reader found after the kill.
    """

    point: str
    phase: str
    batch: int
    decided: int
    open: Mapping[str, Sequence[str]]
    visible: Mapping[str, Rows]
    after: Mapping[str, Rows]

    @property
    def is_open(self) -> bool:
        return any(self.open.values())


def hold_at(point: str, job: AnyJob, is_due: IsDue | None = None, **told: Any) -> Hold:
    """Holds the query at a point, optionally only in a batch that is due."""

    def when(_: object) -> bool:
        now = job.phase()
        return is_due is None or (now is not None and is_due(now.told["batch"]))

    if point in Phase.__members__:
        return job.gate.hold(PHASE, when=when, phase=point, **told)
    return job.gate.hold(point, when=when, **told)


def from_batch(first: int) -> IsDue:
    """Makes this batch and all later ones due."""
    return lambda batch: batch >= first


def start_held(
    holds: Mapping[OneJob, Hold],
    points: Sequence[str],
    log: Path,
    *,
    cores: int = 2,
    limit_s: float = LIMIT_S,
    **changed: Any,
) -> Run:
    """Starts the jobs in one process, and waits until each of them is held. Fails if a job ends before that.

    Args:
        holds: The jobs, with the points at which they are held.
        points: The points of these holds.
        log: The file for the output of the process.
        cores: Spark's cores, in addition to one for each query that is held within a task. Each core is a worker that
            takes time to start.
        limit_s: The maximum waiting time in seconds.
        changed: Additional fields of `Config`.
    """
    master = f"local[{cores + sum(point in WITHIN_TASKS for point in points)}]"
    before = {job: len(job.gate.at(ENDED)) for job in holds}
    run = start_together(list(holds), log, master=master, **changed)
    for job, hold in holds.items():

        def is_settled(job: OneJob = job, hold: Hold = hold) -> bool:
            return bool(hold.arrivals) or len(job.gate.at(ENDED)) > before[job]

        job.gate.wait_for(is_settled, hold.words, run.check, limit_s=limit_s)
        assert hold.arrivals, f"{hold.words} never came: {job.gate.last(REFUSED, ENDED)}"
        hold.cancel()
    return run


def strike(
    cells: Mapping[OneJob, Cell],
    log: Path,
    due: Mapping[OneJob, IsDue] | None = None,
    *,
    read: bool = True,
    **started: Any,
) -> dict[OneJob, Observation]:
    """Starts the jobs in one process, kills it when each is held at its point, and returns what was seen then.

    Args:
        cells: The jobs and their cells.
        log: The file for the output of the process.
        due: The batches in which the jobs are held. By default, the undecided ones.
        read: True to query readers as well.
        started: Additional arguments of `start_held`.
    """
    holds = {}
    for job, (point, told) in cells.items():
        is_due = (due or {}).get(job) or from_batch(job.decided() + 1)
        holds[job] = hold_at(point, job, None if point in FIRST else is_due, **told)
    run = start_held(holds, [point for point, _ in cells.values()], log, **started)
    observations = {}
    for job, (point, told) in cells.items():
        if "slot" in told:
            await_other_slots(job, holds[job].arrivals[0], run)
        observations[job] = observe(point, job, read=read)
    run.kill()
    return {job: replace(observation, after=job.visible() if read else {}) for job, observation in observations.items()}


def await_other_slots(job: AnyJob, held: Arrival, run: Run) -> None:
    """Waits until all slots but the one that is held have prepared."""
    same = {"sink": held.told["sink"], "batch": held.told["batch"]}
    others = job.config.slots - 1
    job.gate.wait_for(lambda: len(job.gate.at(PREPARED, **same)) == others, "the other slots have prepared", run.check)


def observe(point: str, job: AnyJob, *, read: bool = True) -> Observation:
    """Queries the systems, and then the log: whatever is not decided then was not decided when it was seen."""
    now = job.phase()
    phase, batch = (now.told["phase"], now.told["batch"]) if now is not None else ("", -1)
    visible, opened = job.visible() if read else {}, job.open()
    return Observation(
        point=point, phase=phase, batch=batch, decided=job.decided(), open=opened, visible=visible, after=visible
    )


def check_points(observations: Sequence[Observation], points: Sequence[str] = POINTS) -> None:
    """Checks that each of these points was reached, and that the query really was at that point."""
    assert set(points) - set(INSIDE) - {observation.phase for observation in observations} == set(), (
        "phases that were never hit"
    )
    assert set(INSIDE) & set(points) <= {observation.point for observation in observations}
    for observation in observations:
        if observation.point in {Phase.DECIDING.name, WRITTEN, PREPARED, Phase.FINISHING.name, HALFWAY}:
            assert observation.is_open, f"nothing was open, so the kill proves nothing: {observation}"
        if observation.point in {Phase.DECIDING.name, *WITHIN_TASKS}:
            assert observation.decided < observation.batch, f"decided already: {observation}"
        if observation.point in {Phase.FINISHING.name, HALFWAY, Phase.SWEEPING_OWN.name, Phase.IDLE.name}:
            assert observation.decided == observation.batch, f"not decided: {observation}"


def leaves_decided(observations: Sequence[Observation]) -> bool:
    """Returns True if the last kill left a batch that is decided but not done for Spark.

    Only such batches are replayed.
    """
    return bool(observations) and observations[-1].batch == observations[-1].decided

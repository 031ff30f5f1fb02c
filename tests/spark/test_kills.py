"""The driver is killed (SIGKILL, with its JVM and its workers) wherever it may be, and its output is counted.

The short form kills once in each phase. The long form, some half an hour, kills at least 60 times, half of them at
random times::

    pytest -m slow -s tests/spark/test_kills.py
    SPARKONCE_SEED=7 pytest -m slow -s tests/spark/test_kills.py     # the same schedule again
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark.desk import Hold, Visit
from spark.faults import BEGIN, HALFWAY, PREPARED, WRITTEN
from spark.harness import Job, Run, Verdict
from spark.pipeline import PHASE
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 100_000
LONGEST_RANDOM_S = 4.0
RANDOM = "a random time"

PHASES = (
    Phase.READING,
    Phase.CLAIMING,
    Phase.SWEEPING,
    Phase.WRITING,
    Phase.DECIDING,
    Phase.FINISHING,
    Phase.REPLAYING,
    Phase.SWEEPING_OWN,
    Phase.RAISING_FLOOR,
    Phase.TIDYING,
    Phase.IDLE,
)
"""Those that a run without losses and without at-most-once sinks goes through. A phase is told before anything is
done in it: WRITING is before the first task, DECIDING when all is prepared, FINISHING when nothing is committed yet,
SWEEPING_OWN when all is committed, IDLE before Spark itself writes down that the batch is done."""

INSIDE = (BEGIN, WRITTEN, PREPARED, HALFWAY)
"""What lies within a phase: a worker in the middle of its task, and the driver in the middle of its commits."""

POINTS = (*(phase.name for phase in PHASES), *INSIDE)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: where it was meant to be, in which phase of which batch the driver was, what the broker had open."""

    point: str
    phase: str
    batch: int
    open: int
    decided: int


def test_short_form(kafka: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills, verdicts = carry_out(kafka.bootstrap, tmp_path, POINTS, random.Random(1), told(capsys))
    judge(kills, verdicts)
    assert [kill.point for kill in kills] == list(POINTS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_long_form(kafka: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SPARKONCE_SEED") or random.SystemRandom().randrange(10**6))
    chance = random.Random(seed)
    schedule = [*POINTS * 2, *[RANDOM] * 32]
    chance.shuffle(schedule)
    say = told(capsys)
    say(f"\nSPARKONCE_SEED={seed}, {len(schedule)} kills")
    kills, verdicts = carry_out(kafka.bootstrap, tmp_path, schedule, chance, say)
    judge(kills, verdicts)
    assert len(kills) >= len(schedule) >= 60


def judge(kills: Sequence[Kill], verdicts: Sequence[Verdict]) -> None:
    assert [str(verdict) for verdict in verdicts if not verdict.is_exactly_once] == []
    assert {phase.name for phase in PHASES} - {kill.phase for kill in kills} == set(), "phases that were never hit"
    assert set(INSIDE) <= {kill.point for kill in kills}
    for kill in kills:
        if kill.point == Phase.DECIDING.name:
            assert kill.open > 0, f"nothing was prepared: {kill}"
            assert kill.decided < kill.batch
        if kill.point in {Phase.FINISHING.name, HALFWAY}:
            assert kill.open > 0, f"all was committed: {kill}"
            assert kill.decided == kill.batch


def told(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def say(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - whoever waits for the long form wants to see it

    return say


def carry_out(
    bootstrap: str, folder: Path, schedule: Sequence[str], chance: random.Random, say: Callable[[str], None]
) -> tuple[list[Kill], list[Verdict]]:
    """Kills at one point after the other, in as many jobs as that takes, and judges each job when it is done."""
    kills: list[Kill] = []
    verdicts: list[Verdict] = []
    left = list(schedule)
    while left:
        name = folder / f"job-{len(verdicts)}"
        with Job(bootstrap, name, rows=ROWS, rows_per_batch=2500, keep_batches=3, points=INSIDE) as job:
            while left:
                # Only a run that finds a decided batch replays one.
                point = left[0] if left[0] != Phase.REPLAYING.name or leaves_decided(kills) else Phase.FINISHING.name
                run = job.start()
                kill = kill_at(point, job, run, chance)
                if kill is None:  # all is written: on to the next job
                    run.finish()
                    break
                run.kill()
                kills.append(kill)
                if point == left[0]:
                    left.pop(0)
                say(f"kill {len(kills)}: {kill}")
            else:
                # What is left does not have to be done in small steps.
                job.start(rows_per_batch=20_000).finish()
            verdicts.append(job.judge())
            say(str(verdicts[-1]))
    say(table(kills, verdicts))
    return kills, verdicts


def leaves_decided(kills: Sequence[Kill]) -> bool:
    """Whether the last kill left a batch that is decided, and not done for Spark."""
    return bool(kills) and kills[-1].batch == kills[-1].decided


def kill_at(point: str, job: Job, run: Run, chance: random.Random) -> Kill | None:
    """Waits until the run is there. None if it ends before."""
    before = len(job.desk.visits)
    hold = hold_at(point, job)
    job.desk.wait_for(lambda: bool(hold.caught) or run.has_ended, f"the query is at {point!r}, or ends")
    hold.give_up()
    if not hold.caught:
        return None
    if point == RANDOM:
        hold.caught[0].answer()
        # Not to wait for anything: this is the random time.
        time.sleep(chance.uniform(0, LONGEST_RANDOM_S))
        if run.has_ended:
            return None
        run.pause()
    phase = next(one for one in reversed(job.desk.visits[before:]) if one.point == PHASE)
    return Kill(point, phase.told["phase"], phase.told["batch"], len(job.transactions("Ongoing")), job.decided())


def hold_at(point: str, job: Job) -> Hold:
    if point == RANDOM:
        return job.desk.hold(PHASE)
    decided = job.decided()

    def is_new(_: Visit) -> bool:
        """Not a batch that an older run has decided: of that all may be committed already."""
        now = job.phase()
        return now is not None and now.told["batch"] > decided

    when = is_new if point in {Phase.FINISHING.name, HALFWAY} else None
    if point in INSIDE:
        return job.desk.hold(point, when=when)
    return job.desk.hold(PHASE, when=when, phase=point)


def table(kills: Sequence[Kill], verdicts: Sequence[Verdict]) -> str:
    """Kills by phase and by how they came, and what the jobs came to."""
    at_random = Counter(kill.phase for kill in kills if kill.point == RANDOM)
    on_purpose = Counter(kill.phase for kill in kills if kill.point != RANDOM)
    lines = [
        f"{'phase':<15} {'at its':>7} {'at random':>10}",
        f"{'':<15} {'points':>7} {'times':>10}",
        *(f"{phase.name:<15} {on_purpose[phase.name]:>7} {at_random[phase.name]:>10}" for phase in PHASES),
    ]
    lines.append(f"{'all':<15} {sum(on_purpose.values()):>7} {sum(at_random.values()):>10}")
    inside = Counter(kill.point for kill in kills if kill.point in INSIDE)
    lines += [f"of these, {point}: {inside[point]}" for point in INSIDE]
    lines += [f"job {number}: {verdict}" for number, verdict in enumerate(verdicts)]
    return "\n".join(lines)

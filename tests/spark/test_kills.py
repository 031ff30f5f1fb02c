"""The driver is killed (SIGKILL, with its JVM and its workers) wherever it may be, and its output is counted.

The short form kills eight queries of one process at once, each at a point of its own, and in two rounds at every point
that there is. The long form, a quarter of an hour, kills at least 60 runs after 100,000 rows or more, most of them at
random times, and some more at points that only a run's first batch has::

    pytest -m slow -s tests/spark/test_kills.py
    SPARKONCE_SEED=7 pytest -m slow -s tests/spark/test_kills.py     # the same schedule again
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark.harness import Job, Verdict, start_together
from spark.kills import INSIDE, POINTS, Sight, check_points, from_batch, hold_at, leaves_decided, look, strike
from spark.pipeline import PHASE
from spark.processes import Run
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from striking.points import BEGIN, FIRST, HALFWAY, PHASES, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROUNDS = (
    # Each query's two kills stand one below the other: what the first leaves behind is what the next run finds.
    (
        *(Phase.READING.name, Phase.CLAIMING.name, WRITTEN, PREPARED),
        *(Phase.WRITING.name, Phase.DECIDING.name, Phase.FINISHING.name, HALFWAY),
    ),
    (
        *(Phase.SWEEPING_OWN.name, Phase.TIDYING.name, Phase.RAISING_FLOOR.name, Phase.SWEEPING.name),
        *(BEGIN, Phase.IDLE.name, Phase.REPLAYING.name, Phase.REPLAYING.name),
    ),
)

ROWS, ROWS_PER_BATCH = 3_000, 400
OFTEN = {"keep_batches": 2, "tidy_every_batches": 1}
"""The log is tidied, and its floor raised, in the third batch."""

LONG_ROWS, LONG_ROWS_PER_BATCH = 1_000_000, 25_000
BATCHES_BEFORE = 4
"""How many a run of the long form decides before it is killed."""
LONGEST_RANDOM_S = 4.0
RANDOM = "a random time"


def test_short_form(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    config: dict[str, Any] = {"rows": ROWS, "rows_per_batch": ROWS_PER_BATCH, "slots": 2, "points": INSIDE, **OFTEN}
    sights: list[Sight] = []
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(Job(kafka.bootstrap, tmp_path / f"job-{number}", **config))
            for number in range(len(ROUNDS[0]))
        ]
        for number, points in enumerate(ROUNDS):
            cells = {job: (point, {}) for job, point in zip(jobs, points, strict=True)}
            sights += strike(cells, tmp_path / f"{number}.log", read=False).values()
            say(f"killed: {sights[-len(jobs) :]}")
        # What is left does not have to be done in small steps.
        start_together(jobs, tmp_path / "last.log", rows_per_batch=ROWS).finish()
        judge(sights, [job.judge() for job in jobs])
    assert [sight.point for sight in sights] == [point for points in ROUNDS for point in points]
    assert [sight for sight in sights if sight.phase != sight.point and sight.point not in INSIDE] == []


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_long_form(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    seed = int(os.environ.get("SPARKONCE_SEED") or random.SystemRandom().randrange(10**6))
    chance = random.Random(seed)
    schedule = [*POINTS * 2, *[RANDOM] * 40]
    chance.shuffle(schedule)
    say(f"\nSPARKONCE_SEED={seed}, {len(schedule)} kills")
    kills, verdicts = carry_out(kafka.bootstrap, tmp_path, schedule, chance, say)
    judge([kill.sight for kill in kills], verdicts)
    late = [kill for kill in kills if kill.sight.point not in FIRST]
    assert len(late) >= 60
    assert [kill for kill in late if kill.rows < 100_000] == []


def judge(sights: Sequence[Sight], verdicts: Sequence[Verdict]) -> None:
    assert [str(verdict) for verdict in verdicts if not verdict.is_exactly_once] == []
    check_points(sights)


class Kill(NamedTuple):
    """A kill of the long form, and how many rows its run had read for batches that it decided."""

    sight: Sight
    rows: int


def carry_out(
    bootstrap: str, folder: Path, schedule: Sequence[str], chance: random.Random, say: Callable[[str], None]
) -> tuple[list[Kill], list[Verdict]]:
    """Kills at one point after the other, in as many jobs as that takes, and judges each job when it is done."""
    kills: list[Kill] = []
    verdicts: list[Verdict] = []
    left = list(schedule)
    config: dict[str, Any] = {
        "rows": LONG_ROWS,
        "rows_per_batch": LONG_ROWS_PER_BATCH,
        "keep_batches": 3,
        "points": INSIDE,
    }
    while left:
        with Job(bootstrap, folder / f"job-{len(verdicts)}", **config) as job:
            while left:
                # Only a run that finds a decided batch replays one.
                replays = leaves_decided([kill.sight for kill in kills])
                point = left[0] if left[0] != Phase.REPLAYING.name or replays else Phase.FINISHING.name
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
                job.start().finish()
            verdicts.append(job.judge())
            say(str(verdicts[-1]))
    say(table(kills, verdicts))
    return kills, verdicts


def kill_at(point: str, job: Job, run: Run, chance: random.Random) -> Kill | None:
    """Waits until the run is there. None if it ends before."""
    decided = job.decided()
    due = decided + 1 + BATCHES_BEFORE
    if point == RANDOM:
        hold = job.gate.hold(PHASE, when=lambda one: one.told["batch"] >= due)
    else:
        hold = hold_at(point, job, None if point in FIRST else from_batch(due))
    job.gate.wait_for(lambda: bool(hold.arrivals) or run.has_ended, f"the query is at {point!r}, or ends")
    hold.cancel()
    if not hold.arrivals:
        return None
    if point == RANDOM:
        hold.release()
        # Not to wait for anything: this is the random time.
        time.sleep(chance.uniform(0, LONGEST_RANDOM_S))
        if run.has_ended:
            return None
        run.pause()
    sight = look(point, job, read=False)
    return Kill(sight, (sight.decided - decided) * job.config.rows_per_batch)


def table(kills: Sequence[Kill], verdicts: Sequence[Verdict]) -> str:
    """Kills by phase and by how they came, and what the jobs came to."""
    at_random = Counter(kill.sight.phase for kill in kills if kill.sight.point == RANDOM)
    on_purpose = Counter(kill.sight.phase for kill in kills if kill.sight.point != RANDOM)
    lines = [
        f"{'phase':<15} {'at its':>7} {'at random':>10}",
        f"{'':<15} {'points':>7} {'times':>10}",
        *(f"{phase.name:<15} {on_purpose[phase.name]:>7} {at_random[phase.name]:>10}" for phase in PHASES),
    ]
    lines.append(f"{'all':<15} {sum(on_purpose.values()):>7} {sum(at_random.values()):>10}")
    inside = Counter(kill.sight.point for kill in kills if kill.sight.point in INSIDE)
    lines += [f"of these, {point}: {inside[point]}" for point in INSIDE]
    written = sorted(kill.rows for kill in kills if kill.sight.point not in FIRST)
    lines.append(f"rows of a run before its kill: {written[0]:,} to {written[-1]:,}")
    lines += [f"job {number}: {verdict}" for number, verdict in enumerate(verdicts)]
    return "\n".join(lines)

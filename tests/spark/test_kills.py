"""The driver is killed (SIGKILL, with its JVM and its workers) wherever it may be, and its output is counted.

The short form kills once in each phase. The long form, a quarter of an hour, kills at least 60 runs after 100,000 rows
or more, most of them at random times, and some more at points that only a run's first batch has::

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

from spark.faults import HALFWAY
from spark.harness import Job, Verdict
from spark.kills import FIRST, INSIDE, PHASES, POINTS, Kill, check_points, hold_at, kill_now, leaves_decided
from spark.pipeline import PHASE
from spark.processes import Run
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LONGEST_RANDOM_S = 4.0
RANDOM = "a random time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How much is written.

    Attributes:
        rows: Different rows of a job, a fifth of which comes twice.
        rows_per_batch: Of the source.
        batches_before: Batches that a run decides before it is killed.
    """

    rows: int
    rows_per_batch: int
    batches_before: int


SHORT = Form(rows=100_000, rows_per_batch=2_500, batches_before=0)
LONG = Form(rows=1_000_000, rows_per_batch=25_000, batches_before=4)


def test_short_form(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    kills, verdicts = carry_out(kafka.bootstrap, tmp_path, SHORT, POINTS, random.Random(1), say)
    judge(kills, verdicts)
    assert [kill.point for kill in kills] == list(POINTS)


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_long_form(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    seed = int(os.environ.get("SPARKONCE_SEED") or random.SystemRandom().randrange(10**6))
    chance = random.Random(seed)
    schedule = [*POINTS * 2, *[RANDOM] * 40]
    chance.shuffle(schedule)
    say(f"\nSPARKONCE_SEED={seed}, {len(schedule)} kills")
    kills, verdicts = carry_out(kafka.bootstrap, tmp_path, LONG, schedule, chance, say)
    judge(kills, verdicts)
    late = [kill for kill in kills if kill.point not in FIRST]
    assert len(late) >= 60
    assert [kill for kill in late if kill.rows < 100_000] == []


def judge(kills: Sequence[Kill], verdicts: Sequence[Verdict]) -> None:
    assert [str(verdict) for verdict in verdicts if not verdict.is_exactly_once] == []
    check_points(kills)


def carry_out(
    bootstrap: str,
    folder: Path,
    form: Form,
    schedule: Sequence[str],
    chance: random.Random,
    say: Callable[[str], None],
) -> tuple[list[Kill], list[Verdict]]:
    """Kills at one point after the other, in as many jobs as that takes, and judges each job when it is done."""
    kills: list[Kill] = []
    verdicts: list[Verdict] = []
    left = list(schedule)
    while left:
        name = folder / f"job-{len(verdicts)}"
        with Job(
            bootstrap, name, rows=form.rows, rows_per_batch=form.rows_per_batch, keep_batches=3, points=INSIDE
        ) as job:
            while left:
                # Only a run that finds a decided batch replays one.
                point = left[0] if left[0] != Phase.REPLAYING.name or leaves_decided(kills) else Phase.FINISHING.name
                run = job.start()
                kill = kill_at(point, job, run, form, chance)
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
                job.start(rows_per_batch=max(20_000, form.rows_per_batch)).finish()
            verdicts.append(job.judge())
            say(str(verdicts[-1]))
    say(table(kills, verdicts))
    return kills, verdicts


def kill_at(point: str, job: Job, run: Run, form: Form, chance: random.Random) -> Kill | None:
    """Waits until the run is there. None if it ends before."""
    before, decided = len(job.desk.visits), job.decided()
    due = decided + 1 + form.batches_before

    def is_due(batch: int) -> bool:
        """Not in a batch that an older run has decided: of that all may be committed already."""
        return batch >= due

    waits = point in {Phase.FINISHING.name, HALFWAY} or (form.batches_before and point not in FIRST)
    if point == RANDOM:
        hold = job.desk.hold(PHASE, when=lambda visit: not waits or is_due(visit.told["batch"]))
    else:
        hold = hold_at(point, job, is_due if waits else None)
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
    return kill_now(point, job, before, decided)


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
    written = sorted(kill.rows for kill in kills if kill.point not in FIRST)
    lines.append(f"rows of a run before its kill: {written[0]:,} to {written[-1]:,}")
    lines += [f"job {number}: {verdict}" for number, verdict in enumerate(verdicts)]
    return "\n".join(lines)

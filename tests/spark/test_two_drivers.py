"""Two drivers on one checkpoint: one is cut off or stopped for a while, another takes over, and the first wakes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.faults import WRITTEN
from spark.harness import Job
from spark.pipeline import ENDED, PHASE, REFUSED
from spark.processes import eventually
from sparkonce.embedded import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 20_000
BATCH = 1

SUPERSEDED = "SupersededError"
BY_SPARK = "oncurrent"
"""Spark's own words, where the newer driver has already written into Spark's logs what the older one wants to write."""


@pytest.mark.parametrize(
    ("phase", "stopped_by"),
    [
        ("DECIDING", SUPERSEDED),
        ("FINISHING", BY_SPARK),
        pytest.param("CLAIMING", SUPERSEDED, marks=pytest.mark.slow),
        pytest.param("WRITING", SUPERSEDED, marks=pytest.mark.slow),
        pytest.param("SWEEPING_OWN", BY_SPARK, marks=pytest.mark.slow),
        pytest.param("IDLE", BY_SPARK, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_wakes_up_after_another_has_taken_over(
    kafka: Cluster, tmp_path: Path, phase: str, stopped_by: str
) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS) as job:
        batch = 0 if phase == "CLAIMING" else BATCH
        hold = job.desk.hold(PHASE, phase=phase, batch=batch)
        first = job.start()
        hold.wait(first.check)
        first.pause()
        hold.caught[0].answer()  # which it will find when it wakes up

        job.start().finish()
        first.resume()
        assert first.wait() == 1
        assert stopped_by in why_it_ended(job, first.pid)
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_two_drivers_at_work_at_the_same_time(kafka: Cluster, tmp_path: Path) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, rows_per_batch=1_000) as job:
        first = job.start()
        one_batch = job.desk.hold(PHASE, phase="IDLE", batch=0)
        one_batch.wait(first.check)
        second = job.start()
        claiming = job.desk.hold(PHASE, phase="CLAIMING")
        claiming.wait(second.check)
        # Both have read the same log. From now on they do what they like.
        one_batch.caught[0].answer()
        claiming.caught[0].answer()
        assert first.wait() == 1
        assert SUPERSEDED in why_it_ended(job, first.pid) or BY_SPARK in why_it_ended(job, first.pid)
        ended = second.wait()
        if ended:  # Spark may stop either of the two, or both
            assert BY_SPARK in why_it_ended(job, second.pid) or "FileAlreadyExists" in why_it_ended(job, second.pid)
            job.start().finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_workers_that_outlive_their_driver_write_into_nothing(kafka: Cluster, tmp_path: Path) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, points=(WRITTEN,)) as job:
        hold = job.desk.hold(WRITTEN, batch=BATCH, times=2)
        first = job.start()
        job.desk.wait_for(lambda: len(hold.caught) == 2, "two workers are in the middle of their task", first.check)
        zombies = [one.pid for one in hold.caught]
        opened = set(job.transactions("Ongoing"))
        assert len(opened) >= 2
        first.kill(spare=zombies)

        swept = job.desk.hold(PHASE, phase="WRITING", batch=BATCH)
        second = job.start(points=())
        swept.wait(second.check)
        assert not opened & set(job.transactions("Ongoing")), "the new driver has swept before it writes"
        # They wake up while the batch is written again, and send the rest of their rows.
        for one in hold.caught:
            one.answer()
        swept.caught[0].answer()
        second.finish()
        eventually(lambda: not alive(zombies), "the orphans have ended")
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def why_it_ended(job: Job, pid: int) -> str:
    """All that the run said about it: an error of ours, and what Spark made of it."""
    said = [one for one in [*job.desk.at(REFUSED), *job.desk.at(ENDED)] if one.pid == pid]
    return "\n".join(str(one.told) for one in said)

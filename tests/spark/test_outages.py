"""The broker is restarted, crashes, or stays away, while batches are at each step of their commit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafka_transactions import await_markers
from spark.harness import Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED
from sparkonce_lab.rig.kafka import Cluster
from striking.gate import Hold
from striking.points import HALFWAY, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROWS, ROWS_PER_BATCH = 1_000, 400
POINTS = ("CLAIMING", "SWEEPING", "WRITING", WRITTEN, "DECIDING", "FINISHING", HALFWAY, "SWEEPING_OWN", "IDLE")


def new_job(kafka: Cluster, folder: Path) -> Job:
    return Job(kafka.bootstrap, folder, rows=ROWS, rows_per_batch=ROWS_PER_BATCH, points=(WRITTEN, HALFWAY))


def test_a_broker_that_is_restarted_between_prepare_and_commit(kafka: Cluster, tmp_path: Path) -> None:
    with new_job(kafka, tmp_path / "job") as job:
        prepared = hold_at("DECIDING", job, batch=0)
        decided = hold_at("FINISHING", job, batch=1)
        run = job.start(points=(HALFWAY,))
        prepared.wait(run.check)
        kafka.brokers[0].restart()
        prepared.release()

        decided.wait(run.check)
        halfway = hold_at(HALFWAY, job)
        kill(kafka, [job])
        kafka.brokers[0].start()
        decided.release()

        halfway.wait(run.check)
        kill(kafka, [job])
        kafka.brokers[0].start()
        halfway.release()
        run.finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_a_broker_that_is_away_for_ten_seconds(kafka: Cluster, tmp_path: Path) -> None:
    outage(kafka, tmp_path, [WRITTEN, "FINISHING", HALFWAY], seconds=10)


@pytest.mark.timeout(1800)
def test_a_broker_that_is_away_for_a_minute_in_each_phase(kafka: Cluster, tmp_path: Path) -> None:
    outage(kafka, tmp_path, POINTS, seconds=60)


def kill(kafka: Cluster, jobs: Iterable[Job]) -> None:
    """Kills the broker (SIGKILL) when it has written the markers of what it has answered."""
    for job in jobs:
        await_markers(kafka.bootstrap, job.query)
    kafka.brokers[0].kill()


def outage(kafka: Cluster, folder: Path, points: Sequence[str], *, seconds: float) -> None:
    """Takes the broker away while queries are held, each at one of the points.

    A query may give up meanwhile, for Spark's own source asks the broker, too: then the next run goes on.
    """
    with ExitStack() as stack:
        jobs = {point: stack.enter_context(new_job(kafka, folder / str(n))) for n, point in enumerate(points)}
        holds = {job: hold_at(point, job) for point, job in jobs.items()}
        run = start_held(holds, points, folder / "struck.log")
        next_batches = {job: hold_at("IDLE", job) for job in holds}
        kill(kafka, holds)
        for hold in holds.values():
            hold.release()
        time.sleep(seconds)  # nothing is waited for: this is how long the broker is away
        kafka.brokers[0].start()
        for job, hold in next_batches.items():

            def has_gone_on(job: Job = job, hold: Hold = hold) -> bool:
                return bool(hold.arrivals or job.gate.at(ENDED)) or run.has_ended

            job.gate.wait_for(has_gone_on, "the query has gone on, or given up")
        run.kill()
        start_together(list(holds), folder / "last.log").finish()
        for point, job in jobs.items():
            verdict = job.judge()
            assert verdict.is_exactly_once, f"{point}: {verdict}"

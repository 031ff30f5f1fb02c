"""The broker is restarted, crashes, or stays away, while a batch is at each step of its commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark.faults import HALFWAY, WRITTEN
from spark.harness import Job
from spark.pipeline import PHASE
from sparkonce.embedded import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 20_000
INSIDE = (WRITTEN, HALFWAY)
POINTS = ("CLAIMING", "SWEEPING", "WRITING", WRITTEN, "DECIDING", "FINISHING", HALFWAY, "SWEEPING_OWN", "IDLE")


def test_a_broker_that_is_restarted_between_prepare_and_commit(kafka: Cluster, tmp_path: Path) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, points=(HALFWAY,)) as job:
        prepared = job.desk.hold(PHASE, phase="DECIDING", batch=0)
        decided = job.desk.hold(PHASE, phase="FINISHING", batch=1)
        run = job.start()
        prepared.wait(run.check)
        kafka.brokers[0].restart()
        prepared.caught[0].answer()

        decided.wait(run.check)
        halfway = job.desk.hold(HALFWAY)
        kafka.brokers[0].kill()
        kafka.brokers[0].start()
        decided.caught[0].answer()

        halfway.wait(run.check)
        kafka.brokers[0].kill()
        kafka.brokers[0].start()
        halfway.caught[0].answer()
        run.finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


@pytest.mark.parametrize("point", [WRITTEN, "FINISHING"])
def test_a_broker_that_is_away_for_ten_seconds(kafka: Cluster, tmp_path: Path, point: str) -> None:
    outages(kafka, tmp_path, [point], seconds=10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_broker_that_is_away_for_a_minute_in_each_phase(kafka: Cluster, tmp_path: Path) -> None:
    outages(kafka, tmp_path, POINTS, seconds=60)


def outages(kafka: Cluster, folder: Path, points: Sequence[str], *, seconds: float) -> None:
    """Takes the broker away at one point after the other, each in a run of its own.

    A run may give up meanwhile, for Spark's own source asks the broker, too: then the next one goes on.
    """
    with Job(kafka.bootstrap, folder / "job", rows=ROWS, rows_per_batch=2_000, points=INSIDE) as job:
        for point in points:
            hold = job.desk.hold(point) if point in INSIDE else job.desk.hold(PHASE, phase=point)
            run = job.start()
            hold.wait(run.check)
            kafka.brokers[0].kill()
            hold.caught[0].answer()
            time.sleep(seconds)  # nothing is waited for: this is how long the broker is away
            kafka.brokers[0].start()
            next_batch = job.desk.hold(PHASE, phase="IDLE")
            job.desk.wait_for(
                lambda held=next_batch, of=run: bool(held.caught) or of.has_ended, "it has gone on, or given up"
            )
            next_batch.give_up()
            run.kill()
        job.start().finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict

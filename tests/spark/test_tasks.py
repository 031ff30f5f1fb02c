"""Tasks that Spark runs twice, or considers dead although they are alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.standalone import Standalone
from eventually import eventually
from spark.harness import Job
from spark.processes import kill_executor
from sparkonce_lab.rig.kafka import Cluster
from startup import JVM_FLAGS
from striking.points import PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROWS, ROWS_PER_BATCH = 2_000, 500


def new_job(kafka: Cluster, folder: Path, **config: Any) -> Job:
    return Job(kafka.bootstrap, folder, rows=ROWS, rows_per_batch=ROWS_PER_BATCH, **config)


SMALL = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": JVM_FLAGS}
"""Executors are processes on two hosts, since only then does Spark run speculative tasks or lose an executor."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def test_the_loser_of_a_speculative_execution_leaves_nothing_behind(
    kafka: Cluster, cluster: Standalone, tmp_path: Path
) -> None:
    eager = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    points = (WRITTEN, PREPARED)
    with new_job(kafka, tmp_path / "job", master=cluster.url, spark={**SMALL, **eager}, points=points) as job:
        slow = job.gate.hold(WRITTEN, batch=1, slot=0, attempt=0)
        run = job.start()
        slow.wait(run.check)
        job.gate.wait_for(
            lambda: bool(job.gate.at(PREPARED, batch=1, slot=0, attempt=1)), "the other copy has won", run.check
        )
        slow.release()
        run.finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_a_worker_that_outlives_its_executor_writes_into_nothing(
    kafka: Cluster, cluster: Standalone, tmp_path: Path
) -> None:
    def transactions_of(job: Job) -> set[tuple[str, int, int]]:
        return {(name, one.producer_id, one.producer_epoch) for name, one in job.transactions("Ongoing").items()}

    points = (WRITTEN, PREPARED)
    never = {"sweep_every_s": 3600.0}
    with new_job(kafka, tmp_path / "job", master=cluster.url, spark=SMALL, points=points, query=never) as job:
        hold = job.gate.hold(WRITTEN, batch=1, slot=0, attempt=0)
        run = job.start()
        orphan = hold.wait(run.check).pid
        job.gate.wait_for(lambda: bool(job.gate.at(PREPARED, batch=1)), "the other executor is at work", run.check)
        opened = transactions_of(job)
        kill_executor(orphan)
        job.gate.wait_for(lambda: bool(job.gate.at(PREPARED, batch=3)), "the query has gone on without it", run.check)
        # Because Spark ran the stage again, the run aborts what the attempt left open without waiting for the next
        # sweep.
        assert not opened & transactions_of(job)
        hold.release()
        run.finish()
        eventually(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan has ended")
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict

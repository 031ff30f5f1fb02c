"""A query on a standalone cluster: executors, workers and drivers are lost, and no row is missing or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.job import ClusterJob
from cluster.standalone import Standalone
from eventually import eventually
from spark.kills import hold_at
from spark.pipeline import ENDED
from spark.processes import kill_executor
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from striking.points import WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

ROWS, ROWS_PER_BATCH = 600, 200
LIMIT_S = 400.0

COME_AND_GO = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "3",
}


def test_an_executor_is_lost_and_the_driver_moves(
    kafka: Cluster, spark_cluster: Standalone, shared: Path, tmp_path: Path
) -> None:
    """The driver dies with a decided batch, and is started by another user, elsewhere."""
    with ClusterJob(
        kafka.bootstrap, tmp_path, spark_cluster, shared, rows=ROWS, rows_per_batch=ROWS_PER_BATCH, points=(WRITTEN,)
    ) as job:
        lost = job.gate.hold(WRITTEN, batch=1)
        finishing = hold_at(Phase.FINISHING.name, job, lambda batch: batch == 1)
        run = job.start()
        kill_executor(lost.wait(run.check).pid)
        finishing.wait(run.check)
        assert job.transactions("Ongoing")
        run.kill()
        lost.release()
        job.start(job.elsewhere(1)).finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_executors_come_and_go(kafka: Cluster, spark_cluster: Standalone, shared: Path, tmp_path: Path) -> None:
    with ClusterJob(
        kafka.bootstrap, tmp_path, spark_cluster, shared, rows=ROWS, rows_per_batch=ROWS_PER_BATCH, spark=COME_AND_GO
    ) as job:
        idle = [hold_at(Phase.IDLE.name, job, lambda batch, n=n: batch == n) for n in (0, 1)]
        before = spark_cluster.ever_started()
        run = job.start()
        for hold in idle:
            hold.wait(run.check)
            eventually(lambda: not spark_cluster.executors(), "all executors are gone")
            hold.release()
        run.finish(limit_s=LIMIT_S)
        assert spark_cluster.ever_started() - before >= len(idle) + 1
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_a_driver_that_runs_on_a_worker_is_lost_with_it(
    kafka: Cluster, spark_cluster: Standalone, shared: Path, tmp_path: Path
) -> None:
    """In cluster mode: the master starts it on another worker."""
    with ClusterJob(kafka.bootstrap, tmp_path, spark_cluster, shared, rows=ROWS, rows_per_batch=ROWS_PER_BATCH) as job:
        finishing = hold_at(Phase.FINISHING.name, job, lambda batch: batch == 1)
        job.submit_to_a_worker().finish()  # it does not wait for the driver
        finishing.wait(limit_s=LIMIT_S)
        (lost,) = [worker for worker in spark_cluster.workers if worker.processes("DriverWrapper")]
        lost.kill()
        job.gate.wait_for(lambda: bool(job.gate.at(ENDED)), "another driver has written all", limit_s=LIMIT_S)
        (ended,) = job.gate.at(ENDED)
        assert (ended.told["failed"], ended.pid == finishing.arrivals[0].pid) == ("", False)
        lost.start()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict

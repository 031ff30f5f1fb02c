"""A query on a standalone cluster loses executors, workers and drivers. No row is missing or duplicated."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.standalone import Standalone
from cluster.submit import OTHER_USER, PROGRAM, Machine, Submitted, open_folder, submit_words
from eventually import eventually
from spark.harness import Job, hold_at, kill_executor, new_name
from spark.pipeline import ENDED
from sparkonce_lab.rig.kafka import Cluster
from startup import JVM_FLAGS
from striking.points import PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

LIMIT_S = 400.0


class ClusterJob(Job):
    """A job of four batches on a standalone cluster. Its checkpoint is in the folder that all machines share."""

    def __init__(
        self,
        kafka: Cluster,
        folder: Path,
        cluster: Standalone,
        shared: Path,
        *,
        spark: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": JVM_FLAGS,
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "true",
            "spark.hadoop.fs.permissions.umask-mode": "002",
            **(spark or {}),
        }
        where = {"master": cluster.url, "checkpoint": str(shared / new_name("checkpoint")), "spark": settings}
        super().__init__(kafka.bootstrap, folder, rows=600, rows_per_batch=200, **where, **more)
        self._machines = ExitStack()

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)
        self._machines.close()

    def start(self, machine: Machine | None = None, **changed: Any) -> Submitted:
        """Submits the query in client mode, on the given machine or on the master's."""
        machine = machine or Machine()
        where = {"spark.driver.host": machine.host, "spark.driver.bindAddress": machine.host}
        temporary, settings = machine.folder or self.config.temporary, {**self.config.spark, **where}
        config = replace(self.config, temporary=temporary, spark=settings, **changed)
        command = [*submit_words(config), PROGRAM, config.to_json()]
        self.runs.append(Submitted(temporary, self.folder / f"run-{len(self.runs)}.log", machine, command))
        return self.runs[-1]

    def submit_to_a_worker(self) -> Submitted:
        """Submits the query in cluster mode: a worker runs its driver, and the master restarts it when it is lost.

        Spark rejects Python programs there, but accepts the class that runs one. It requires a jar, which can be any.
        """
        command = [*submit_words(self.config, cluster_mode=True), self.config.jars[0]]
        command += [PROGRAM, "", self.config.to_json()]
        return Submitted(self.config.temporary, self.folder / "submit.log", Machine(), command)

    def elsewhere(self) -> Machine:
        """Another machine, with a different address, working folder, home and user."""
        folder = self._machines.enter_context(open_folder(OTHER_USER))
        return Machine(host="127.0.1.1", folder=str(folder), user=OTHER_USER)


def test_an_executor_is_lost_and_the_driver_moves(kafka, spark_cluster, shared, tmp_path):
    """The driver dies with a decided batch, and is started elsewhere by another user."""
    with ClusterJob(kafka, tmp_path, spark_cluster, shared, points=(WRITTEN,)) as job:
        lost = job.gate.hold(WRITTEN, batch=1)
        finishing = hold_at("FINISHING", job, batch=1)
        run = job.start()
        kill_executor(lost.wait(run.check).pid)
        finishing.wait(run.check)
        assert job.transactions("Ongoing")
        run.kill()
        lost.release()
        job.start(job.elsewhere()).finish()
        assert job.judge() == ""


def test_executors_come_and_go(kafka, spark_cluster, shared, tmp_path):
    come_and_go = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "3",
    }
    with ClusterJob(kafka, tmp_path, spark_cluster, shared, spark=come_and_go) as job:
        idle = [hold_at("IDLE", job, batch=batch) for batch in (0, 1)]
        before = spark_cluster.ever_started()
        run = job.start()
        for hold in idle:
            hold.wait(run.check)
            eventually(lambda: not spark_cluster.executors(), "all executors are gone")
            hold.release()
        run.finish(limit_s=LIMIT_S)
        assert spark_cluster.ever_started() - before >= len(idle) + 1
        assert job.judge() == ""


def test_a_driver_that_runs_on_a_worker_is_lost_with_it(kafka, spark_cluster, shared, tmp_path):
    """In cluster mode: the master starts it on another worker."""
    with ClusterJob(kafka, tmp_path, spark_cluster, shared) as job:
        finishing = hold_at("FINISHING", job, batch=1)
        job.submit_to_a_worker().finish()  # it does not wait for the driver
        finishing.wait(limit_s=LIMIT_S)
        (lost,) = [worker for worker in spark_cluster.workers if worker.processes("DriverWrapper")]
        lost.kill()
        job.gate.wait_for(lambda: bool(job.gate.at(ENDED)), "another driver has written all", limit_s=LIMIT_S)
        (ended,) = job.gate.at(ENDED)
        assert (ended.told["failed"], ended.pid == finishing.arrivals[0].pid) == ("", False)
        lost.start()
        assert job.judge() == ""


# --- tasks that Spark runs twice, or considers dead although they are alive -------------------------------------------


def test_the_loser_of_a_speculative_execution_leaves_nothing_behind(kafka, spark_cluster, shared, tmp_path):
    eager = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with ClusterJob(kafka, tmp_path, spark_cluster, shared, spark=eager, points=(WRITTEN, PREPARED)) as job:
        slow = job.gate.hold(WRITTEN, batch=1, slot=0, attempt=0)
        run = job.start()
        slow.wait(run.check)
        job.gate.wait_for(
            lambda: bool(job.gate.at(PREPARED, batch=1, slot=0, attempt=1)), "the other copy has won", run.check
        )
        slow.release()
        run.finish()
        assert job.judge() == ""


def test_a_worker_that_outlives_its_executor_writes_into_nothing(kafka, spark_cluster, shared, tmp_path):
    def transactions_of(job: Job) -> set[tuple[str, int, int]]:
        return {(name, one.producer_id, one.producer_epoch) for name, one in job.transactions("Ongoing").items()}

    given: dict[str, Any] = {"points": (WRITTEN, PREPARED), "query": {"sweep_every_s": 3600.0}}
    with ClusterJob(kafka, tmp_path, spark_cluster, shared, **given) as job:
        hold = job.gate.hold(WRITTEN, batch=1, slot=0, attempt=0)
        run = job.start()
        orphan = hold.wait(run.check).pid
        job.gate.wait_for(lambda: bool(job.gate.at(PREPARED, batch=1)), "the other executor is at work", run.check)
        opened = transactions_of(job)
        kill_executor(orphan)
        job.gate.wait_for(lambda: bool(job.gate.at(PREPARED, batch=3)), "the query has gone on without it", run.check)
        # Because Spark reran the stage, the run aborts the transaction that the attempt left open, without waiting for
        # the next sweep.
        assert not opened & transactions_of(job)
        hold.release()
        run.finish()
        eventually(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan has ended")
        assert job.judge() == ""

"""A query on a standalone cluster: executors, workers and drivers are lost, and no row is missing or duplicated."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.standalone import Standalone
from cluster.stores import GROUP_WRITES, OTHER_USER, open_folder
from cluster.submit import PROGRAM, Machine, Submitted, submit_words
from eventually import eventually
from spark.harness import Job, new_name
from spark.kills import hold_at
from spark.pipeline import ENDED, PHASE
from spark.processes import kill_executor
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.state import Phase
from sparkonce_lab.rig.kafka import Cluster
from startup import JVM_FLAGS
from striking.points import WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]


DECIDED = (Phase.FINISHING.name, Phase.SWEEPING_OWN.name, Phase.IDLE.name)
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM_FLAGS,
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
}


class ClusterJob(Job):
    """A job on a standalone cluster.

    Args:
        bootstrap: The brokers.
        folder: A new folder.
        cluster: The cluster that it runs on.
        shared: A folder for its checkpoint that all machines share.
        spark: Additional Spark settings.
        more: Additional arguments of `Job`.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        cluster: Standalone,
        shared: Path,
        *,
        spark: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        settings = {**SMALL, **GROUP_WRITES, **(spark or {})}
        checkpoint = f"file://{shared}/{new_name('checkpoint')}"
        super().__init__(bootstrap, folder, master=cluster.url, checkpoint=checkpoint, spark=settings, **more)
        self._machines = ExitStack()

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)
        self._machines.close()

    def start(self, machine: Machine | None = None, **changed: Any) -> Submitted:
        """Submits the query in client mode.

        Args:
            machine: The machine to start it on; by default, the master's.
            changed: Additional fields of `Config` for this start.
        """
        machine = machine or Machine()
        config = replace(self.config, **changed)
        where = {"spark.driver.host": machine.host, "spark.driver.bindAddress": machine.host}
        temporary = machine.folder or config.temporary
        config = replace(config, temporary=temporary, spark={**config.spark, **where})
        command = [*submit_words(config), PROGRAM, config.to_json()]
        self.runs.append(Submitted(config.temporary, self.folder / f"run-{len(self.runs)}.log", machine, command))
        return self.runs[-1]

    def submit_to_a_worker(self) -> Submitted:
        """Submits the query in cluster mode: a worker runs its driver, and the master restarts it when it is lost.

        Spark refuses Python programs there, but accepts the class that runs one. It requires a jar, which can be any.
        """
        command = [*submit_words(self.config, cluster_mode=True), self.config.jars[0]]
        command += [PROGRAM, "", self.config.to_json()]
        return Submitted(self.config.temporary, self.folder / "submit.log", Machine(), command)

    def elsewhere(self, number: int) -> Machine:
        """Another machine, with a different address, working folder, home and user."""
        folder = self._machines.enter_context(open_folder(OTHER_USER))
        return Machine(host=f"127.0.1.{number}", folder=str(folder), user=OTHER_USER)

    @property
    def query(self) -> str:
        text = Path(self.config.checkpoint.removeprefix("file://"), "metadata").read_text()
        return short_query(str(json.loads(text)["id"]))

    def decided(self) -> int:
        """The last batch that a driver reported as decided before it committed any of it, or -1."""
        last = self.gate.at(PHASE)
        return max((one.told["batch"] for one in last if one.told["phase"] in DECIDED), default=-1)


ROWS, ROWS_PER_BATCH = 600, 200
LIMIT_S = 400.0


def test_an_executor_is_lost_and_the_driver_moves(
    kafka: Cluster, spark_cluster: Standalone, shared: Path, tmp_path: Path
) -> None:
    """The driver dies with a decided batch, and is started elsewhere by another user."""
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
    come_and_go = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "3",
    }
    with ClusterJob(
        kafka.bootstrap, tmp_path, spark_cluster, shared, rows=ROWS, rows_per_batch=ROWS_PER_BATCH, spark=come_and_go
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

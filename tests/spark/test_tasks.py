"""Tasks that die, fail, are run twice, or are taken for dead and are not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.desk import DIE, FAIL
from spark.faults import BEGIN, OPENED, PREPARED, WRITTEN
from spark.harness import Job
from spark.pipeline import PHASE, REFUSED
from spark.processes import eventually, kill_executor
from spark.standalone import Standalone
from spark.startup import JVM_FLAGS
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 20_000
FOUR_TRIES = "local[2,4]"


def test_tasks_that_die_or_fail_are_tried_again(kafka: Cluster, tmp_path: Path) -> None:
    points = (OPENED, WRITTEN, PREPARED)
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, master=FOUR_TRIES, points=points) as job:
        killed = job.desk.hold(WRITTEN, batch=0, slot=1)
        dying = job.desk.hold(PREPARED, batch=1, slot=2)
        failing = job.desk.hold(WRITTEN, batch=2, slot=3)
        failing_again = job.desk.hold(OPENED, batch=2, slot=3, attempt=1)
        run = job.start()
        os.kill(killed.wait(run.check).pid, signal.SIGKILL)  # as the kernel does when memory is short
        dying.wait(run.check).answer(DIE)  # after it has prepared
        failing.wait(run.check).answer(FAIL)
        failing_again.wait(run.check).answer(FAIL)
        run.finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        tries = {(batch, slot): len(job.desk.at(OPENED, batch=batch, slot=slot)) for batch, slot in ((0, 1), (1, 2))}
        assert tries == {(0, 1): 2, (1, 2): 2}
        assert [one.told["attempt"] for one in job.desk.at(PREPARED, batch=2, slot=3)] == [2]


def test_a_task_that_fails_too_often_stops_the_query_and_leaves_nothing_behind(kafka: Cluster, tmp_path: Path) -> None:
    points = (BEGIN, OPENED, WRITTEN)
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, points=points) as job:
        failing = job.desk.hold(WRITTEN, batch=1, slot=0)
        late = job.desk.hold(BEGIN, batch=1, slot=1)
        run = job.start()
        failing.wait(run.check)
        late.wait(run.check)
        # Spark does not wait for the other tasks of a job that failed: this one would begin after the sweep.
        aborting = job.desk.hold(PHASE, phase=Phase.ABORTING.name)
        failing.caught[0].answer(FAIL)
        aborting.wait(run.check)
        late.caught[0].answer()
        aborting.caught[0].answer()
        assert run.wait() == 1
        refused = job.desk.last(REFUSED)
        assert refused is not None
        assert (refused.told["kind"], refused.told["batch"]) == ("PrepareError", 1)
        assert f"InjectedError: told to fail at: {WRITTEN}" in refused.told["message"]
        assert job.decided() == 0
        assert not job.desk.at(OPENED, batch=1, slot=1)
        assert job.transactions("Ongoing") == {}
        job.start().finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


SMALL = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": JVM_FLAGS}
"""Executors are processes of their own on two hosts: only there does Spark run speculative copies, or lose one."""

EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def test_the_loser_of_a_speculative_execution_leaves_nothing_behind(
    kafka: Cluster, cluster: Standalone, tmp_path: Path
) -> None:
    points = (WRITTEN, PREPARED)
    with Job(
        kafka.bootstrap, tmp_path / "job", rows=ROWS, master=cluster.url, spark={**SMALL, **EAGER}, points=points
    ) as job:
        slow = job.desk.hold(WRITTEN, batch=1, slot=0, attempt=0)
        run = job.start()
        slow.wait(run.check)
        job.desk.wait_for(
            lambda: bool(job.desk.at(PREPARED, batch=1, slot=0, attempt=1)), "the other copy has won", run.check
        )
        slow.caught[0].answer()
        run.finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_a_worker_that_outlives_its_executor_writes_into_nothing(
    kafka: Cluster, cluster: Standalone, tmp_path: Path
) -> None:
    points = (WRITTEN, PREPARED)
    never = {"sweep_every_s": 3600.0}
    with Job(
        kafka.bootstrap, tmp_path / "job", rows=ROWS, master=cluster.url, spark=SMALL, points=points, query=never
    ) as job:
        hold = job.desk.hold(WRITTEN, batch=1, slot=0, attempt=0)
        run = job.start()
        orphan = hold.wait(run.check).pid
        job.desk.wait_for(lambda: bool(job.desk.at(PREPARED, batch=1)), "the other executor is at work", run.check)
        opened = _open(job)
        kill_executor(orphan)
        job.desk.wait_for(lambda: bool(job.desk.at(PREPARED, batch=3)), "the query has gone on without it", run.check)
        # What it left open is aborted by the run itself, without waiting for its turn: Spark ran the stage again.
        assert not opened & _open(job)
        hold.caught[0].answer()
        run.finish()
        eventually(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan has ended")
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def _open(job: Job) -> set[tuple[str, int, int]]:
    """The query's open transactions. A worker's id alone comes again, with the next epoch, in a later batch."""
    return {(name, one.producer_id, one.producer_epoch) for name, one in job.transactions("Ongoing").items()}

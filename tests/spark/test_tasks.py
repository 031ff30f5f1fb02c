"""Tasks that die, fail, are run twice, or are taken for dead and are not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.standalone import Standalone
from eventually import eventually
from spark.harness import Job, start_together
from spark.kills import hold_at
from spark.pipeline import ENDED, REFUSED
from spark.processes import kill_executor
from sparkonce.protocol.state import Phase
from sparkonce_lab.rig.kafka import Cluster
from startup import JVM_FLAGS
from striking.gate import DIE, FAIL
from striking.points import BEGIN, BEGUN, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROWS, ROWS_PER_BATCH = 2_000, 500
TRIES = 3
THREE_TRIES = f"local[4,{TRIES}]"
TRANSACTIONS = tuple[str, int, int]
"""Name, producer id and epoch. A worker's id alone comes again, with the next epoch, in a later batch."""


def new_job(kafka: Cluster, folder: Path, **config: Any) -> Job:
    return Job(kafka.bootstrap, folder, rows=ROWS, rows_per_batch=ROWS_PER_BATCH, **config)


@dataclass(frozen=True, slots=True)
class Tried:
    """Two queries whose tasks Spark tries three times, after one run of both.

    Attributes:
        lucky: No task of this one failed so often.
        unlucky: A task of this one did.
        left: What was decided of the unlucky one, and what it had open, when it had stopped.
    """

    lucky: Job
    unlucky: Job
    left: tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def tried(kafka: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    folder = tmp_path_factory.mktemp("tried")
    with ExitStack() as stack:
        lucky = stack.enter_context(new_job(kafka, folder / "lucky", points=(BEGUN, WRITTEN, PREPARED)))
        unlucky = stack.enter_context(new_job(kafka, folder / "unlucky", points=(BEGIN, BEGUN, WRITTEN)))
        killed = lucky.gate.hold(WRITTEN, batch=0, slot=1)
        dying = lucky.gate.hold(PREPARED, batch=1, slot=2)
        failing = lucky.gate.hold(WRITTEN, batch=2, slot=3)
        failing_again = lucky.gate.hold(BEGUN, batch=2, slot=3, attempt=1)
        tries = [unlucky.gate.hold(WRITTEN, batch=1, slot=0, attempt=number) for number in range(TRIES)]
        late = unlucky.gate.hold(BEGIN, batch=1, slot=1)
        run = start_together([lucky, unlucky], folder / "run.log", master=THREE_TRIES)
        os.kill(killed.wait(run.check).pid, signal.SIGKILL)  # as the kernel does when memory is short
        dying.wait(run.check).answer(DIE)  # after it has prepared
        failing.wait(run.check).answer(FAIL)
        failing_again.wait(run.check).answer(FAIL)

        # Spark does not wait for the other tasks of a job that failed: this one would begin after the sweep.
        late.wait(run.check)
        aborting = hold_at(Phase.ABORTING.name, unlucky)
        for attempt in tries:
            attempt.wait(run.check).answer(FAIL)
        aborting.wait(run.check)
        late.release()
        aborting.release()
        assert run.join() == 1
        yield Tried(lucky, unlucky, (unlucky.decided(), unlucky.transactions("Ongoing")))


def test_tasks_that_die_or_fail_are_tried_again(tried: Tried) -> None:
    job = tried.lucky
    assert job.gate.at(ENDED, failed="")
    verdict = job.judge()
    assert verdict.is_exactly_once, verdict
    tries = {(batch, slot): len(job.gate.at(BEGUN, batch=batch, slot=slot)) for batch, slot in ((0, 1), (1, 2))}
    assert tries == {(0, 1): 2, (1, 2): 2}
    assert [one.told["attempt"] for one in job.gate.at(PREPARED, batch=2, slot=3)] == [2]


def test_a_task_that_fails_too_often_stops_the_query_and_leaves_nothing_behind(tried: Tried) -> None:
    job = tried.unlucky
    refused = job.gate.last(REFUSED)
    assert refused is not None
    assert (refused.told["kind"], refused.told["batch"]) == ("PrepareError", 1)
    assert f"InjectedError: told to fail at: {WRITTEN}" in refused.told["message"]
    assert tried.left == (0, {})
    assert not job.gate.at(BEGUN, batch=1, slot=1)
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
    with new_job(kafka, tmp_path / "job", master=cluster.url, spark={**SMALL, **EAGER}, points=points) as job:
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
        # What it left open is aborted by the run itself, without waiting for its turn: Spark ran the stage again.
        assert not opened & transactions_of(job)
        hold.release()
        run.finish()
        eventually(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan has ended")
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def transactions_of(job: Job) -> set[TRANSACTIONS]:
    return {(name, one.producer_id, one.producer_epoch) for name, one in job.transactions("Ongoing").items()}

"""Tasks that Spark runs twice, or considers dead although they are alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.standalone import Standalone
from spark.harness import Job
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

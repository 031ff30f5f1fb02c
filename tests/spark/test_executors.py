"""Executors that differ from the driver, detected before the first batch, or by the first task of a later executor."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import sparkonce
from eventually import eventually
from spark.in_process import SPARK, ended
from sparkonce import ExactlyOnce, FilesSink
from sparkonce.errors import PreflightError
from sparkonce.needs import WorkerNeeds
from sparkonce.spark import python_worker
from sparkonce.spark.shipped import ADDRESS, NEXT_STEPS, PACKAGE, Needs, build_of, reporter
from sparkonce.spark.start import executors

pytestmark = SPARK


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> Path:
    """The folder of another build of the same version, which lacks the modules that write a slot."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(Path(sparkonce.__file__).parent, folder / "sparkonce", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "sparkonce" / "executor.py").write_text("")
    return folder


@pytest.fixture
def other(spark, build, monkeypatch) -> None:
    """Makes the workers use that build."""
    environment = spark.sparkContext.environment
    monkeypatch.setitem(environment, "PYTHONPATH", os.pathsep.join([str(build), environment["PYTHONPATH"]]))
    monkeypatch.setattr(executors, "_proven", set())


@pytest.fixture
def once(tmp_path) -> ExactlyOnce:
    return ExactlyOnce(FilesSink(tmp_path / "out", format="json"), checkpoint=str(tmp_path / "checkpoint"))


def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()


def differs(message: str) -> bool:
    return all(
        text in message
        for text in (
            f"host {socket.gethostname()!r}: sparkonce {sparkonce.__version__} (build ",
            f"and the driver has sparkonce {sparkonce.__version__} (build {build_of('sparkonce')})",
            NEXT_STEPS[PACKAGE],
        )
    )


def test_a_start_refuses_executors_with_another_build(spark, other, once):
    with pytest.raises(PreflightError) as refused:
        once.start(rows(spark), trigger={"availableNow": True})
    assert differs(str(refused.value))
    assert not Path(once.checkpoint, "metadata").exists()


@pytest.mark.slow
def test_an_executor_that_joins_later_is_refused_by_its_first_task(spark, other, once, monkeypatch):
    monkeypatch.setattr(executors, "_ask", lambda *_: [])
    with pytest.raises(StreamingQueryException, match=r"sparkonce\.errors\.PrepareError: Executor on") as refused:
        ended(once.start(rows(spark), trigger={"availableNow": True}))
    assert differs(str(refused.value))


@pytest.mark.slow
def test_the_reach_of_an_executor_that_joins_later_is_waited_for(spark, tmp_path, monkeypatch, caplog):
    """The address starts to answer once the run has logged that it waits."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()
        needs = WorkerNeeds(addresses=(address,))
        monkeypatch.setattr(python_worker, "is_local", lambda _: False)
        monkeypatch.setattr(FilesSink, "worker_needs", lambda _: needs)
        monkeypatch.setattr(executors, "_ask", lambda *_: [])
        once = ExactlyOnce(FilesSink(tmp_path / "out", format="json"), checkpoint=str(tmp_path / "checkpoint"))
        query = once.start(rows(spark), trigger={"availableNow": True})
        eventually(lambda: "Waiting for up to" in caplog.text, "the run waits")
        assert f"host {socket.gethostname()!r}: sink 'files' is not reached at 127.0.0.1:{address[1]} (" in caplog.text
        assert NEXT_STEPS[ADDRESS] in caplog.text
        server.listen()
        ended(query)
    assert spark.read.json(str(tmp_path / "out")).count() == 10


def test_in_local_mode_the_executor_is_asked_once(spark, once, monkeypatch):
    monkeypatch.setattr(executors, "_proven", set())
    executors.check_executors(spark, once.sinks)
    monkeypatch.setattr(executors, "_ask", None)
    executors.check_executors(spark, once.sinks)


def test_a_cluster_that_runs_no_task_is_not_waited_for(spark, once, monkeypatch, caplog):
    def late(needs: Needs) -> Callable[[Any], Iterator[Any]]:
        def report(rows: Iterator[Any]) -> Iterator[Any]:
            time.sleep(60)
            yield from reporter(needs)(rows)

        return report

    class Timer(threading.Thread):
        """The time limit is reached as soon as the job runs."""

        def __init__(self, after_s: float, function: Callable[[], None]) -> None:
            super().__init__()
            self._function = function

        def run(self) -> None:
            eventually(spark.sparkContext.statusTracker().getActiveJobsIds, "the job runs")
            self._function()

        cancel = threading.Thread.join

    monkeypatch.setattr(executors, "_proven", set())
    monkeypatch.setattr(executors, "reporter", late)
    monkeypatch.setattr(threading, "Timer", Timer)
    executors.check_executors(spark, once.sinks)
    assert "the executors are not checked before the first batch" in caplog.text
    assert not executors._proven
    assert not spark.sparkContext.getJobTags()

"""Each format on its real server: a stream and a job, killed beside the decision, counted by another connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark.formats_struck import AFTER, BEFORE, PROCESS
from spark.formats_written import FILES, SYSTEMS, Written, register
from spark.in_process import SPARK

pytestmark = SPARK


@pytest.fixture(scope="module")
def formats(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


FIRST = ("postgres, two_phase", "mysql, staged", "redis", "files")


@pytest.fixture(params=[name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS])
def written(formats: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Written]:
    made = Written(formats, tmp_path, request.param)
    before = Counter(made.open())
    yield made
    assert not Counter(made.open()) - before, "something is left open"


@pytest.mark.slow
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_stream_that_is_killed_at_a_decision_writes_each_row_once(written: Written, when: str) -> None:
    with pytest.raises(StreamingQueryException):
        written.stream(f"{when} {PROCESS} 1")
    assert written.batches() == (1 if when == BEFORE else 2)
    written.stream()
    assert written.batches() == FILES


@pytest.mark.parametrize("when", [pytest.param(BEFORE, marks=pytest.mark.slow), AFTER])
def test_a_job_that_is_killed_at_its_decision_writes_each_row_once(written: Written, when: str) -> None:
    with pytest.raises(Py4JJavaError):
        written.job(f"{when} {PROCESS} 0")
    assert written.batches() == (0 if when == BEFORE else FILES)
    for _ in range(2):
        written.job()
        assert written.batches() == FILES
    written.job(name="two")
    assert set(written.target.visible().values()) == {2}

"""RabbitMQ's sources on the version of Spark that is installed, which keeps their limit of a batch since 4.2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import rabbit_queues
import rabbit_streams
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce import ExactlyOnce, FilesSink, read_rabbitmq_queue, read_rabbitmq_stream
from sparkonce.files import whole_batches
from sparkonce.spark.limits import IS_LIMITED_BY_SPARK

pytestmark = [
    USES_RABBIT,
    pytest.mark.spark,
    pytest.mark.versions,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ROWS, MOST = 30, 10
LIMIT_S = 600
NAMES = [str(number) for number in range(ROWS)]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session without a connector: not every version of Spark has one."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        made = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.local.dir", str(tmp_path_factory.mktemp("spark")))
            .getOrCreate()
        )
        yield made
        made.stop()


def read_all(rows: DataFrame, checkpoint: Path) -> list[str]:
    """Runs a query until it ends by itself, and returns its rows."""
    import pyarrow.parquet as pq

    out = checkpoint.with_name(f"{checkpoint.name}-out")
    once = ExactlyOnce(FilesSink(out), checkpoint=str(checkpoint), display=False)
    query = once.start(rows.selectExpr("cast(value as string) as value"), trigger={"availableNow": True})
    assert query.awaitTermination(LIMIT_S)
    assert query.exception() is None
    return [name for path in whole_batches(out) for name in pq.read_table(path).column(0).to_pylist()]


def check(read: list[str], checkpoint: Path) -> None:
    """Sees that all was read, once, in batches of the limit; before 4.2, one batch of it."""
    assert sorted(read, key=int) == NAMES if IS_LIMITED_BY_SPARK else len(set(read)) == len(read) == MOST
    planned = len(list((checkpoint / "commits").glob("[0-9]*")))
    assert planned >= (ROWS // MOST if IS_LIMITED_BY_SPARK else 1)


def test_spark_keeps_the_limit_since_its_version_4_2() -> None:
    assert IS_LIMITED_BY_SPARK is (tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2))


def test_a_stream(session: SparkSession, tmp_path: Path) -> None:
    server = rabbit_server()
    stream = rabbit_streams.new_stream(server)
    rabbit_streams.publish(server, stream, [name.encode() for name in NAMES])
    settings = rabbit_streams.settings_of(server)
    rows = read_rabbitmq_stream(session, settings, streams=stream, body="raw", max_rows_per_batch=MOST)
    check(read_all(rows, tmp_path / "stream"), tmp_path / "stream")


def test_a_queue(session: SparkSession, tmp_path: Path) -> None:
    server, checkpoint = rabbit_server(), tmp_path / "queue"
    queue = rabbit_queues.new_queue(server, "quorum")
    rabbit_queues.publish(server, queue, NAMES)
    settings = rabbit_queues.settings_of(server)
    given = {"segment_rows": MOST, "max_rows_per_batch": MOST}
    rows = read_rabbitmq_queue(session, settings, queue=queue, checkpoint=checkpoint, **given)
    check(read_all(rows, checkpoint), checkpoint)

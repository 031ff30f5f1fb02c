from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared_servers import end_pravega
from sparkonce.errors import ConfigurationError
from sparkonce.packages import spark_packages
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.kafka.jars import spark_avro_jars, spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.in_process import Stream

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that use the session share one session and one broker. Delta and Iceberg tests have their own."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if item.path.is_relative_to(HERE) and "spark" in used:
            item.add_marker(pytest.mark.xdist_group("spark tables" if "tables" in used else "spark"))


@pytest.fixture(scope="module", autouse=True)
def no_pravega_left_behind() -> Iterator[None]:
    yield
    end_pravega()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """A broker that may be restarted, and that checks every half second for transactions past their timeout."""
    overrides = {
        "auto.create.topics.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    with Cluster(overrides=overrides) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[SparkSession]:
    """A session in this process, for tests that kill nothing. The tables' jars add less than a second to its start."""
    from conformance import folder, folder_sink
    from jvm import jars_beside_spark
    from spark.in_process import travelling
    from spark.pipeline import Config, session
    from startup import jvm_flags, light_files

    os.environ["PYSPARK_PYTHON"] = sys.executable
    nothing = {each.name: "" for each in fields(Config) if each.default is each.default_factory}
    tables = [jar for library in table_libraries() for jar in jars_beside_spark(library)]
    given = {
        "jars": tuple(str(jar) for jar in [*spark_kafka_jars(), *spark_avro_jars(), *tables]),
        "jvm_flags": jvm_flags(),
        "temporary": str(tmp_path_factory.mktemp("spark")),
        "spark": {
            # The session is idle while other tests run, and its executor's heartbeats may fail then. After 60 failures
            # in a row, which take ten minutes, Spark exits the JVM with code 56, and the session cannot be stopped
            # properly.
            "spark.executor.heartbeat.maxFailures": "1000000",
            "spark.sql.streaming.checkpointFileManagerClass": light_files(),
            "spark.python.daemon.module": "preloaded",
            "spark.executorEnv.PYTHONPATH": str(HERE / "python_daemon"),
        },
    }
    made = session(Config(**{**nothing, **given}))
    gc.collect()
    gc.freeze()  # each query ends with a garbage collection; exclude all imported modules from it
    with travelling(folder, folder_sink):
        yield made
    made.stop()


def table_libraries() -> Iterator[str]:
    """Yields the libraries of Delta, Iceberg and Pravega that exist for this Spark version."""
    for wanted in ({"delta": True}, {"iceberg": True}, {"pravega": True}):
        with suppress(ConfigurationError):
            yield spark_packages(**wanted).split(",")[-1]


@pytest.fixture(scope="module")
def travels(request) -> Iterator[None]:
    """Pickles what the test module defines by value, for Spark's workers."""
    from spark.in_process import travelling

    with travelling(request.module):
        yield


@pytest.fixture
def stream(spark, kafka, tmp_path) -> Stream:
    """A query's source, target and checkpoint. Its rows have the keys and values `IDS`, in three batches by default."""
    from spark.in_process import IDS, Stream

    return Stream(spark, kafka, tmp_path, IDS)


@pytest.fixture
def own_session(spark) -> Iterator[SparkSession]:
    """A separate session, whose settings the test may change."""
    from spark.in_process import new_session

    with new_session(spark) as made:
        yield made


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory) -> Iterator[SparkSession]:
    """A second session of the same Spark, with the catalogs of Delta and Iceberg, without their extensions to SQL."""
    from spark.table_job import table_session

    with table_session(spark, tmp_path_factory.mktemp("warehouse")) as made:
        yield made

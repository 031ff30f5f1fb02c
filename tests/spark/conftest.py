from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparkonce.embedded import Cluster
from sparkonce.embedded.jars import (
    artifact_name,
    resolve,
    spark_avro_jars,
    spark_jars_folder,
    spark_kafka_jars,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.injuries import Verdict


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """A broker that may be restarted, and that looks every half second which transactions are past their timeout."""
    overrides = {
        "auto.create.topics.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    with Cluster(overrides=overrides) as cluster:
        yield cluster


DELTA, ICEBERG = "io.delta:delta-spark_2.13:4.0.0", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session in this process, for tests that kill nothing."""
    from spark.pipeline import Config, session
    from spark.startup import jvm_flags

    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = str(tmp_path_factory.mktemp("spark"))
    nothing = dict.fromkeys(("bootstrap", "target", "checkpoint", "desk"), "")
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    tables = [jar for library in (DELTA, ICEBERG) for jar in resolve([library], exclude=in_spark)]
    config = Config(
        sources=(),
        jars=tuple(str(jar) for jar in [*spark_kafka_jars(), *spark_avro_jars(), *tables]),
        jvm_flags=jvm_flags(),
        temporary=folder,
        # The session stands idle while other tests run. Heartbeats of its executor have been seen to fail meanwhile:
        # after 60 in a row, in ten minutes, Spark ends the JVM with 56, and nobody can stop the session in order.
        spark={"spark.executor.heartbeat.maxFailures": "1000000"},
        **nothing,
    )
    session_ = session(config)
    yield session_
    session_.stop()


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Verdict:
    """What the test's marker says that the analyser says."""
    from spark.injuries import Verdict

    return Verdict(request.node.get_closest_marker("proves").kwargs["verdict"])

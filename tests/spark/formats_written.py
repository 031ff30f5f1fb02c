"""A system that a format writes to, in a stream or a job, and what another connection counts there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

import sparkonce
from kafka_transactions import await_markers
from mariadb_witness import Witness, shared_server
from s3_bucket import Bucket
from shared_servers import postgres_server, redis_server, s3_server
from spark import formats_struck
from spark.formats_struck import DRIVER
from spark.harness import new_name
from spark.in_process import ended, travelling
from spark.processes import path_of_tests
from spark.targets import S3, Files, MySQL, Postgres, Redis, Target
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import create_topic, read_committed

FILES, ROWS = 3, 30
"""A batch for each file of the source, with as many rows."""


def _postgres(commit: str) -> tuple[Target, dict[str, str]]:
    server, table = postgres_server(), new_name("format").replace("-", "_")
    where = {name: str(value) for name, value in conninfo_to_dict(server.conninfo()).items()}
    url = f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}?connect_timeout=10"
    return Postgres(server, table), {"url": url, "user": where["user"], "dbtable": f"public.{table}", "commit": commit}


def _mysql(commit: str) -> tuple[Target, dict[str, str]]:
    witness = Witness(shared_server())
    to: dict[str, Any] = witness.settings
    url = f"jdbc:mariadb://{to['host']}:{to['port']}/{to['database']}?ssl_disabled=true&connect_timeout=10"
    given = {"url": url, "user": to["user"], "password": to["password"], "dbtable": "format", "commit": commit}
    return MySQL(witness, "format"), given


def _redis() -> tuple[Target, dict[str, str]]:
    target = Redis(redis_server(), by="id")
    target.prefix = new_name("format")
    key = f"{target.prefix}:{{batch}}:{{id}}"
    return target, {"url": target.server.url, "structure": "increment", "key_template": key, "prefix": target.prefix}


def _s3() -> tuple[Target, dict[str, str]]:
    target = S3(Bucket(s3_server()))
    return target, {"path": target.sink["path"], "store_options": json.dumps(target.sink["store_options"])}


SYSTEMS: dict[str, Callable[[Path], tuple[str, Target, dict[str, str]]]] = {
    "postgres, two_phase": lambda _: ("postgres", *_postgres("two_phase")),
    "postgres, staged": lambda _: ("postgres", *_postgres("staged")),
    "mysql, two_phase": lambda _: ("mysql", *_mysql("two_phase")),
    "mysql, staged": lambda _: ("mysql", *_mysql("staged")),
    "redis": lambda _: ("redis", *_redis()),
    "files": lambda folder: ("files", Files(folder / "out"), {"path": str(folder / "out")}),
    "s3": lambda _: ("files", *_s3()),
}


class Written:
    """A system, and what writes to it by its format.

    Args:
        spark: The session.
        folder: For the source, and for what follows by default.
        system: A key of `SYSTEMS`.
        checkpoint: Of the stream.
        log: For the logs of jobs.
    """

    def __init__(self, spark: SparkSession, folder: Path, system: str, *, checkpoint: str = "", log: str = "") -> None:
        self.spark, self.folder = spark, folder
        self.checkpoint, self.log = checkpoint or str(folder / "checkpoint"), log or str(folder / "log")
        self.format, self.target, self.options = SYSTEMS[system](folder)
        for number in range(FILES):
            ids = range(number * ROWS, (number + 1) * ROWS)
            (folder / "in").mkdir(exist_ok=True)
            (folder / "in" / f"{number}.json").write_text("".join(f'{{"id": "{one}"}}\n' for one in ids))

    def _rows(self, reader: Any) -> DataFrame:
        rows = reader.schema("id string").json(str(self.folder / "in")).repartition(2)
        return rows.selectExpr("id", "0L batch", "'x' ending", "1 amount")

    def _how(self, strike: str) -> tuple[str, dict[str, str]]:
        if not strike:
            return f"sparkonce-{self.format}", self.options
        return f"struck-{self.format}", {**self.options, "strike": f"{strike} {self.folder / 'struck'}"}

    def stream(self, strike: str = "") -> None:
        name, options = self._how(strike)
        rows = self._rows(self.spark.readStream.option("maxFilesPerTrigger", 1))
        writer = rows.writeStream.format(name).options(**options).trigger(availableNow=True).queryName(new_name("q"))
        ended(writer.option("checkpointLocation", self.checkpoint).start())

    def job(self, strike: str = "", name: str = "one") -> None:
        format, options = self._how(strike)  # noqa: A001 - Spark's word
        writer = self._rows(self.spark.read).write.format(format).mode("append").options(**options)
        writer.options(job=name, log=self.log).save()

    def batches(self) -> int:
        """Counts the source's files that are there, with each row once."""
        found = self.target.visible()
        assert set(found.values()) <= {1}, found
        assert len(found) % ROWS == 0, len(found)
        return len(found) // ROWS

    def open(self) -> list[str]:
        return [one for one in self.target.open("") if not one.endswith(":ledger")]


def register(spark: SparkSession) -> None:
    """Makes the formats known to a session, and those that strike, with its settings of stores."""
    sparkonce.register(spark)
    with travelling(formats_struck):
        formats_struck.register_struck(spark)


def killed_three_times(kafka: Cluster, folder: Path, when: str, **given: str) -> None:
    """A driver, its JVM and its workers (SIGKILL), each time in another batch; then one that ends, and a count."""
    topic = new_name("killed")
    create_topic(kafka.bootstrap, topic, 2)
    given |= {"rows": "200", "batches": "6", "format": "struck-kafka", "topic": topic}
    given |= {"kafka.bootstrap.servers": kafka.bootstrap}
    for batch in (0, 2, 3):
        struck = folder / f"struck-{batch}"
        assert _run_job({**given, "strike": f"{when} {DRIVER} {batch} {struck}"}, folder) == -signal.SIGKILL
        assert struck.exists()
    assert _run_job(given, folder) == 0, (folder / "job.log").read_text()[-3000:]
    await_markers(kafka.bootstrap)
    values = sorted(int(record.value or b"") for record in read_committed(kafka.bootstrap, topic))
    assert len(values) >= 1_200
    assert values == list(range(len(values)))


def _run_job(given: dict[str, str], folder: Path) -> int:
    """Runs a query in a process and session of its own, to its end, and returns its exit code."""
    with (folder / "job.log").open("ab") as log:
        command = [sys.executable, "-m", "spark.formats_job", json.dumps(given)]
        own = {**os.environ, **path_of_tests(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder)}
        own["SPARK_LOCAL_IP"] = "127.0.0.1"
        done = subprocess.run(
            command, stdout=log, stderr=log, env=own, start_new_session=True, check=False, timeout=900
        )
    return done.returncode

"""Measures the MariaDB sink, compared with Spark's JDBC writer, on a server that the benchmark starts.

    python benchmarks/mysql.py
    python benchmarks/mysql.py --connector-j --file-rows 25000 --measured 3
    python benchmarks/mysql.py --slot

Spark's writer runs with its defaults, and with its best settings: larger batches of rows, and the bulk protocol, which
MariaDB's driver uses for inserts by default. It is at-least-once: a batch that is written again is there twice. Another
variant writes the rows to nowhere, which shows what Spark alone takes. ``--connector-j`` adds MySQL's own driver. By
default, that driver sends one request per row, so a run takes minutes. ``--slot`` writes slots of a million rows of 1
KB, to measure the memory of a worker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pymysql
import typer
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sinks import ONE_SLOT, Contender, Load, compare, machine
from sparkonce import ExactlyOnce, MySQLSink
from sparkonce_lab.rig.kafka.jars import resolve
from sparkonce_lab.rig.servers.mariadb import MariaDBServer

# Spark recognizes the dialect by jdbc:mysql, which MariaDB's driver accepts with permitMysqlScheme.
DRIVER = "org.mariadb.jdbc:mariadb-java-client:3.5.1"
CONNECTOR_J_CLASS = "com.mysql.cj.jdbc.Driver"
CONNECTOR_J = "com.mysql:mysql-connector-j:8.4.0"
TABLE = (
    "CREATE TABLE bench.target (number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, id BIGINT, "
    "`key` VARCHAR(32), part INT, amount DOUBLE, at TIMESTAMP(6) NULL, note VARCHAR(1200)) "
    "ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"
)
ROOM = {"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "512M"}
AT_BEST = {"batchsize": "10000"}
BEST_URL = "&useBulkStmts=true&useServerPrepStmts=true"
REWRITTEN_URL = "&rewriteBatchedStatements=true"


def ours(server: MariaDBServer, commit: str) -> Any:
    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        sink = MySQLSink({**server.settings, "database": "bench"}, table="target", commit=commit)
        return ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False).start(rows)

    return start


def jdbc(server: MariaDBServer, url: str = "", driver: str = "org.mariadb.jdbc.Driver", **options: str) -> Any:
    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        def write(batch: DataFrame, _number: int) -> None:
            writer = batch.write.format("jdbc").option(
                "url", f"jdbc:mysql://{server.address}/bench?permitMysqlScheme&user=root{url}"
            )
            writer = writer.option("driver", driver).option("dbtable", "target").options(**options)
            writer.mode("append").save()

        writer = rows.writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    return start


def nowhere(rows: DataFrame, folder: Path) -> StreamingQuery:
    def write(batch: DataFrame, _number: int) -> None:
        batch.write.format("noop").mode("append").save()

    return rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()


def main(
    file_rows: int = 100_000,
    files: int = 2,
    measured: int = 5,
    warm: int = 1,
    rounds: int = 3,
    connector_j: bool = False,
    slot: bool = False,
) -> None:
    load = Load(file_rows=file_rows, files=files, warm=warm, measured=measured)
    if slot:
        load, rounds = ONE_SLOT, 1
    with tempfile.TemporaryDirectory() as folder:
        server = MariaDBServer(Path(folder) / "data", options=ROOM)
        with server, machine(load, jars=resolve([DRIVER, CONNECTOR_J]), server_pid=server.pid) as on:

            def ask(statement: str) -> Any:
                with pymysql.connect(**server.settings) as connection, connection.cursor() as cursor:  # type: ignore[arg-type]
                    cursor.execute(statement)
                    return cursor.fetchone()

            ask("CREATE DATABASE bench CHARACTER SET utf8mb4")
            ask(TABLE)

            def contender(name: str, start: Any) -> Contender:
                return Contender(
                    name=name,
                    start=start,
                    count=lambda _: int(ask("SELECT COUNT(*) FROM bench.target")[0]),
                    clean=lambda: ask("TRUNCATE TABLE bench.target"),
                )

            contenders = [
                contender("sparkonce two_phase", ours(server, "two_phase")),
                contender("sparkonce staged", ours(server, "staged")),
            ]
            if connector_j:
                contenders += [
                    contender("connector/j, rewritten", jdbc(server, REWRITTEN_URL, CONNECTOR_J_CLASS, **AT_BEST)),
                    contender("connector/j, as it comes", jdbc(server, driver=CONNECTOR_J_CLASS)),
                ]
            elif not slot:
                everything = load.batch_rows * load.batches
                contenders += [
                    Contender(name="spark, to nowhere", start=nowhere, count=lambda _: everything),
                    contender("spark jdbc, as it comes", jdbc(server)),
                    contender("spark jdbc, rewritten", jdbc(server, REWRITTEN_URL, **AT_BEST)),
                    contender("spark jdbc, bulk", jdbc(server, BEST_URL, **AT_BEST)),
                ]
            compare(on, contenders, rounds=rounds, warming=not slot)


if __name__ == "__main__":
    typer.run(main)

"""Measures the PostgreSQL sink, exactly-once in both of its modes, compared with Spark's JDBC writer, at-least-once.

    python benchmarks/postgres.py [--quick] [--slot]

The benchmark starts the server on this machine, with its defaults except for room for prepared transactions and a
larger WAL between checkpoints. JDBC runs with its defaults, and with ``reWriteBatchedInserts=true``, which the driver's
manual recommends for speed. ``--slot`` writes slots of a million rows of 1 KB, to measure the memory of a worker.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sinks import ONE_SLOT, Contender, Load, compare, machine
from sparkonce import ExactlyOnce, Guarantee, PostgresSink
from sparkonce_lab.rig.kafka.jars import resolve
from sparkonce_lab.rig.servers.postgres import PostgresServer

JDBC = "org.postgresql:postgresql:42.7.4"
TABLE = "CREATE TABLE rows (id bigint, key text, part int, amount double precision, at timestamptz, note text)"


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--quick", action="store_true", help="a short run, to check that it works")
    given.add_argument("--slot", action="store_true", help="one slot of a million rows of 1 KB, to measure memory")
    asked = given.parse_args()
    quick, slot = asked.quick, asked.slot
    load = Load(file_rows=20_000, measured=2) if quick else Load(file_rows=100_000, measured=3)
    if slot:
        load = ONE_SLOT
    settings = {"max_wal_size": "8GB", "shared_buffers": "512MB"}
    with PostgresServer(settings) as server, machine(load, jars=resolve([JDBC]), server_pid=server.pid) as on:

        def ask(statement: str) -> int:
            with psycopg.connect(server.conninfo(), autocommit=True) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchone()[0] if cursor.description else 0

        def contender(name: str, start: Callable[[DataFrame, Path], StreamingQuery]) -> Contender:
            return Contender(
                name=name,
                start=start,
                count=lambda _: ask("SELECT count(*) FROM rows"),
                clean=lambda: ask("TRUNCATE rows; CHECKPOINT"),
            )

        ask(TABLE)
        exactly_once = [
            contender("exactly-once, two_phase", partial(_ours, server.conninfo(), commit="two_phase")),
            contender("exactly-once, staged", partial(_ours, server.conninfo(), commit="staged")),
        ]
        if slot:
            compare(on, exactly_once, rounds=1, warming=False)
            return
        compare(
            on,
            [
                *exactly_once,
                contender("at-least-once", partial(_ours, server.conninfo(), guarantee=Guarantee.AT_LEAST_ONCE)),
                contender("Spark JDBC, defaults", partial(_jdbc, server.port, "")),
                contender(
                    "Spark JDBC, reWriteBatchedInserts", partial(_jdbc, server.port, "?reWriteBatchedInserts=true")
                ),
            ],
            rounds=1 if quick else 3,
        )


def _ours(conninfo: str, rows: DataFrame, folder: Path, **more: object) -> StreamingQuery:
    sink = PostgresSink(conninfo, table="rows", **more)
    return ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False).start(rows)


def _jdbc(port: int, options: str, rows: DataFrame, folder: Path) -> StreamingQuery:
    url = f"jdbc:postgresql://127.0.0.1:{port}/postgres{options}"

    def write(batch: DataFrame, _: int) -> None:
        batch.write.jdbc(url, "rows", mode="append", properties={"user": "postgres", "driver": "org.postgresql.Driver"})

    return rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()


if __name__ == "__main__":
    main()

"""Measures several sinks that commit as one unit, compared with each of them alone, on this machine.

    python3 dev.py run python benchmarks/unit.py [--rows 200000] [--rounds 3]

Writes the same rows to Kafka, to PostgreSQL and to Parquet files: with a separate query for each, and with a single
query for all three. The time of the single query is compared with the sum of the three in the same round. The result is
the median of these ratios. Kafka gets two of the six columns. The server's CPU is that of PostgreSQL alone.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import psycopg
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench import delete_topic
from session import PARTITIONS
from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce, FilesSink, KafkaSink, PostgresSink
from sparkonce_lab.kafka import create_topic, scan
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.servers.postgres import PostgresServer

TABLE = "CREATE TABLE rows (id bigint, key text, part int, amount double precision, at timestamptz, note text)"
SETTINGS = {"max_wal_size": "8GB", "shared_buffers": "512MB"}
KINDS = ("kafka", "postgres", "files")


class Targets:
    """A topic, a table and a folder, recreated for each run."""

    def __init__(self, broker: Cluster, server: PostgresServer) -> None:
        self._kafka = {"bootstrap.servers": broker.bootstrap}
        self._conninfo = server.conninfo()
        self._topic = ""
        self._ask(TABLE)

    def contender(self, name: str, kinds: Sequence[str]) -> Contender:
        def start(rows: DataFrame, folder: Path) -> StreamingQuery:
            self._topic = f"rows-{time.time_ns()}"
            create_topic(self._kafka, self._topic, PARTITIONS)
            sinks: dict[str, tuple[Any, Callable[[DataFrame], DataFrame] | None]] = {
                "kafka": (KafkaSink(self._kafka, topic=self._topic), lambda df: df.selectExpr("key", "note AS value")),
                "postgres": (PostgresSink(self._conninfo, table="rows"), None),
                "files": (FilesSink(folder / "out"), None),
            }
            unit = dict(sinks[kind] for kind in kinds)
            return ExactlyOnce(unit, checkpoint=str(folder / "checkpoint"), display=False).start(rows)

        return Contender(name=name, start=start, count=lambda folder: self._count(folder, kinds), clean=self._clean)

    def _count(self, folder: Path, kinds: Sequence[str]) -> int:
        """Returns the number of rows that readers of each target see. Raises RuntimeError if the targets differ."""
        counts = {
            "kafka": lambda: sum(map(len, scan(self._kafka, self._topic))),
            "postgres": lambda: self._ask("SELECT count(*) FROM rows"),
            "files": lambda: duckdb.sql(f"SELECT count(*) FROM '{folder}/out/**/*.parquet'").fetchall()[0][0],
        }
        found = {kind: int(counts[kind]()) for kind in kinds}
        if len(set(found.values())) != 1:
            raise RuntimeError(f"The sinks of one unit hold {found}.")
        return found[kinds[0]]

    def _clean(self) -> None:
        delete_topic(self._kafka["bootstrap.servers"], self._topic)
        self._ask("TRUNCATE rows")
        self._ask("CHECKPOINT")

    def _ask(self, statement: str) -> int:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone()[0] if cursor.description else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows per batch; three batches are measured")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    load = Load(file_rows=given.rows // 4, measured=3)
    with (
        Cluster(heap="1g", jvm_flags=(), overrides={"log.segment.delete.delay.ms": 1000}) as broker,
        PostgresServer(SETTINGS) as server,
        machine(load, server_pid=server.pid) as on,
    ):
        targets = Targets(broker, server)
        alone = [targets.contender(kind, [kind]) for kind in KINDS]
        unit = targets.contender("one unit", KINDS)
        found = compare(on, [*alone, unit], rounds=given.rounds)
    ratios = [
        (1 / together.rows_per_s) / sum(1 / found[kind][number].rows_per_s for kind in KINDS)
        for number, together in enumerate(found[unit.name])
    ]
    print(f"one unit takes {median(ratios):.2f} of the sum ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

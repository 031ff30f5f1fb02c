"""Measures the cost of a dead-letter sink if no row is rejected, for Kafka and PostgreSQL.

    python3 dev.py run python benchmarks/dead_letters.py [--quick] [--only Kafka]

Each sink runs with and without a dead-letter sink, in alternating order (A B, B A, A B, …). The CPU ratio includes
Spark, its workers, and the PostgreSQL server, but not Kafka's broker.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from postgres import TABLE
from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce, FilesSink, KafkaSink, PostgresSink
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce_lab.kafka import create_topic
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.servers.postgres import PostgresServer

PARTITIONS = 4
COMMITS, KAFKA = ("staged", "two_phase"), "Kafka"


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--quick", action="store_true", help="a short run, to check that it works")
    given.add_argument("--only", choices=[*COMMITS, KAFKA], help="measure only this sink")
    parsed = given.parse_args()
    quick, sinks = parsed.quick, (parsed.only,) if parsed.only else (*COMMITS, KAFKA)
    load = Load(file_rows=20_000, measured=2) if quick else Load(file_rows=100_000, measured=3)
    rounds = 1 if quick else 5
    with PostgresServer({"max_wal_size": "8GB", "shared_buffers": "512MB"}) as server, Cluster() as broker:
        _run(server, broker, load, rounds, sinks)


def _run(server: PostgresServer, broker: Cluster, load: Load, rounds: int, sinks: Sequence[str]) -> None:
    def ask(statement: str) -> int:
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone()[0] if cursor.description else 0

    def to_table(commit: str, dead_letters: bool, rows: DataFrame, folder: Path) -> StreamingQuery:
        return _start(PostgresSink(server.conninfo(), table="rows", commit=commit), dead_letters, rows, folder)

    def to_topic(dead_letters: bool, rows: DataFrame, folder: Path) -> StreamingQuery:
        create_topic(broker.bootstrap, folder.name, PARTITIONS)
        sink = KafkaSink({"bootstrap.servers": broker.bootstrap}, topic=folder.name)
        return _start(sink, dead_letters, rows.select(F.to_json(F.struct("*")).alias("value")), folder)

    ask(TABLE)
    with machine(load, server_pid=server.pid) as on:
        for commit in (one for one in COMMITS if one in sinks):
            compare(
                on,
                [
                    Contender(
                        name=f"{commit}, {'with dead letters' if dead_letters else 'without'}",
                        start=partial(to_table, commit, dead_letters),
                        count=lambda _: ask("SELECT count(*) FROM rows"),
                        clean=lambda: ask("TRUNCATE rows; CHECKPOINT"),
                    )
                    for dead_letters in (True, False)
                ],
                rounds=rounds,
            )
        if KAFKA in sinks:
            compare(
                on,
                [
                    Contender(
                        name=f"Kafka, {'with dead letters' if dead_letters else 'without'}",
                        start=partial(to_topic, dead_letters),
                        count=partial(_in_topic, broker),
                    )
                    for dead_letters in (True, False)
                ],
                rounds=rounds,
            )


def _start(sink: TwoPhaseCommitSink, dead_letters: bool, rows: DataFrame, folder: Path) -> StreamingQuery:
    dead = FilesSink(folder / "dead", name="dead") if dead_letters else None
    once = ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False, dead_letters=dead)
    return once.start(rows)


def _in_topic(broker: Cluster, folder: Path) -> int:
    """Counts the rows that a read_committed reader sees."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "count", "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    reader.assign([TopicPartition(folder.name, number, 0) for number in range(PARTITIONS)])
    found, ends = 0, 0
    while ends < PARTITIONS:
        for record in reader.consume(10_000, 1):
            found, ends = found + (record.error() is None), ends + (record.error() is not None)
    reader.close()
    return found


if __name__ == "__main__":
    main()

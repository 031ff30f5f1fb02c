"""The sinks that are struck, each on its real server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from conformance.write_ahead_targets import WriteAheadSystem
from crashes.cells import CUT, HOLE, PAUSE, RESTART
from crashes.target import ABORT, DISK_FULL, MEMORY_FULL, PREPARE, Target, plain_rows
from crashes.toy import toy
from jvm import jars_beside_spark
from kafka_transactions import await_markers
from plain_store import PlainStore
from pravega_witness import PravegaSystem
from sparkonce.errors import SparkonceError
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.write_ahead import Applies
from sparkonce_lab.faults import Fault
from sparkonce_lab.kafka import KafkaReader
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.hdfs import HdfsSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem, RabbitStreamSystem
from sparkonce_lab.systems.redis import RedisClusterSystem, RedisSystem
from sparkonce_lab.systems.s3 import S3System
from sparkonce_pravega.cluster import CLIENT_JAR

NO_SERVER = (RESTART, PAUSE, CUT, HOLE, DISK_FULL, MEMORY_FULL)
LONG = "x" * 60_000


def keyed_rows(start: int, count: int) -> pa.RecordBatch:
    """Each batch writes the keys of the previous batch again."""
    numbers = range(start, start + count)
    return pa.record_batch({"key": [number % 1000 for number in numbers], "number": list(numbers)})


def long_rows(start: int, count: int) -> pa.RecordBatch:
    """So large that nearly every batch needs more room on the disk."""
    return plain_rows(start, count).append_column("filler", pa.array([LONG] * count))


def text_rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})


def partitioned_rows(start: int, count: int) -> pa.RecordBatch:
    """Two partitions, so that a slot's transaction consists of several files."""
    numbers = range(start, start + count)
    return pa.record_batch({"number": list(numbers), "part": [f"p{number % 2}" for number in numbers]})


def counted_rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(start, start + count)), "amount": [1] * count})


# --- Kafka ------------------------------------------------------------------------------------------------------------


class KafkaTarget(Target):
    _reader: KafkaReader | None = None
    _seen: list[int]

    def new_place(self) -> None:
        super().new_place()
        self._close_reader()
        self._reader, self._seen = KafkaReader(self.system.bootstrap, self.system.target, 2, wait_ms=10), []

    def stop(self) -> None:
        self._close_reader()
        super().stop()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def glance(self) -> Sequence[int]:
        if self._reader is not None:
            self._seen += [int(message.value() or b"-1") for message in self._reader.read(0.03)]
        return list(self._seen)

    def make_sink(self) -> TwoPhaseCommitSink:
        limits = {"message.timeout.ms": 10_000, "socket.timeout.ms": 2_000}
        sink: TwoPhaseCommitSink = self.system.sink(settings={**self.system.arguments()["settings"], **limits})
        return sink

    def inject(self, fault: Fault) -> None:
        if fault is Fault.SERVER_KILLED:
            await_markers(self.system.bootstrap)
        super().inject(fault)


KAFKA = KafkaTarget(
    "kafka",
    partial(KafkaSystem, partitions=2, requests=KafkaSystem.REQUESTS["two_phase"], alone=True),
    preload=("confluent_kafka.admin", "kafka.admin", "sparkonce.sinks.kafka.writer", "sparkonce.sinks.kafka.committer"),
    requests=KafkaSystem.REQUESTS["two_phase"],
    changes_late=(ABORT,),  # because it raises the id's epoch
    marks=(pytest.mark.kafka,),
    cannot=(DISK_FULL, MEMORY_FULL),
    choice="every kill outside the driver",
    rows=text_rows,
    shows_within_s=10.0,
)


# --- databases --------------------------------------------------------------------------------------------------------


class UpsertTarget(Target):
    """Every batch writes the same keys. Triggers record what is written, in the same transaction.

    Everything that was written is visible, plus, for each key without its newest value, a number that no batch has.
    """

    def new_place(self) -> None:
        super().new_place()
        system = self.system
        if isinstance(system, PostgresSystem):
            s = system.schema
            system.ask(f"CREATE TABLE {s}.history (key bigint, number bigint)")
            body = f"BEGIN INSERT INTO {s}.history VALUES (NEW.key, NEW.number); RETURN NULL; END"  # noqa: S608 - ours
            system.ask(f"CREATE FUNCTION {s}.note() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
            system.ask(
                f"CREATE TRIGGER noted AFTER INSERT OR UPDATE ON {s}.{system.table} "
                f"FOR EACH ROW EXECUTE FUNCTION {s}.note()"
            )
        else:
            d = system.database
            system.ask(f"CREATE TABLE {d}.history (`key` BIGINT, number BIGINT) ENGINE=InnoDB")
            for event in ("INSERT", "UPDATE"):
                then = f"INSERT INTO {d}.history VALUES (NEW.`key`, NEW.number)"  # noqa: S608 - ours
                system.ask(f"CREATE TRIGGER {d}.noted_{event} AFTER {event} ON {d}.{system.table} FOR EACH ROW {then}")

    def visible(self) -> Sequence[int]:
        system = self.system
        if isinstance(system, PostgresSystem):
            where, key, differs = system.schema, "key", "t.number IS DISTINCT FROM h.newest"
        else:
            where, key, differs = system.database, "`key`", "NOT (t.number <=> h.newest)"
        found = system.ask(
            f"SELECT number FROM {where}.history UNION ALL SELECT -1 - h.{key} FROM "  # noqa: S608 - ours
            f"(SELECT {key}, MAX(number) AS newest FROM {where}.history GROUP BY {key}) AS h "
            f"LEFT JOIN {where}.{system.table} AS t USING ({key}) WHERE {differs}"
        )
        return [number for (number,) in found]


UPSERT = {"commit": "staged", "mode": "upsert", "key_columns": ["key"]}


def database(name: str, commit: str, *columns: str, kind: type[Target] = Target, **more: Any) -> Target:
    """A target in PostgreSQL or MariaDB."""
    given: dict[str, Any] = {"cannot": (MEMORY_FULL,), **more}
    options: Mapping[str, Any] = {"commit": commit, **given.pop("options", {})}
    if name.startswith("postgres"):
        settings = {"max_wal_size": "32MB"}
        make: Any = partial(PostgresSystem, megabytes=160, settings=settings, alone=True, answers_within_s=20.0)
        sinks, server = "postgres", PostgresSystem
        options = {"lock_timeout_s": 2.0, **options}
        given["preload"] = ("psycopg", "sparkonce.sinks.sql.postgres.dialect", "sparkonce.sinks.sql.writer")
    else:
        make = partial(MySQLSystem, megabytes=given.pop("megabytes", 96), alone=True, answers_within_s=20)
        sinks, server = "mariadb", MySQLSystem
        given["preload"] = ("sparkonce.sinks.sql.mysql.dialect", "sparkonce.sinks.sql.writer")
        given["waits"] = {
            "sparkonce.sinks.sql.mysql.finishing:_WAIT_S": 2,
            "sparkonce.sinks.sql.mysql.finishing:_IDLE_S": 1,
        }
    requests = server.REQUESTS[commit]
    given = {
        "server": sinks,
        "requests": requests,
        "ends_sessions": {PREPARE} if commit == "two_phase" else set(requests),
        **given,
    }
    return kind(name, make, columns, options=options, **given)


def full_disk(name: str, commit: str) -> Target:
    """Rows that do not fit on a full disk."""
    columns = ("number BIGINT", "filler LONGTEXT")
    more = {"megabytes": 256, "server": "mariadb-long", "requests": {}, "rows": long_rows, "ends_sessions": ()}
    return database(name, commit, *columns, faults=(DISK_FULL,), marks=(pytest.mark.slow,), **more)


DATABASES = (
    database("postgres-two-phase", "two_phase", "number bigint", choice="every kill"),
    database("postgres-staged", "staged", "number bigint"),
    database(
        "postgres-upsert",
        "staged",
        "key bigint PRIMARY KEY",
        "number bigint",
        kind=UpsertTarget,
        options=UPSERT,
        rows=keyed_rows,
        choice="one",
    ),
    database("mariadb-two-phase", "two_phase", "number BIGINT"),
    database("mariadb-staged", "staged", "number BIGINT"),
    database(
        "mariadb-upsert",
        "staged",
        "`key` BIGINT PRIMARY KEY",
        "number BIGINT",
        kind=UpsertTarget,
        options=UPSERT,
        rows=keyed_rows,
        choice="one",
    ),
    full_disk("mariadb-long-two-phase", "two_phase"),
    full_disk("mariadb-long-staged", "staged"),
)


# --- files ------------------------------------------------------------------------------------------------------------


def files(name: str, make: Any, store: str, **more: Any) -> Target:
    options = {"format": "json", "compression": "none", "partition_by": "part", **more.pop("options", {})}
    parts = ("writer", "committer", "s3.store" if store == "s3" else store)
    preload = (*(f"sparkonce.sinks.files.{part}" for part in parts), *(["boto3"] if store == "s3" else []))
    cannot = more.pop("cannot", (MEMORY_FULL,))
    return Target(name, make, options=options, preload=preload, rows=partitioned_rows, cannot=cannot, **more)


FILES = (
    files(
        "files",
        partial(FilesSystem, megabytes=16),
        "local",
        cannot=(RESTART, PAUSE, CUT, HOLE, MEMORY_FULL),
        choice="every kill",
        shows_within_s=0.0,
        gone_within_s=0.0,
    ),
    files("files-s3", partial(S3System, megabytes=64), "s3", requests=S3System.REQUESTS["held"]),
    files(
        "files-hdfs",
        HdfsSystem,
        "hdfs",
        requests=HdfsSystem.REQUESTS["held"],
        options={"store_options": {"deadline_s": 5.0}},
        choice="none",
    ),
)


# --- rows that wait ---------------------------------------------------------------------------------------------------


def write_ahead(name: str, per: str, *, store: Any = None) -> Target:
    return Target(
        name,
        partial(WriteAheadSystem, store=store),
        options={"applies": Applies.TRANSACTIONAL, "per": per},
        preload=("sparkonce.sinks.write_ahead.writer", "sparkonce.sinks.write_ahead.committer"),
        cannot=NO_SERVER,
        shows_within_s=0.0,
        gone_within_s=0.0,
    )


def rabbit(name: str, make: Any, requests: Mapping[str, Any], *preload: str, **more: Any) -> Target:
    cannot = (DISK_FULL, MEMORY_FULL)
    waits = {"shows_within_s": 0.0, "gone_within_s": 0.0}
    return Target(name, make, preload=preload, requests=requests, rows=text_rows, cannot=cannot, **waits, **more)


STREAM = ("sparkonce_rabbitmq.sinks.messages", "sparkonce_rabbitmq.sinks.committer")
QUEUE = ("sparkonce_rabbitmq.sinks.queue_publisher", "sparkonce.sinks.write_ahead.committer")
WAITING = (
    write_ahead("write-ahead", "slot"),
    write_ahead("write-ahead-by-batch", "batch"),
    write_ahead("write-ahead-on-a-store", "slot", store=PlainStore),
    rabbit("rabbitmq-stream", RabbitStreamSystem, RabbitStreamSystem.REQUESTS[""], *STREAM),
    rabbit(
        "rabbitmq-queue",
        partial(RabbitQueueSystem, deduplicates=True),
        RabbitQueueSystem.REQUESTS[""],
        *QUEUE,
    ),
)


# --- Redis ------------------------------------------------------------------------------------------------------------


class RedisTarget(Target):
    def limit_memory(self, most: int) -> None:
        self.system.clients[0].config_set("maxmemory", most)


def redis(name: str, make: Any, **more: Any) -> Target:
    parts = ("writer", "committer", "preflight")
    preload = tuple(f"sparkonce.sinks.redis.{part}" for part in parts)
    requests = RedisSystem.REQUESTS["staged"]
    return RedisTarget(
        name, make, options={"timeout_s": 2.0}, preload=preload, requests=requests, rows=counted_rows, **more
    )


ALONE = {"alone": True, "answers_within_s": 10.0}
REDIS = (
    redis("redis", partial(RedisSystem, megabytes=32, **ALONE)),
    redis("redis-cluster", partial(RedisClusterSystem, **ALONE), cannot=(DISK_FULL, MEMORY_FULL), choice="none"),
)

# --- Pravega: each run starts a JVM and a session, so its cells are slow ----------------------------------------------


def lacks_pravega() -> str:
    try:
        jars_beside_spark(CLIENT_JAR)
    except SparkonceError as error:
        return error.message
    return ""


class PravegaTarget(Target):
    missing = staticmethod(lacks_pravega)


PRAVEGA = PravegaTarget(
    "pravega",
    PravegaSystem,
    preload=("pyspark.sql", "sparkonce.sinks.write_ahead.writer", "sparkonce_pravega.application"),
    requests=PravegaSystem.REQUESTS[""],
    rows=text_rows,
    cannot=(RESTART, DISK_FULL, MEMORY_FULL),  # the server stores its data in memory
    choice="none",
    run_within_s=240.0,
    shows_within_s=0.0,
    gone_within_s=0.0,
)

TARGETS: list[Target] = [
    toy(),
    KAFKA,
    *DATABASES,
    *FILES,
    *WAITING,
    *REDIS,
    PRAVEGA,
]

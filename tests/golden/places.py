"""Every sink there is, on real servers of its own: what the golden query writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from mariadb_witness import Witness, shared_server
from postgres_witness import fresh_database
from redis_servers import Everywhere
from s3_bucket import Bucket
from sparkonce import Guarantee, PostgresSink, WriteAheadSink
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.servers.hdfs import Hdfs
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.rig.servers.redis import RedisCluster, RedisServer
from sparkonce.rig.servers.s3 import S3Server
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.spark.tables.delta import DeltaSink
from sparkonce.spark.tables.iceberg import IcebergSink
from sparkonce.testing.kafka import create_topic
from sparkonce.write_ahead import Applies

S3_PORT = 29_000
"""It is a part of the S3 sink's facts."""

DAYS = 4
NEITHER, ONCE = Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
Rows = Callable[[Sequence[int]], pa.RecordBatch]


@dataclass(frozen=True)
class Part:
    """A sink, made anew for each run, and what it makes of a slot's numbers."""

    make: Callable[[], TwoPhaseCommitSink]
    rows: Rows


@dataclass(frozen=True)
class Servers:
    """Names the place of everything."""

    folder: Path
    spark: SparkSession
    kafka: Cluster
    postgres: PostgresServer
    mariadb: Witness
    redis: RedisServer
    cluster: RedisCluster
    bucket: Bucket
    hdfs: Hdfs

    def everywhere(self) -> Mapping[str, Everywhere]:
        return {"redis": Everywhere(self.redis), "redis.cluster": Everywhere(*self.cluster.nodes)}


@contextmanager
def started(folder: Path, spark: SparkSession) -> Iterator[Servers]:
    """Starts all servers, and makes the topics, tables and buckets."""
    with ExitStack() as stack:
        enter = stack.enter_context
        kafka = enter(Cluster(overrides={"auto.create.topics.enable": "false"}))
        for topic, partitions in (("orders", 2), ("totals", 1), ("direct", 1)):
            create_topic(kafka.bootstrap, topic, partitions=partitions)
        postgres = enter(PostgresServer())
        key = "number bigint PRIMARY KEY, text text"
        fresh_database(
            postgres,
            "CREATE TABLE numbers (number bigint, text text)",
            f"CREATE TABLE keyed ({key}, at bigint)",
            "CREATE SCHEMA markers",
        )
        mariadb = Witness(shared_server(), "shop")
        mariadb.run("CREATE TABLE numbers (number BIGINT, word VARCHAR(20)) ENGINE=InnoDB")
        mariadb.run("CREATE TABLE keyed (number BIGINT PRIMARY KEY, word VARCHAR(20)) ENGINE=InnoDB")
        bucket = Bucket(enter(S3Server(folder / "s3", S3_PORT)))
        spark.createDataFrame([], "number bigint, word string").write.format("delta").save(str(folder / "delta"))
        spark.sql("CREATE TABLE ice.db.numbers (number bigint, word string) USING iceberg")
        yield Servers(
            folder=folder,
            spark=spark,
            kafka=kafka,
            postgres=postgres,
            mariadb=mariadb,
            redis=enter(RedisServer(folder / "redis")),
            cluster=enter(RedisCluster(folder / "cluster")),
            bucket=bucket,
            hdfs=enter(Hdfs(folder / "hdfs")),
        )


def sinks(servers: Servers) -> dict[str, Part]:
    """One unit of all kinds of sinks, by name."""
    parts = [
        *_kafka(servers),
        *_files(servers),
        *_postgres(servers),
        *_mysql(servers),
        *_redis(servers),
        *_write_ahead(servers),
    ]
    return {part.make().name: part for part in parts}


def _kafka(servers: Servers) -> Iterator[Part]:
    settings = {"bootstrap.servers": servers.kafka.bootstrap}

    def make(name: str, topic: str, **more: Any) -> Part:
        return Part(lambda: KafkaSink(settings, topic=topic, name=name, **more), _messages)

    yield make("kafka", "totals", prefix="shop.eu")
    yield make("kafka.direct", "direct", guarantee=NEITHER)
    yield make("kafka.once", "direct", guarantee=ONCE)


def _files(servers: Servers) -> Iterator[Part]:
    local, remote = servers.folder / "files", f"{servers.hdfs.url}/out"
    settings = servers.bucket.server.settings()

    def make(name: str, path: str | Path, **more: Any) -> Part:
        return Part(lambda: FilesSink(path, format="json", name=name, **more), _days)

    yield make("files", local / "plain")
    yield make("files.days", local / "days", partition_by="half")
    yield make("files.list", local / "list", partition_by="day", max_file_bytes=1)
    yield make("files.direct", local / "direct", guarantee=NEITHER)
    yield make("files.once", local / "once", guarantee=ONCE)
    yield make("files.hdfs", remote)
    yield make("files.s3", f"s3://{servers.bucket.name}/out", store_options=settings)


def _postgres(servers: Servers) -> Iterator[Part]:
    to = servers.postgres.conninfo()

    def make(name: str, table: str, rows: Rows, **more: Any) -> Part:
        return Part(lambda: PostgresSink(to, table=table, name=name, **more), rows)

    keyed = {"mode": "upsert", "key_columns": ["number"], "order_by": "at"}
    yield make("postgres.two_phase", "numbers", _texts, commit="two_phase")
    yield make("postgres.staged", "numbers", _texts, prefix="shop", commits_schema="markers")
    yield make("postgres.upsert", "keyed", _dated, **keyed)
    yield make("postgres.direct", "numbers", _texts, guarantee=NEITHER)


def _mysql(servers: Servers) -> Iterator[Part]:
    def make(name: str, table: str, **more: Any) -> Part:
        return Part(lambda: MySQLSink(servers.mariadb.settings, table=table, name=name, **more), _words)

    yield make("mysql.two_phase", "numbers", commit="two_phase")
    yield make("mysql.staged", "numbers", commit="staged")
    yield make("mysql.upsert", "keyed", commit="staged", mode="upsert", key_columns=["number"])
    yield make("mysql.direct", "numbers", guarantee=NEITHER)


def _redis(servers: Servers) -> Iterator[Part]:
    shape: dict[str, Any] = {"structure": "increment", "key_template": "row:{number}"}
    yield Part(lambda: RedisSink(servers.redis.url, name="redis", **shape), _amounts)
    yield Part(lambda: RedisSink(servers.cluster.url, cluster=True, name="redis.cluster", **shape), _amounts)
    yield Part(lambda: RedisSink(servers.redis.url, name="redis.direct", guarantee=NEITHER, **shape), _amounts)


def _write_ahead(servers: Servers) -> Iterator[Part]:
    def make(name: str, **more: Any) -> Part:
        return Part(lambda: WriteAheadSink(_apply, applies=Applies.TRANSACTIONAL, name=name, **more), _words)

    yield make("write-ahead")
    yield make("orders.eu", per="batch")
    yield make("write-ahead.direct", guarantee=NEITHER)
    yield Part(lambda: DeltaSink(str(servers.folder / "delta")), _words)
    yield Part(lambda: IcebergSink("ice.db.numbers"), _words)


def _apply(rows: pa.RecordBatchReader, _: object) -> None:
    rows.read_all()


# --- rows ------------------------------------------------------------------------------------------------------------


def numbers(batch: int, slot: int) -> list[int]:
    """Gives a slot's numbers: three, but nothing in one slot."""
    return [] if (batch, slot) == (1, 1) else [100 * batch + 10 * slot + place for place in range(3)]


def _messages(given: Sequence[int]) -> pa.RecordBatch:
    return _batch(key=(given, str, pa.string()), value=(given, str, pa.string()))


def _days(given: Sequence[int]) -> pa.RecordBatch:
    """A row for each of some days, so that a slot has several partitions."""
    every = [number * 10 + day for number in given[:1] for day in range(DAYS)]
    return _batch(
        number=(every, int, pa.int64()),
        half=(every, lambda number: f"h{number % 2}", pa.string()),
        day=(every, lambda number: f"2024-05-0{number % 10 + 1}", pa.string()),
    )


def _texts(given: Sequence[int]) -> pa.RecordBatch:
    return _batch(number=(given, int, pa.int64()), text=(given, str, pa.string()))


def _dated(given: Sequence[int]) -> pa.RecordBatch:
    return _batch(number=(given, int, pa.int64()), text=(given, str, pa.string()), at=(given, int, pa.int64()))


def _words(given: Sequence[int]) -> pa.RecordBatch:
    return _batch(number=(given, int, pa.int64()), word=(given, lambda number: f"word {number}", pa.string()))


def _amounts(given: Sequence[int]) -> pa.RecordBatch:
    return _batch(number=(given, int, pa.int64()), amount=(given, lambda _: 1, pa.int64()))


def _batch(**columns: tuple[Sequence[int], Callable[[int], Any], pa.DataType]) -> pa.RecordBatch:
    arrays = {name: pa.array([make(one) for one in given], kind) for name, (given, make, kind) in columns.items()}
    return pa.record_batch(arrays)

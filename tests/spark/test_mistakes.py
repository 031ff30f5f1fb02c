"""Mistakes that are rejected when a query starts, before its first batch, and mistakes that stop a batch."""

from __future__ import annotations

import gc
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import sparkonce
import sparkonce_pravega
import sparkonce_rabbitmq
from mistakes import NOTHING, Mistake, check, keep, said
from spark.harness import new_name
from spark.in_process import MARKS, ended, stopped
from sparkonce.errors import CheckpointMismatchError, PreflightError, PrepareError, SchemaError, StaleLogError
from sparkonce.sinks.kafka import preflight
from sparkonce.spark.start import first_batch
from sparkonce_lab.kafka import create_topic, produce
from sparkonce_lab.rig.kafka import Cluster

# kafka-python leaves connections with a failed handshake to the garbage collector.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")]

ARGUMENTS = [
    Mistake("once.start(rows, trigger='available')", "trigger='available' is not a mapping"),
    Mistake("once.start(rows, trigger={'processing_time': '1 second'})", "trigger='processing_time' is not known"),
    Mistake("once.start(rows, trigger={'availableNow': True, 'once': True})", "has 2 kinds"),
    Mistake("once.start(rows, trigger={})", "has no kinds"),
    Mistake("once.start(rows, trigger={'continuous': '1 second'})", "continuous processing has no batches"),
    Mistake("once.start(rows, trigger={'realTime': '5 minutes'})", "Spark refuses foreachBatch in it"),
    Mistake("once.start(rows, output_mode='apend')", "output_mode='apend' is not known"),
    Mistake("once.start(rows, output_mode='complete')", "STREAMING_OUTPUT_MODE", AnalysisException),
    Mistake("once.start(rows, query_name=7)", "query_name=7 is not a text"),
    Mistake("once.start(rows, options={'CheckpointLocation': '/other'})", "is another folder than checkpoint="),
    Mistake("once.start(rows, options={'kafka.acks': 'all'})", "an option of one of Spark's own sinks"),
    Mistake("once.start(rows, options='checkpointLocation')", "options='checkpointLocation' is not a mapping"),
    Mistake("once.start()", "missing 1 required positional argument: 'df'", TypeError),
    Mistake("once.start('orders')", "df='orders' is not a DataFrame"),
    Mistake("once.start(spark.range(5))", "df=<DataFrame> does not stream"),
    Mistake("once(spark.range(5), 0)", "ExactlyOnce was called outside a streaming query"),
    Mistake("explain(rows, sink, reader='committed')", "reader="),
    Mistake("explain(rows)", "where its rows go"),
    Mistake("explain('job.py')", "query='job.py' cannot be explained"),
    Mistake("read_kafka(spark, 'broker:9092', topics='t')", "settings='broker:9092' is not a mapping"),
    Mistake("read_kafka(spark, {'bootstrap.server': 'broker:9092'}, topics='t')", "Write bootstrap.servers"),
    Mistake("read_kafka(spark, settings)", "exactly one of topics, pattern and partitions"),
    Mistake("read_kafka(spark, settings, topics=7)", "topics=7 is not a list of texts"),
    Mistake("read_kafka(spark, settings, pattern='(')", "is not a regular expression of Java's"),
    Mistake("read_kafka(spark, settings, partitions={'t': 'all'})", "does not name partitions by number"),
    Mistake("read_kafka(spark, settings, topics='t', starting='begin')", "starting='begin' is not a position"),
    Mistake("read_kafka(spark, settings, topics='t', isolation_level='committed')", "isolation_level='committed'"),
    Mistake("read_kafka(spark, settings, topics='t', max_offsets_per_trigger='1000')", "is not a whole number of 1"),
    Mistake("read_kafka(spark, settings, topics='t', fail_on_data_loss='false')", "is neither True nor False"),
    Mistake("read_kafka(spark, settings, topics='t', options={'startingOffsets': 'latest'})", "is set by an argument"),
    Mistake("read_rabbitmq_stream(spark, 'rabbit', streams='s')", "server='rabbit' is not a RabbitMQ"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ())", "exactly one of streams and super_stream"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', super_stream='t')", "exactly one of streams and"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams=7)", "streams=7 is not a list of texts"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', starting='begin')", "is not a starting position"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', starting=17)", "is not a starting position"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', starting={'t': 17})", "is not one of the streams"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', max_rows_per_batch=0)", "whole number of 1 or more"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', body='json')", "body='json' is not known"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', offset_name='')", "offset_name='' is empty"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', accept_lost={'s': '17'})", "accept_lost['s']='17'"),
    Mistake("read_rabbitmq_stream(spark, RabbitMQ(), streams='s', accept_lost={'t': 17})", "is not one of the streams"),
    Mistake("read_rabbitmq_queue(spark, 'rabbit', queue='q', checkpoint='/cp')", "server='rabbit' is not a RabbitMQ"),
    Mistake("read_rabbitmq_queue(spark, RabbitMQ(), queue='', checkpoint='/cp')", "queue='' is empty"),
    Mistake("read_rabbitmq_queue(spark, RabbitMQ(), queue='q', checkpoint='')", "checkpoint='' names no folder"),
    Mistake("read_rabbitmq_queue(spark, RabbitMQ(), queue='q', checkpoint='/cp', prefetch=0)", "prefetch=0 is not"),
    Mistake("read_rabbitmq_queue(spark, RabbitMQ(), queue='q', checkpoint='/cp', identify='id')", "identify='id'"),
    Mistake("read_rabbitmq_queue(spark, RabbitMQ(), queue='q', checkpoint='/cp', acknowledge='now')", "is not known"),
    Mistake("read_rabbitmq_queue(spark, RabbitMQ(), queue='q', checkpoint='/cp', remember=10)", "of 131070 or more"),
    Mistake("read_pravega(spark, 'host:9090', scope='a', stream='b')", "does not begin with one of tcp://"),
    Mistake("read_pravega(spark, 'tcp://host:9090', scope='a', stream='')", "stream='' is empty"),
    Mistake("read_pravega(spark, 'tcp://host:9090', scope='a', stream='b', starting='begin')", "of a stream cut"),
    Mistake("read_pravega(spark, 'tcp://host:9090', scope='a', stream='b', accept_lost='all')", "of a stream cut"),
    Mistake("read_pravega(spark, 'tcp://host:9090', scope='a', stream='b', max_bytes_per_batch=0)", "of 1 or more"),
]


START = [
    Mistake("ExactlyOnce(sink, checkpoint='/dev/null/cp').start(rows)", "cannot be written to, or has no hard links"),
    Mistake("ExactlyOnce(sink, checkpoint='/proc/cp').start(rows)", "cannot be written to, or has no hard links"),
    Mistake("to(KafkaSink(settings, topic='missing')).start(rows)", "'missing' does not exist", PreflightError),
    Mistake("to(KafkaSink(settings)).start(rows)", "a column 'topic'"),
    Mistake("to(sink).start(rows.select('key'))", "olumn 'value'", SchemaError),
    Mistake("to(sink).start(rows.selectExpr('length(value) as value'))", "olumn 'value'", SchemaError),
    Mistake("to(KafkaSink({**settings, 'linger.mss': 5}, topic=topic)).start(rows)", "linger.mss"),
    Mistake(
        "to(KafkaSink({**settings, 'transaction.timeout.ms': 3600000}, topic=topic)).start(rows)",
        "transaction.max.timeout.ms=900000",
        PreflightError,
    ),
    Mistake(
        "to(KafkaSink({'bootstrap.servers': '127.0.0.1:1'}, topic='t')).start(rows)", "ECONNREFUSED", PreflightError
    ),
    Mistake(
        "to(KafkaSink({**settings, 'security.protocol': 'SSL'}, topic=topic)).start(rows)", "speaks TLS", PreflightError
    ),
    Mistake("to(FilesSink(out, partition_by='day')).start(rows)", "day", SchemaError),
    Mistake("ExactlyOnce(FilesSink(out), checkpoint=out + '/cp').start(rows)", "or one lies inside the other"),
    Mistake("to(FilesSink('/proc/out')).start(rows)", "cannot be written to", PreflightError),
    Mistake("to(DeltaSink(out)).start(rows)", "Delta", PreflightError),
    Mistake("to({sink: lambda df: None}).start(rows)", "returned a NoneType"),
    Mistake("to({sink: lambda df: rows}).start(rows)", "returned a DataFrame that streams"),
    Mistake("to({sink: lambda df: df.select('amount')}).start(rows)", "The view of sink ['kafka'] cannot be computed"),
    Mistake("to({sink: lambda df: df.where(df.first().value > 'm')}).start(rows)", "gives it a batch without rows"),
    Mistake("to(sink).start(rows.selectExpr('value', 'key as value'))", "'value' appears more than once", SchemaError),
    Mistake("to(sink).start(rows.selectExpr('value', 'array() as tags'))", "'tags' is array<void>", SchemaError),
]


RUNNING = [
    Mistake("a query whose `foreachBatch(once)` has no option `checkpointLocation`", "has no option", run="none"),
    Mistake("a query whose `foreachBatch(once)` has another `checkpointLocation`", "s checkpointLocation", run="other"),
    Mistake("`foreachBatch` gets a function that calls `once(df, batch)` twice", "given to this", run="doubled"),
    Mistake("a function of the user's raises", "ValueError: boom", PrepareError, run="udf"),
    Mistake("a row is larger than the topic takes", "oo large", PrepareError, run="large"),
    Mistake("the rows' `partition` is none of the topic's", "Unknown partition", PrepareError, run="partition"),
    Mistake("the checkpoint was moved", "checkpoint_moved=True", CheckpointMismatchError, run="moved"),
]


class Place:
    """The names that the code of the mistakes may use."""

    def __init__(self, spark: SparkSession, kafka: Cluster, folder: Path) -> None:
        self.spark = spark
        self.kafka = kafka
        self.folder = folder
        self.topic, self.source = new_name("target"), new_name("source")
        create_topic(kafka.bootstrap, self.topic, 2)
        create_topic(kafka.bootstrap, self.source, 4)
        sent = [{"key": b"k", "value": b"v", "partition": number} for number in range(4)]
        produce(kafka.bootstrap, self.source, sent, timeout_s=60)
        self.settings = {"bootstrap.servers": kafka.bootstrap}
        self.queries: list[StreamingQuery] = []

    @property
    def sink(self) -> sparkonce.KafkaSink:
        return sparkonce.KafkaSink(self.settings, topic=self.topic)

    @property
    def rows(self) -> DataFrame:
        records = self.spark.readStream.format("rate").load()
        return records.selectExpr("cast(value as string) as key", "cast(value as string) as value")

    @property
    def records(self) -> DataFrame:
        return sparkonce.read_kafka(self.spark, self.settings, topics=self.source)

    def to(self, sinks: Any) -> sparkonce.ExactlyOnce:
        made = sparkonce.ExactlyOnce(sinks, checkpoint=str(self.folder / new_name("c")), display=False)
        start = made.start

        def kept(df: Any, **more: Any) -> StreamingQuery:
            self.queries.append(start(df, **more))
            return self.queries[-1]

        if isinstance(sinks, sparkonce.sink.TwoPhaseCommitSink | dict):
            made.start = kept
        return made

    def run(self, plan: Callable[[DataFrame], DataFrame], once: sparkonce.ExactlyOnce | None = None) -> str:
        made = once or sparkonce.ExactlyOnce(self.sink, checkpoint=str(self.folder / new_name("c")), display=False)
        return why(lambda: made.start(plan(self.records), trigger="availableNow"))

    def by_hand(self, location: Path | None) -> str:
        once = sparkonce.ExactlyOnce(self.sink, checkpoint=str(self.folder / "once"), display=False)
        writer = self.records.select("value").writeStream.foreachBatch(once).trigger(availableNow=True)
        options = {} if location is None else {"checkpointLocation": str(location)}
        return why(lambda: writer.options(**options).start())

    def doubled(self) -> str:
        checkpoint = str(self.folder / "doubled")
        once = sparkonce.ExactlyOnce(self.sink, checkpoint=checkpoint, display=False)

        def both(df: DataFrame, batch: int) -> None:
            once(df.where("value = 'v'"), batch)
            once(df.where("value <> 'v'"), batch)

        writer = self.records.select("value").writeStream.foreachBatch(both).trigger(availableNow=True)
        return why(lambda: writer.option("checkpointLocation", checkpoint).start())

    def none(self) -> str:
        return self.by_hand(None)

    def other(self) -> str:
        return self.by_hand(self.folder / "other")

    def udf(self) -> str:
        @F.udf("string")
        def boom(value: bytes) -> str:
            raise ValueError("boom")

        return self.run(lambda rows: rows.select(boom("value").alias("value")))

    def large(self) -> str:
        return self.run(lambda rows: rows.selectExpr("repeat('x', 2000000) as value"))

    def partition(self) -> str:
        return self.run(lambda rows: rows.selectExpr("value", "cast(7 as int) partition"))

    def moved(self) -> str:
        before, after = self.folder / "before", self.folder / "after"
        values: Callable[[DataFrame], DataFrame] = lambda rows: rows.select("value")  # noqa: E731
        assert self.run(values, sparkonce.ExactlyOnce(self.sink, checkpoint=str(before), display=False)) == NOTHING
        before.rename(after)
        produce(self.kafka.bootstrap, self.source, [{"key": b"k", "value": b"v", "partition": 0}], timeout_s=60)
        return self.run(values, sparkonce.ExactlyOnce(self.sink, checkpoint=str(after), display=False))

    def twice(self) -> str:
        once = self.to(self.sink)
        once.start(self.rows)
        return str(once.start(self.rows))

    def named(self) -> str:
        self.to(self.sink).start(self.rows, query_name="orders")
        return str(self.to(self.sink).start(self.rows, query_name="orders"))

    def output(self) -> str:
        folder, checkpoint = self.folder / "files", str(self.folder / "of-files")
        for _ in range(2):
            once = sparkonce.ExactlyOnce(sparkonce.FilesSink(folder), checkpoint=checkpoint, display=False)
            ended(once.start(self.records.select("value"), trigger={"availableNow": True}))
            shutil.rmtree(folder)
        return NOTHING

    def slots(self) -> str:
        before = self.spark.conf.get("spark.sql.shuffle.partitions")
        self.spark.conf.set("spark.sql.shuffle.partitions", "200")
        try:
            with warnings() as told:
                self.to(self.sink).start(self.rows.dropDuplicates(["key"]))
        finally:
            self.spark.conf.set("spark.sql.shuffle.partitions", str(before))
        return told()

    def much(self) -> str:
        rows = sparkonce.read_kafka(self.spark, self.settings, topics=self.source, max_offsets_per_trigger=None)
        with pytest.MonkeyPatch.context() as patch, warnings() as told:
            patch.setattr(first_batch, "SLOW_ROWS_PER_S", 1)
            sink = sparkonce.KafkaSink({**self.settings, "transaction.timeout.ms": 1000}, topic=self.topic)
            self.to(sink).start(rows.select("value"))
        return told()

    def log(self) -> str:
        folder = self.folder / "log"
        for _ in range(2):
            told = self.run(
                lambda rows: rows.select("value"),
                sparkonce.ExactlyOnce(self.sink, checkpoint=str(folder), display=False),
            )
            if (folder / "sparkonce").exists():
                shutil.rmtree(folder / "sparkonce")
            produce(self.kafka.bootstrap, self.source, [{"key": b"k", "value": b"v", "partition": 0}], timeout_s=60)
        return told


@contextmanager
def warnings() -> Iterator[Callable[[], str]]:
    """Collects the warnings of all threads."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("sparkonce")
    logger.addHandler(handler)
    try:
        yield lambda: f"Warning: {told[-1]}" if told else NOTHING
    finally:
        logger.removeHandler(handler)


def why(start: Callable[[], StreamingQuery]) -> str:
    """Returns our message from the error that Spark shows."""
    try:
        ended(start())
    except StreamingQueryException as error:
        found = re.findall(r"^(?:sparkonce\.errors\.)?(\w+Error: .*)$", str(error), re.MULTILINE)
        return str(found[-1]) if found else str(error)
    return NOTHING


@pytest.fixture(scope="module")
def place(spark, kafka, tmp_path_factory) -> Iterator[Place]:
    made = Place(spark, kafka, tmp_path_factory.mktemp("mistakes"))
    yield made
    for query in made.queries:
        stopped(query)


@pytest.fixture
def names(place) -> dict[str, Any]:
    return {
        **{
            name: getattr(one, name)
            for one in (sparkonce, sparkonce_pravega, sparkonce_rabbitmq)
            for name in one.__all__
        },
        **{name: getattr(place, name) for name in ("spark", "settings", "sink", "rows", "topic", "to")},
        "once": sparkonce.ExactlyOnce(place.sink, checkpoint=str(place.folder / "c")),
        "nowhere": {"bootstrap.servers": "127.0.0.1:1"},
        "out": str(place.folder / "out"),
        "counted": place.rows.groupBy("key").count().selectExpr("key", "cast(count as string) as value"),
        "four_partitions": place.source,
    }


def test_what_a_start_refuses(place, names):
    check([(one, said(one, names)) for one in ARGUMENTS])
    rows = []
    for one in START:
        with pytest.MonkeyPatch.context() as patch:
            if "127.0.0.1:1" in one.code:  # nothing answers there, however long it is asked
                patch.setattr(preflight, "TIMEOUT_S", 1.0)
            if "missing" in one.code:
                patch.setattr(preflight, "SURE_AFTER_S", 0.0)
            rows.append((one, said(one, names)))
    keep("start", rows, place.folder)
    assert not list(place.folder.rglob("offsets")), "no query had started"
    gc.collect()  # the sockets must not surface in another test


@pytest.mark.slow
def test_what_is_seen_at_a_start_by_asking(place, names):
    # Mistakes that only a check of the servers, the plan, and the folders reveals, not the arguments alone.
    after_start = [
        Mistake(
            "a notebook's cell with `start(rows, query_name='orders')` is run twice", "runs already in", run="named"
        ),
        Mistake("the same `ExactlyOnce` is started a second time", "is already running, as query", run="twice"),
        Mistake(
            "a files sink's folder is deleted, and the checkpoint kept", "was deleted", PreflightError, run="output"
        ),
        Mistake("to(sink).start(read_kafka(spark, nowhere, topics='t'))", "did not answer within", PreflightError),
        Mistake("to(sink).start(read_kafka(spark, settings, topics='missing'))", "does not exist", PreflightError),
        Mistake(
            "to(sink).start(read_kafka(spark, settings, topics=four_partitions))", "has 4 partitions", PreflightError
        ),
        Mistake(
            "to(sink).start(rows.dropDuplicates(['key']))  # 200 shuffle partitions", "200 slots", Warning, run="slots"
        ),
        Mistake("to(sink).start(counted, output_mode='complete')", "writes the whole result again", Warning),
        Mistake(
            "`max_offsets_per_trigger=None` on a topic with a backlog, here a small one",
            "rows. At",
            Warning,
            run="much",
        ),
        Mistake("the folder `sparkonce` in the checkpoint is deleted", "remembers more", StaleLogError, run="log"),
    ]
    rows = []
    for one in after_start:
        rows.append((one, said(one, names, getattr(place, one.run) if one.run else None)))
        while place.queries:
            stopped(place.queries.pop())
    keep("after the start", rows, place.folder)


def test_what_stops_a_batch(place, names):
    keep("running", [(one, said(one, names, getattr(place, one.run))) for one in RUNNING], place.folder)

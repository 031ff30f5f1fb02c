"""A query in the test's own process, for tests that kill nothing. A crash is an exception at an exact point."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from eventually import LIMIT_S
from kafka_transactions import await_aborted, await_markers, transactions_of
from spark.harness import new_name
from sparkonce import ExactlyOnce, KafkaSink
from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import SparkonceError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token, short_query
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner, TwoPhaseCommitSink
from sparkonce.spark.query_end import wait_until_closed
from sparkonce.spark.views import Sinks, shares, views_of
from sparkonce.spark.work import SparkWork
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce_lab.kafka import Transaction, create_topic, produce, read_committed
from sparkonce_lab.rig.kafka import Cluster

# PySpark does not close the sockets of its callbacks.
SPARK = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
MARKS = [pytest.mark.kafka, *SPARK]
"""For every module that uses this one, or the session alone: `SPARK`."""


@contextmanager
def travelling(*modules: ModuleType) -> Iterator[None]:
    """Pickles definitions of these modules by value, since Spark's workers cannot import test modules."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


@contextmanager
def new_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with separate settings. Afterward, the previous session is active again.

    PySpark's `createDataFrame` activates its session, and Spark looks there for formats.
    """
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    before = SparkSession._activeSession or spark
    try:
        yield spark.newSession()
    finally:
        SparkSession._activeSession = before
        sessions.setActiveSession(before._jsparkSession)


def ended(query: StreamingQuery) -> StreamingQuery:
    """Waits for the end; raises what stopped it."""
    try:
        assert query.awaitTermination(int(LIMIT_S)), f"not done after {LIMIT_S:.0f} s"
    finally:
        stopped(query)
    return query


def stopped(query: StreamingQuery) -> None:
    query.stop()
    wait_until_closed(query.runId)  # until then, the run may still write its timeline
    gc.collect()  # PySpark leaves open sockets in reference cycles, which must not surface in another test


class CrashError(RuntimeError):
    """Ends a run instead of a kill."""


def call_at(phase: Phase, batch: int, action: Callable[[], object]) -> Callable[[Phase, int], None]:
    """Returns a listener that calls the action in this phase of this batch."""

    def listen(at: Phase, of: int) -> None:
        if (at, of) == (phase, batch):
            action()

    return listen


def crash_at(phase: Phase, batch: int) -> Callable[[Phase, int], None]:
    """Returns a listener that ends the run in this phase of this batch."""

    def crash() -> None:
        raise CrashError(f"{phase.name} of batch {batch}")

    return call_at(phase, batch, crash)


class Query(ExactlyOnce):
    """Records the error that stopped it, since Spark only passes on its text."""

    error: SparkonceError | CrashError | None = None

    def __call__(self, df: DataFrame, batch: int) -> None:
        try:
            super().__call__(df, batch)
        except (SparkonceError, CrashError) as error:
            self.error = error
            raise

    def write(self, rows: DataFrame) -> None:
        """Writes everything that is available now.

        Raises:
            SparkonceError, CrashError: The error that stopped the query.
        """
        query = self.start(rows, trigger={"availableNow": True})
        try:
            ended(query)
        except StreamingQueryException:
            if self.error is None:
                raise
            raise self.error from None


IDS = [f"{number:05d}" for number in range(1_000)]


class Stream:
    """A query with a source, a target and a checkpoint, on a session that others use too.

    The ids are the keys and values of the source's rows, one partition after the other.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: Cluster,
        folder: Path,
        ids: Iterable[str] = (),
        *,
        partitions: int = 4,
        target_config: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.bootstrap = kafka.bootstrap
        self.checkpoint = folder / "checkpoint"
        self.partitions = partitions
        self.source, self.target = new_name("source"), new_name("target")
        create_topic(self.bootstrap, self.source, partitions)
        create_topic(self.bootstrap, self.target, partitions, target_config)
        self.send(ids)

    def send(self, ids: Iterable[str]) -> None:
        rows = ((each.encode(), number % self.partitions) for number, each in enumerate(ids))
        messages = ({"key": each, "value": each, "partition": partition} for each, partition in rows)
        produce(self.bootstrap, self.source, messages, timeout_s=LIMIT_S)

    def records(self, rows_per_batch: int) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.source).option("startingOffsets", "earliest")
        records = reader.option("maxOffsetsPerTrigger", rows_per_batch).load()
        return records.selectExpr("cast(key as string) as key", "cast(value as string) as value")

    def run(
        self,
        plan: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        *,
        rows_per_batch: int = 400,
        checkpoint: Path | None = None,
        sink: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        sinks: Callable[[KafkaSink], Sinks] = lambda kafka: kafka,
        **more: Any,
    ) -> list[BatchProgress]:
        """Writes all rows currently in the source to the target, or to the sinks that ``sinks`` makes from its sink."""
        servers = {"bootstrap.servers": self.bootstrap, **(settings or {})}
        kafka = KafkaSink(servers, **{"topic": self.target, **(sink or {})})
        query = Query(sinks(kafka), checkpoint=str(checkpoint or self.checkpoint), display=False, **more)
        query.write(plan(self.records(rows_per_batch)))
        return query.progress()

    def keys(self, topic: str = "") -> list[str]:
        """Reads the keys in a topic, read_committed, sorted, once the broker has written all markers."""
        await_markers(self.bootstrap, self._query())
        return sorted((record.key or b"").decode() for record in read_committed(self.bootstrap, topic or self.target))

    def transactions(self, *states: str) -> dict[str, Transaction]:
        """Lists the query's own transactions on the server."""
        return transactions_of(self.bootstrap, self._query(), *states)

    def await_aborted(self) -> None:
        """Waits until the broker has aborted the query's transactions that are past their timeout."""
        await_aborted(self.bootstrap, self._query())

    def _query(self) -> str:
        return short_query(SparkCheckpoint(LocalFiles(self.checkpoint)).query_id() or "")


def write_batch(
    sink: TwoPhaseCommitSink, rows: DataFrame, batch: int = 0, *more: Any, claim: int = 0, **options: Any
) -> tuple[Sequence[Handle], bool]:
    """Writes a batch as a query's run does, without Spark's streaming. See `SparkWork`."""
    facts = sink.preflight("0123456789ab", None)
    owner = Owner(query="0123456789ab", token=Token(claim, "0" * 8), facts=facts)
    return SparkWork(rows, batch, shares(views_of(sink)), *more, **options).write({sink.name: owner}, None)

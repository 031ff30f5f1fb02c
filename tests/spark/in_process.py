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
from sparkonce.storage.spark import SparkCheckpoint
from sparkonce_lab.kafka import Transaction, create_topic, produce, read_committed
from sparkonce_lab.rig.kafka import Cluster

LIMIT_S = 180.0

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
    """A session with settings of its own. Afterwards, the previous session is active again.

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
    wait_until_closed(query.runId)  # until then, its timeline may still be written
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


class _Recording(ExactlyOnce):
    """Records the error that stopped it, since Spark only passes on its text."""

    error: SparkonceError | CrashError | None = None

    def __call__(self, df: DataFrame, batch: int) -> None:
        try:
            super().__call__(df, batch)
        except (SparkonceError, CrashError) as error:
            self.error = error
            raise


class Stream:
    """A job with a source, a target and a checkpoint, on a session that others use too.

    Args:
        spark: The session.
        kafka: The broker.
        folder: A new folder, or one with a checkpoint.
        ids: The keys and values of the source's rows, one partition after the other.
        partitions: The number of partitions of the source and of the target.
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
        """Writes all rows currently in the source to the target, or to the sinks that ``sinks`` makes from its sink.

        Raises:
            SparkonceError, CrashError: The error that stopped the query.
        """
        servers = {"bootstrap.servers": self.bootstrap, **(settings or {})}
        kafka = KafkaSink(servers, **{"topic": self.target, **(sink or {})})
        folder = str(checkpoint or self.checkpoint)
        exactly_once = _Recording(sinks(kafka), checkpoint=folder, display=False, **more)
        query = exactly_once.start(plan(self.records(rows_per_batch)), trigger={"availableNow": True})
        try:
            ended(query)
        except StreamingQueryException:
            if exactly_once.error is None:
                raise
            raise exactly_once.error from None
        return exactly_once.progress()

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


ROWS = [f"row-{number:03d}" for number in range(60)]


def run(writer: Any, *, table: str | None = None) -> StreamingQuery:
    """Starts the writer on everything that its source has now, and waits for the end."""
    started = writer.trigger(availableNow=True)
    return ended(started.start() if table is None else started.toTable(table))


def forget(folder: Path, keep: int = 0) -> None:
    """Deletes the entries of one of Spark's logs from a number on, with their checksums."""
    numbers = [entry for entry in folder.iterdir() if entry.name.isdigit() and int(entry.name) >= keep]
    assert numbers, f"{folder} has no entry from {keep} on"
    for entry in numbers:
        entry.unlink()
        (folder / f".{entry.name}.crc").unlink(missing_ok=True)


def forget_commit(checkpoint: Path) -> None:
    """Simulates a driver that died after its sink committed the last batch, and before Spark recorded that."""
    commits = checkpoint / "commits"
    forget(commits, max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit()))


def write_lines(folder: Path, name: str, lines: Iterable[str]) -> Path:
    """Writes a text file for a streaming source. It is created elsewhere and renamed into place."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}-{name}"
    made.write_text("".join(f"{line}\n" for line in lines))
    return made.rename(folder / name)


def read_lines(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("text").options(**options).load(str(folder))


class Batches:
    """A function for ``foreachBatch`` that keeps its rows, like a system without transactions.

    Attributes:
        taken: The batch and the rows of each call.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[int, list[Any]]] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.taken.append((batch, sorted(tuple(row) for row in rows.collect())))

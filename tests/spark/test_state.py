"""Stateful queries are killed (SIGKILL, with JVM and workers) at points where output and state may diverge.

The first tier of tests has the `dropDuplicates` query that `test_kills` kills in every phase. Here, each plan is
combined with one of the state stores. Several queries share a Spark session, so that a single slow start covers all of
them.

Each query has a twin that reads the same input, and that nothing disturbs: readers must see the same output.

Each source row has a name (its key) and a second (its value). The second is both the event time and the value that is
summed. Rows arrive out of order, but never later than the watermark's delay, so Spark drops none of them, and the
output does not depend on where batches end. (`sliding` writes updates, so its output depends on the batches.) The input
ends with closing rows, all with the same second far in the future. They close every earlier window, but not their own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from eventually import LIMIT_S
from spark.harness import (
    INSIDE,
    POINTS,
    AnyJob,
    IsDue,
    Message,
    Observation,
    Row,
    start_together,
    strike,
)
from spark.plans import records
from sparkonce.protocol.state import Phase
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark.pipeline import Config

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

DELAY_S = 1_200
TUMBLING_S = 200
SLIDING_S, SLIDE_S = 1_000, 500
GAP_S = 45
RANGE_S = 600
TOTAL_S = 50
EPOCH_S = 1_700_000_000
CLOSING_S = EPOCH_S + 10_000_000


class Event(NamedTuple):
    """A source row. Its second counts from 1970."""

    name: str
    second: int

    @property
    def message(self) -> Message:
        return self.name.encode(), str(self.second).encode()


# --- what is sent -----------------------------------------------------------------------------------------------------


def shuffled(events: Iterable[Event], seed: int = 1) -> list[Event]:
    """Puts events into an order of arrival. No event is later than the delay, minus some slack, behind the newest one.

    The slack is for the partitions, which a batch does not read up to exactly the same row.
    """
    chance = random.Random(seed)
    return sorted(events, key=lambda event: event.second + chance.uniform(0, DELAY_S - 100))


def groups(rows: int) -> list[Event]:
    """Returns seven names in turn, with one row per second."""
    return shuffled(Event(f"g{second % 7}", EPOCH_S + second) for second in range(rows))


def visits(rows: int) -> list[Event]:
    """Names that appear every ten seconds for two minutes, then pause for 80 s.

    After 1,000 s, there are ten new ones.
    """
    seconds = (second for second in range(2 * rows) if second % 200 < 120)
    return shuffled(Event(f"u{second // 1000}-{second % 10}", EPOCH_S + second) for second in islice(seconds, rows))


def both_sides(rows: int) -> tuple[list[Event], list[Event]]:
    """Returns one name per second on the left. On the right are half of them in time, some twice, and some too late."""
    left = [Event(f"id{second}", EPOCH_S + second) for second in range(rows)]
    right = []
    for number, (name, second) in enumerate(left):
        if number % 2 == 0:
            right.append(Event(name, second + number * 37 % (RANGE_S + 1)))
        if number % 4 == 0:
            right.append(Event(name, second + number * 41 % (RANGE_S + 1)))
        if number % 8 == 1:
            right.append(Event(name, second + RANGE_S + 1 + number % 300))
    return shuffled(left), shuffled(right, seed=2)


def repeated(rows: int) -> list[Event]:
    """One name per second. Every fifth name is repeated 5,000 s later."""
    first = [Event(f"n{second}", EPOCH_S + second) for second in range(rows)]
    return shuffled([*first, *(Event(name, second + 5_000) for name, second in first[:-5_000:5])])


def recurring(rows: int) -> list[Event]:
    """One name per second. Every third name occurs twice within 700 s, and all names are repeated after 6,000 s."""
    first = [Event(f"n{second % 6_000}", EPOCH_S + second) for second in range(rows * 3 // 4)]
    return shuffled([*first, *(Event(name, second + second % 700) for name, second in first[::3])])


def blocks(rows: int) -> list[Event]:
    """Names of `TOTAL_S` seconds each."""
    return shuffled(Event(_block(EPOCH_S + second), EPOCH_S + second) for second in range(rows))


def _block(second: int) -> str:
    return f"b{second // TOTAL_S}"


def complete_at_s(name: str) -> int:
    """The second at which all rows of one of `blocks` are over."""
    return (int(name[1:]) + 1) * TOTAL_S


def closing(source: int) -> Event:
    """A closing row. Those of two sources do not meet in a join."""
    return Event(f"{_block(CLOSING_S)}{'0' * source}", CLOSING_S)


# --- the plans --------------------------------------------------------------------------------------------------------


def events(spark: SparkSession, config: Config, source: int = 0) -> DataFrame:
    """Name, second and time of a source's rows, with a watermark."""
    second = F.col("value").cast("string").cast("long")
    rows = records(spark, config, source).select(F.col("key").cast("string").alias("name"), second.alias("second"))
    return rows.withColumn("time", F.timestamp_seconds("second")).withWatermark("time", f"{DELAY_S} seconds")


def _sums(spark: SparkSession, config: Config, window: Column) -> DataFrame:
    summed = (
        events(spark, config)
        .groupBy("name", window.alias("window"))
        .agg(F.sum("second").alias("sum"), F.count("*").alias("count"))
    )
    start, end = (F.col(f"window.{bound}").cast("long") for bound in ("start", "end"))
    return summed.select(
        F.concat_ws(" ", "name", start, end).alias("key"), F.concat_ws(" ", "sum", "count").alias("value")
    )


def tumbling(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.window("time", f"{TUMBLING_S} seconds"))


def sliding(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.window("time", f"{SLIDING_S} seconds", f"{SLIDE_S} seconds"))


def session(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.session_window("time", f"{GAP_S} seconds"))


def _join(spark: SparkSession, config: Config, kind: str) -> DataFrame:
    left, right = (events(spark, config, source).alias(side) for source, side in enumerate(("left", "right")))
    until = F.col("left.time") + F.expr(f"interval {RANGE_S} seconds")
    same = F.col("left.name") == F.col("right.name")
    joined = left.join(right, same & F.col("right.time").between(F.col("left.time"), until), kind)
    other = F.coalesce(F.col("right.second").cast("string"), F.lit("nobody"))
    return joined.select(F.col("left.name").alias("key"), F.concat_ws(" ", F.col("left.second"), other).alias("value"))


def inner_join(spark: SparkSession, config: Config) -> DataFrame:
    return _join(spark, config, "inner")


def left_outer_join(spark: SparkSession, config: Config) -> DataFrame:
    return _join(spark, config, "leftOuter")


def distinct(spark: SparkSession, config: Config) -> DataFrame:
    return events(spark, config).select(F.col("name").alias("key")).dropDuplicates(["key"])


def distinct_within_watermark(spark: SparkSession, config: Config) -> DataFrame:
    return events(spark, config).dropDuplicatesWithinWatermark(["name"]).select(F.col("name").alias("key"))


def transform_with_state(spark: SparkSession, config: Config) -> DataFrame:
    """A value state and a timer for each name, which output the sum of its seconds once all of them have arrived."""
    grouped = events(spark, config).groupBy("name")
    output = "key string, value string"
    return grouped.transformWithStateInPandas(
        Totals(), outputStructType=output, outputMode="Append", timeMode="EventTime"
    )


class Totals(StatefulProcessor):
    """Keeps the sum and count of a name until the watermark has passed its last second."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "sum long, count long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        if not self._total.exists():
            self._handle.registerTimer(complete_at_s(key[0]) * 1000)
        sum_, count = self._total.get() if self._total.exists() else (0, 0)
        for each in rows:
            sum_, count = sum_ + int(each["second"].sum()), count + len(each)
        self._total.update((sum_, count))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        sum_, count = self._total.get()
        self._total.clear()
        yield pd.DataFrame({"key": [key[0]], "value": [f"{sum_} {count}"]})

    def close(self) -> None:
        pass


PLANS: Mapping[str, Callable[[int], Sequence[list[Event]]]] = {
    "transform_with_state": lambda rows: [blocks(rows)],
    "tumbling": lambda rows: [groups(rows)],
    "sliding": lambda rows: [groups(rows)],
    "session": lambda rows: [visits(rows)],
    "inner_join": both_sides,
    "left_outer_join": both_sides,
    "distinct": lambda rows: [repeated(rows)],
    "distinct_within_watermark": lambda rows: [recurring(rows)],
}
"""For each plan, a function that makes the rows of its sources."""


# --- their jobs -------------------------------------------------------------------------------------------------------

ROWS_PER_BATCH = 1_000
WARM = 3
"""Batches before the first kill: no window closes in the first ones."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
CHANGELOG = {**ROCKSDB, "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
OFTEN = {
    # Take snapshots of the state and clean it up constantly, so that some kills hit these, too.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
}
STORES = {"hdfs": OFTEN, "rocksdb": {**OFTEN, **ROCKSDB}, "changelog": {**OFTEN, **CHANGELOG}}
FILES = {"hdfs": {".delta"}, "rocksdb": {".zip"}, "changelog": {".changelog", ".zip"}}
"""The file extensions that show which state store wrote the state."""


class Case(NamedTuple):
    """A plan, its state store, and whether Spark also runs batches without data, which close windows and fire timers.

    If it does, the kills fall into these batches, and the input arrives in pieces, one before each start.
    """

    plan: str
    store: str
    no_data: bool = False


class StateJob(AnyJob):
    """A query with one of the plans."""

    def __init__(self, bootstrap: str, folder: Path, case: Case, batches: int, *, undisturbed: bool = False) -> None:
        self.case = case
        self.rows = [[event.message for event in source] for source in PLANS[case.plan](batches * ROWS_PER_BATCH)]
        self.closing = [[closing(number).message] * 2 * ROWS_PER_BATCH for number in range(len(self.rows))]
        self.kills: list[Observation] = []
        self._pieces = 0
        super().__init__(
            bootstrap,
            folder / f"{'-'.join(map(str, case))}{'-undisturbed' if undisturbed else ''}",
            sources=len(self.rows),
            plan=f"spark.test_state:{case.plan}",
            output_mode="update" if case.plan == "sliding" else "append",
            slots=2,
            rows_per_batch=ROWS_PER_BATCH,
            keep_batches=3,
            tidy_every_batches=1,
            points=INSIDE,
            sql={"spark.sql.streaming.noDataMicroBatches.enabled": str(case.no_data).lower(), **STORES[case.store]},
        )

    def feed(self) -> None:
        """Sends the input for the next start: one more batch, or everything if batches without data do not matter."""
        self._send(max(self._pieces, WARM) + 1 if self.case.no_data else max(map(len, self.rows)))

    def feed_all(self) -> None:
        """Sends the remaining rows, and those that close the last windows."""
        self._send(max(map(len, self.rows)))
        for source, messages in enumerate(self.closing):
            self.send(messages, source)

    def _send(self, pieces: int) -> None:
        first, self._pieces = self._pieces, pieces
        for source, messages in enumerate(self.rows):
            self.send(messages[first * ROWS_PER_BATCH : pieces * ROWS_PER_BATCH], source)

    def is_due(self) -> IsDue:
        """Makes all batches due except the first one of their run, so that the state progresses between two kills."""
        first = max(self.decided() + 2, WARM)
        return lambda batch: batch >= first and (not self.case.no_data or self.is_without_data(batch))

    def is_without_data(self, batch: int) -> bool:
        kept = SparkCheckpoint(LocalFiles(self.checkpoint))
        return batch > 0 and kept.input_offsets(batch) == kept.input_offsets(batch - 1)

    def output(self) -> Counter[Row]:
        return Counter(map(self.row, self.records()))

    def state_files(self) -> set[str]:
        endings = set().union(*FILES.values())
        return endings & {path.suffix for path in (self.checkpoint / "state").rglob("*.*")}

    def lose_newest_state(self, batch: int) -> None:
        """Deletes the state that a batch has left, as a power failure may do, since Spark does not fsync it.

        The decision log is fsynced, so a decided batch may have lost its state.
        """
        endings = (".delta", ".zip", ".changelog", ".snapshot")
        newest = [path for ending in endings for path in (self.checkpoint / "state").rglob(f"{batch + 1}{ending}")]
        assert newest, f"{self.case} has no state {batch + 1} to lose"
        for path in newest:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


# --- the tests --------------------------------------------------------------------------------------------------------

COVER = (
    Case("transform_with_state", "changelog", no_data=True),
    Case("tumbling", "hdfs", no_data=True),
    Case("session", "rocksdb", no_data=True),
    Case("sliding", "changelog"),
    Case("inner_join", "hdfs"),
    Case("left_outer_join", "changelog"),
    Case("distinct", "rocksdb"),
    Case("distinct_within_watermark", "hdfs"),
)

PARTING = (Phase.FINISHING.name, Phase.DECIDING.name)
"""Rows and state differ twice.

First, a batch is decided, but none of it is committed, and the disk loses its state. Then a batch has its state but is
not decided.
"""


@pytest.mark.parametrize(
    ("cases", "points", "batches"),
    [(COVER[1:2], PARTING, 8), (COVER, POINTS, 24)],
    ids=["where output and state may part", "every plan at every point"],
)
def test_nothing_is_lost_or_doubled(cases, points, batches, kafka, tmp_path, say):
    with ExitStack() as stack:
        jobs = [stack.enter_context(StateJob(kafka.bootstrap, tmp_path, case, batches)) for case in cases]
        for number, point in enumerate(points):
            for job in jobs:
                if point == "REPLAYING":
                    assert job.kills[-1].batch == job.kills[-1].decided, "there is nothing to replay"
                job.feed()
            observations = strike(
                {job: (point, {}) for job in jobs},
                tmp_path / f"{number}.log",
                {job: job.is_due() for job in jobs},
                read=False,
                cores=1,
                limit_s=3 * LIMIT_S,
            )
            for job, observation in observations.items():
                say(f"kill {number + 1}: {job.case} in {observation}")
                assert not job.case.no_data or observation.batch == 0 or job.is_without_data(observation.batch), (
                    observation
                )
                job.kills.append(observation)
                if point == Phase.FINISHING.name:
                    job.lose_newest_state(observation.batch)

        # They finish together with undisturbed queries on the same input.
        twins = [
            stack.enter_context(StateJob(kafka.bootstrap, tmp_path, case, batches, undisturbed=True)) for case in cases
        ]
        for job in (*jobs, *twins):
            job.feed_all()
        start_together([*jobs, *twins], tmp_path / "last.log", master="local[2]").finish(limit_s=3 * LIMIT_S)

        for job, twin in zip(jobs, twins, strict=True):
            assert job.judge(twin.output()) == "", job.case
            assert job.state_files() == twin.state_files() == FILES[job.case.store], f"{job.case}: another state store"
            for kill in job.kills:
                kill.check()

"""Queries that keep state: their plans, what they are sent, and what they must give, said once more without Spark.

Every row of a source has a name (its key) and a second (its value), which is both its event time and what is summed.
Rows come out of order, but never later than the watermark's delay, so that Spark drops none of them and what it gives
does not depend on where one batch ends and the next begins. (`sliding` writes updates: what it gives follows from the
batches.) After all of them come closing rows, far in the future and all of the same second: they close every window
before them, and no window of their own.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from spark.plans import records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark.pipeline import Config

DELAY_S = 1_200
TUMBLING_S = 200
SLIDING_S, SLIDE_S = 1_000, 500
GAP_S = 45
RANGE_S = 600
TOTAL_S = 50
FORGOTTEN_S = 5_000
"""After how long `dropDuplicatesWithinWatermark` has surely forgotten a name: two delays and two batches."""

EPOCH_S = 1_700_000_000
CLOSING_S = EPOCH_S + 10_000_000
NOBODY = "nobody"


class Event(NamedTuple):
    """A row of a source. Its second is since 1970."""

    name: str
    second: int


Batch = Sequence[Sequence[Event]]
"""Of each source, the rows of one batch."""

Pairs = Counter[tuple[str, str]]


# --- what is sent -----------------------------------------------------------------------------------------------------


def shuffled(events: Iterable[Event], seed: int = 1) -> list[Event]:
    """Puts events into an order of arrival: none comes more than a delay, less some slack, behind the newest.

    The slack is for the partitions, which a batch does not leave at exactly the same row.
    """
    chance = random.Random(seed)
    return sorted(events, key=lambda event: event.second + chance.uniform(0, DELAY_S - 100))


def groups(rows: int) -> list[Event]:
    """Seven names in turn, one row a second."""
    return shuffled(Event(f"g{second % 7}", EPOCH_S + second) for second in range(rows))


def visits(rows: int) -> list[Event]:
    """Names that come every ten seconds for two minutes and stay away for 80 s, ten at a time, others after 1,000 s."""
    seconds = (second for second in range(2 * rows) if second % 200 < 120)
    return shuffled(Event(f"u{second // 1000}-{second % 10}", EPOCH_S + second) for second in islice(seconds, rows))


def both_sides(rows: int) -> tuple[list[Event], list[Event]]:
    """One name a second on the left; on the right half of them in time, some of these twice, and some too late."""
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
    """One name a second, every fifth of them once more 5,000 s later."""
    first = [Event(f"n{second}", EPOCH_S + second) for second in range(rows)]
    return shuffled([*first, *(Event(name, second + 5_000) for name, second in first[:-5_000:5])])


def recurring(rows: int) -> list[Event]:
    """One name a second, every third of them twice within 700 s; after 6,000 s the same names come again."""
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


# --- what is done with it, and what must come of it ------------------------------------------------------------------


def events(spark: SparkSession, config: Config, source: int = 0) -> DataFrame:
    """Name, second and time of a source's rows, with a watermark."""
    second = F.col("value").cast("string").cast("long")
    rows = records(spark, config, source).select(F.col("key").cast("string").alias("name"), second.alias("second"))
    return rows.withColumn("time", F.timestamp_seconds("second")).withWatermark("time", f"{DELAY_S} seconds")


def _all(batches: Sequence[Batch], source: int = 0) -> list[Event]:
    return [event for batch in batches for event in batch[source]]


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


def _windows(events: Iterable[Event], length: int, step: int) -> dict[tuple[str, int, int], list[int]]:
    found = defaultdict(list)
    for name, second in events:
        for start in range(second - second % step, second - length, -step):
            found[name, start, start + length].append(second)
    return found


def _sums_of(windows: Mapping[tuple[str, int, int], list[int]], *, closed: bool = True) -> Pairs:
    """The rows of windows, without those that only the closing rows are in, or with them."""
    return Counter(
        (f"{name} {start} {end}", f"{sum(seconds)} {len(seconds)}")
        for (name, start, end), seconds in windows.items()
        if not closed or end <= CLOSING_S
    )


def tumbling(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.window("time", f"{TUMBLING_S} seconds"))


def tumbling_rows(batches: Sequence[Batch]) -> Pairs:
    return _sums_of(_windows(_all(batches), TUMBLING_S, TUMBLING_S))


def sliding(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.window("time", f"{SLIDING_S} seconds", f"{SLIDE_S} seconds"))


def sliding_rows(batches: Sequence[Batch]) -> Pairs:
    """After each batch, the sums of the windows that it has changed."""
    found: Pairs = Counter()
    before: list[Event] = []
    for (batch,) in batches:
        before += batch
        now = _windows(before, SLIDING_S, SLIDE_S)
        changed = _windows(batch, SLIDING_S, SLIDE_S)
        found += _sums_of({key: now[key] for key in changed}, closed=False)
    return found


def session(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.session_window("time", f"{GAP_S} seconds"))


def session_rows(batches: Sequence[Batch]) -> Pairs:
    by_name = defaultdict(list)
    for name, second in _all(batches):
        by_name[name].append(second)
    found: dict[tuple[str, int, int], list[int]] = {}
    for name, seconds in by_name.items():
        seconds.sort()
        starts = [0, *(n for n in range(1, len(seconds)) if seconds[n] - seconds[n - 1] > GAP_S), len(seconds)]
        for first, after in pairwise(starts):
            found[name, seconds[first], seconds[after - 1] + GAP_S] = seconds[first:after]
    return _sums_of(found)


def _join(spark: SparkSession, config: Config, kind: str) -> DataFrame:
    left, right = (events(spark, config, source).alias(side) for source, side in enumerate(("left", "right")))
    until = F.col("left.time") + F.expr(f"interval {RANGE_S} seconds")
    same = F.col("left.name") == F.col("right.name")
    joined = left.join(right, same & F.col("right.time").between(F.col("left.time"), until), kind)
    other = F.coalesce(F.col("right.second").cast("string"), F.lit(NOBODY))
    return joined.select(F.col("left.name").alias("key"), F.concat_ws(" ", F.col("left.second"), other).alias("value"))


def inner_join(spark: SparkSession, config: Config) -> DataFrame:
    return _join(spark, config, "inner")


def inner_join_rows(batches: Sequence[Batch]) -> Pairs:
    outer = left_outer_join_rows(batches)
    return Counter({pair: count for pair, count in outer.items() if not pair[1].endswith(NOBODY)})


def left_outer_join(spark: SparkSession, config: Config) -> DataFrame:
    return _join(spark, config, "leftOuter")


def left_outer_join_rows(batches: Sequence[Batch]) -> Pairs:
    rights = defaultdict(list)
    for name, second in _all(batches, 1):
        rights[name].append(second)
    found: Pairs = Counter()
    for name, second in _all(batches, 0):
        matches = [str(other) for other in rights[name] if second <= other <= second + RANGE_S]
        for other in matches or [NOBODY] * (second < CLOSING_S):
            found[name, f"{second} {other}"] += 1
    return found


def distinct(spark: SparkSession, config: Config) -> DataFrame:
    return events(spark, config).select(F.col("name").alias("key")).dropDuplicates(["key"])


def distinct_rows(batches: Sequence[Batch]) -> Pairs:
    return Counter((name, "") for name in {event.name for event in _all(batches)})


def distinct_within_watermark(spark: SparkSession, config: Config) -> DataFrame:
    return events(spark, config).dropDuplicatesWithinWatermark(["name"]).select(F.col("name").alias("key"))


def distinct_within_watermark_rows(batches: Sequence[Batch]) -> Pairs:
    """A name is new again when it comes after it has been forgotten."""
    found: Pairs = Counter()
    newest: dict[str, int] = {}
    for name, second in sorted(_all(batches), key=lambda event: event.second):
        if name not in newest or second - newest[name] > FORGOTTEN_S:
            found[name, ""] += 1
        newest[name] = second
    return found


def transform_with_state(spark: SparkSession, config: Config) -> DataFrame:
    """A value state and a timer for each name: the sum of a name's seconds, told once when all of them have come."""
    grouped = events(spark, config).groupBy("name")
    output = "key string, value string"
    return grouped.transformWithStateInPandas(
        Totals(), outputStructType=output, outputMode="Append", timeMode="EventTime"
    )


class Totals(StatefulProcessor):
    """Keeps sum and count of a name until the watermark has gone past its last second."""

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


def transform_with_state_rows(batches: Sequence[Batch]) -> Pairs:
    by_name = defaultdict(list)
    for name, second in _all(batches):
        if second < CLOSING_S:
            by_name[name].append(second)
    return Counter((name, f"{sum(seconds)} {len(seconds)}") for name, seconds in by_name.items())


PLANS: Mapping[str, tuple[Callable[[int], Sequence[list[Event]]], Callable[[Sequence[Batch]], Pairs]]] = {
    "transform_with_state": (lambda rows: [blocks(rows)], transform_with_state_rows),
    "tumbling": (lambda rows: [groups(rows)], tumbling_rows),
    "sliding": (lambda rows: [groups(rows)], sliding_rows),
    "session": (lambda rows: [visits(rows)], session_rows),
    "inner_join": (both_sides, inner_join_rows),
    "left_outer_join": (both_sides, left_outer_join_rows),
    "distinct": (lambda rows: [repeated(rows)], distinct_rows),
    "distinct_within_watermark": (lambda rows: [recurring(rows)], distinct_within_watermark_rows),
}
"""Of each plan its sources' rows, as many as are asked for, and what it must give of the batches of them."""

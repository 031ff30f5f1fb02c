"""The plans of queries that keep state. What each must give is said once more, without Spark, in `spark.models`.

Every row of a source has a name (its key) and a second (its value), which is both its event time and what is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from spark import models
from spark.plans import records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark.pipeline import Config

_DELAY = f"{models.DELAY_S} seconds"
_STATE = "sum long, count long"
_OUTPUT = "key string, value string"


def events(spark: SparkSession, config: Config, source: int = 0) -> DataFrame:
    """Name, second and time of a source's rows, with a watermark."""
    second = F.col("value").cast("string").cast("long")
    rows = records(spark, config, source).select(F.col("key").cast("string").alias("name"), second.alias("second"))
    return rows.withColumn("time", F.timestamp_seconds("second")).withWatermark("time", _DELAY)


def tumbling(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.window("time", f"{models.TUMBLING_S} seconds"))


def sliding(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.window("time", f"{models.SLIDING_S} seconds", f"{models.SLIDE_S} seconds"))


def session(spark: SparkSession, config: Config) -> DataFrame:
    return _sums(spark, config, F.session_window("time", f"{models.GAP_S} seconds"))


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


def inner_join(spark: SparkSession, config: Config) -> DataFrame:
    return _join(spark, config, "inner")


def left_outer_join(spark: SparkSession, config: Config) -> DataFrame:
    return _join(spark, config, "leftOuter")


def _join(spark: SparkSession, config: Config, kind: str) -> DataFrame:
    left, right = (events(spark, config, source).alias(side) for source, side in enumerate(("left", "right")))
    until = F.col("left.time") + F.expr(f"interval {models.RANGE_S} seconds")
    same = F.col("left.name") == F.col("right.name")
    joined = left.join(right, same & F.col("right.time").between(F.col("left.time"), until), kind)
    other = F.coalesce(F.col("right.second").cast("string"), F.lit(models.NOBODY))
    return joined.select(F.col("left.name").alias("key"), F.concat_ws(" ", F.col("left.second"), other).alias("value"))


def distinct(spark: SparkSession, config: Config) -> DataFrame:
    return events(spark, config).select(F.col("name").alias("key")).dropDuplicates(["key"])


def distinct_within_watermark(spark: SparkSession, config: Config) -> DataFrame:
    return events(spark, config).dropDuplicatesWithinWatermark(["name"]).select(F.col("name").alias("key"))


def transform_with_state(spark: SparkSession, config: Config) -> DataFrame:
    """A value state and a timer for each name: the sum of a name's seconds, told once when all of them have come."""
    grouped = events(spark, config).groupBy("name")
    return grouped.transformWithStateInPandas(
        Totals(), outputStructType=_OUTPUT, outputMode="Append", timeMode="EventTime"
    )


class Totals(StatefulProcessor):
    """Keeps sum and count of a name until the watermark has gone past its last second."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        if not self._total.exists():
            self._handle.registerTimer(models.complete_at_s(key[0]) * 1000)
        self._total.update(_add(self._total.get() if self._total.exists() else (0, 0), rows))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
        total = self._total.get()
        self._total.clear()
        yield _told(key, total)

    def close(self) -> None:
        pass


def _add(total: tuple[Any, ...], rows: Iterator[pd.DataFrame]) -> tuple[int, int]:
    sum_, count = total
    for each in rows:
        sum_, count = sum_ + int(each["second"].sum()), count + len(each)
    return sum_, count


def _told(key: Any, total: tuple[Any, ...]) -> pd.DataFrame:
    sum_, count = total
    return pd.DataFrame({"key": [key[0]], "value": [f"{sum_} {count}"]})

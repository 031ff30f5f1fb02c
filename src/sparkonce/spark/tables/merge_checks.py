"""Checks the settings of a merge against the columns of the table and of the rows, without running anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sparkonce.errors import SchemaError
from sparkonce.spark.jvm import quoted
from sparkonce.spark.tables.errors import error_message
from sparkonce.spark.tables.merging import SOURCE, TARGET, Merge, names_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

_T = TypeVar("_T")


def check_merge(merge: Merge, table: DataFrame, fields: list[StructField], rows: DataFrame, where: str) -> None:
    """Checks every setting of a merge.

    Args:
        merge: The settings.
        table: The table.
        fields: Its columns.
        rows: The rows, of which only the columns matter.
        where: The table's setting and its value, for messages.

    Raises:
        SchemaError: naming the setting.
    """
    there = {one.name.lower(): one for one in fields}
    _check_names(merge, {name.lower() for name in rows.columns}, set(there), where)
    _analysed("order_by", str(list(merge.order_by)), lambda: merge.last(rows))
    alone = rows.alias(SOURCE)
    both = table.alias(TARGET).crossJoin(alone)
    for setting, text in merge.conditions.items():
        _check_condition(setting, text, alone if setting == "insert_when" else both)
    for setting, changes in merge.changes.items():
        for column, text in changes.items():
            frame = alone if setting == "when_not_matched" else both
            _check_value(f"{setting}[{column!r}]", text, frame, there[column.lower()].dataType)
    keys = " AND ".join(f"{TARGET}.{quoted(name)} = {SOURCE}.{quoted(name)}" for name in merge.on)
    _analysed("merge_on", str(list(merge.on)), lambda: both.where(keys))


def check_syntax(merge: Merge, spark: SparkSession) -> None:
    """Checks that every expression is one.

    Raises:
        SchemaError: naming the setting.
    """
    given = [*merge.conditions.items()]
    given += [(f"{setting}[{name!r}]", text) for setting, some in merge.changes.items() for name, text in some.items()]
    for setting, text in given:
        _analysed(setting, text, partial(names_in, spark, text))


def _check_names(merge: Merge, given: set[str], there: set[str], where: str) -> None:
    named = [("merge_on", name) for name in merge.on] + [("order_by", name) for name in merge.order_by]
    wanted = [(*one, columns, whose) for one in named for columns, whose in ((given, "the rows"), (there, where))]
    wanted += [(setting, name, there, where) for setting, changes in merge.changes.items() for name in changes]
    for setting, name, columns, whose in wanted:
        if name.lower() not in columns:
            raise SchemaError(
                f"{setting} names column {name!r}, which {whose} does not have: there are {sorted(columns)}.",
                next_step="Name a column that is there.",
            )


def _check_condition(setting: str, text: str, frame: DataFrame) -> None:
    # In a WHERE, as in a MERGE, there are no aggregates, windows or generators.
    _check_plan(setting, text, _analysed(setting, text, lambda: frame.where(text)))


def _check_value(setting: str, text: str, frame: DataFrame, kind: DataType) -> None:
    _check_plan(setting, text, _analysed(setting, text, lambda: frame.where(f"({text}) IS NULL")))
    given = frame.selectExpr(f"({text}) AS value").schema[0].dataType
    types = frame.sparkSession._jvm.org.apache.spark.sql
    of_java = (types.types.DataType.fromJson(one.json()) for one in (given, kind))
    if not types.catalyst.expressions.Cast.canANSIStoreAssign(*of_java):
        raise SchemaError(
            f"{setting}={text!r} is a {given.simpleString()}, and the column is a {kind.simpleString()}.",
            next_step="Cast it to the column's type.",
        )


def _check_plan(setting: str, text: str, found: DataFrame) -> None:
    plan = found._jdf.queryExecution().analyzed()
    if not plan.deterministic():
        raise SchemaError(
            f"{setting}={text!r} gives another value each time, and a merge may be computed again.",
            next_step="Compute it in the query, before the rows reach the sink, and name the column here.",
        )
    if not plan.subqueriesAll().isEmpty():
        raise SchemaError(
            f"{setting}={text!r} has a subquery, which a MERGE does not take.",
            next_step="Join in the query, before the rows reach the sink.",
        )


def _analysed(setting: str, text: str, make: Callable[[], _T]) -> _T:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return make()
    except (AnalysisException, ParseException) as error:
        raise SchemaError(
            f"{setting}={text} cannot be used with these columns: {error_message(error)}",
            next_step="Write Spark's SQL over source.… for a row of the batch, and target.… for a row of the table.",
        ) from None

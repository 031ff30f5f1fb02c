"""Checks rows against a table's rules before their batch is decided: afterwards the query could only stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparkonce.spark.jvm import quoted
from sparkonce.spark.tables.fitting import as_stored
from sparkonce.spark.tables.merging import SOURCE, TARGET, Merge
from sparkonce.spark.tables.rules import Rules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

REASON = "__sparkonce_reason"
_GIVEN = "__sparkonce_given"


def with_reason(
    rows: DataFrame, values: Mapping[str, Column], fields: Sequence[StructField], rules: Rules, where: str
) -> DataFrame:
    """Returns rows with one more column, `REASON`: why the table would not take what is inserted for a row, or null.

    Args:
        rows: The rows, as the alias ``source``.
        values: What is inserted, by the name of its column in lower case.
        fields: The table's columns.
        rules: The table's rules, which fill other columns.
        where: The table's setting and its value, for messages.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    plain = [
        as_stored(values.get(one.name.lower(), F.lit(None).cast(one.dataType)), one.dataType).alias(one.name)
        for one in fields
        if one.name not in rules.fills
    ]
    filled = [
        as_stored(fill, one.dataType).alias(one.name)
        for one in fields
        if (fill := rules.fills.get(one.name)) is not None
    ]
    broken = F.coalesce(
        *(
            F.when(~F.coalesce(condition, F.lit(False)), F.lit(f"{where} does not take a row: {name}"))
            for name, condition in rules.conditions.items()
        )
    )
    given = F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias(_GIVEN)
    return rows.select(given, *plain).select("*", *filled).select(f"{_GIVEN}.*", broken.alias(REASON))


def refused_insert(
    merge: Merge, rows: DataFrame, table: DataFrame, fields: Sequence[StructField], rules: Rules, where: str
) -> str:
    """Returns the reason why the table would not take a row that the expressions of `when_not_matched` insert.

    Only rows that match none of the table's now are inserted: so it is asked for matches, once a row breaks a rule.

    Args:
        merge: The settings of the merge.
        rows: The rows of the batch.
        table: The table's rows.
        fields: The table's columns.
        rules: The table's rules for rows whose columns are those of the expressions.
        where: The table's setting and its value, for messages.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    if not isinstance(merge.not_matched, Mapping) or not rules.conditions:
        return ""
    spark, counting = rows.sparkSession, merge.last(rows).alias(SOURCE)
    inserts = merge.inserts(spark)
    wanted = counting if inserts is None else counting.where(inserts)
    values = {column.lower(): F.expr(text) for column, text in merge.not_matched.items()}
    broken = with_reason(wanted.alias(SOURCE), values, fields, rules, where).where(F.col(REASON).isNotNull())
    if broken.isEmpty():
        return ""
    on = F.expr(merge.plan(spark, rows.columns, fields).on)
    found = broken.alias(SOURCE).join(table.alias(TARGET), on, "left_anti").select(REASON).limit(1).collect()
    return str(found[0][0]) if found else ""

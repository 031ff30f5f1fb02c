"""MERGE: what a batch does to the table's rows with the same keys, and to the batch's other rows.

In all expressions, ``source`` is a row of the batch, and ``target`` a row of the table. The settings of a merge are
checked against the columns of the table and of the rows without running anything. Before a batch is decided, its rows
are checked for duplicate keys, because a merge accepts only one row per key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkonce.arguments import mapping, nonempty, one_of, texts
from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.jvm import items, quoted
from sparkonce.sinks._shared.arrow import python_value
from sparkonce.sinks.tables.errors import error_message
from sparkonce.sinks.write_ahead.application import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField


WhenMatched = Literal["update_all"] | Mapping[str, str] | None
WhenNotMatched = Literal["insert_all"] | Mapping[str, str] | None

UPDATE_ALL: Literal["update_all"] = "update_all"
INSERT_ALL: Literal["insert_all"] = "insert_all"
SOURCE, TARGET = "source", "target"
CONDITION = (
    "a batch is merged into the table as it is at the commit, with what others have written by then; rows that others "
    "insert in the meantime under the same key stay next to it"
)
_RANK = "__sparkonce_rank"


@dataclass(frozen=True, slots=True)
class Clause:
    """A WHEN clause of a MERGE. A condition of None covers all rows. Changes map columns to their new values."""

    kind: Literal["delete", "update", "insert"]
    condition: str | None
    changes: Mapping[str, str]

    def to_sql(self) -> str:
        when = "WHEN NOT MATCHED" if self.kind == "insert" else "WHEN MATCHED"
        if self.condition is not None:
            when += f" AND {self.condition}"
        columns = {quoted(name): f"({text})" for name, text in self.changes.items()}
        if self.kind == "insert":
            names, values = ", ".join(columns), ", ".join(columns.values())
            return f"{when} THEN INSERT ({names}) VALUES ({values})"  # noqa: S608 - the user's own expressions
        if self.kind == "update":
            return f"{when} THEN UPDATE SET {', '.join(f'{name} = {text}' for name, text in columns.items())}"
        return f"{when} THEN DELETE"


@dataclass(frozen=True, slots=True)
class MergePlan:
    """A MERGE for rows with certain columns: when two rows match, and the clauses in the order they are tried."""

    on: str
    clauses: Sequence[Clause]

    def columns(self, kind: Literal["update", "insert"]) -> tuple[str, ...]:
        """Returns the columns that clauses of this kind set."""
        return tuple(name for clause in self.clauses if clause.kind == kind for name in clause.changes)

    def to_sql(self, target: str, source: str) -> str:
        into = f"MERGE INTO {target} AS {TARGET} USING {source} AS {SOURCE} ON {self.on}"
        return " ".join([into, *(clause.to_sql() for clause in self.clauses)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The settings of a merge; see `DeltaSink`."""

    on: tuple[str, ...]
    where: str | None
    matched: WhenMatched
    not_matched: WhenNotMatched
    delete_when: str | None
    update_when: str | None
    insert_when: str | None
    order_by: tuple[str, ...]

    @classmethod
    def of(
        cls,
        *,
        merge_on: Sequence[str] | None,
        merge_where: str | None,
        when_matched: WhenMatched,
        when_not_matched: WhenNotMatched,
        delete_when: str | None,
        update_when: str | None,
        insert_when: str | None,
        order_by: Sequence[str],
    ) -> Merge | None:
        """Returns the settings; None for a sink that appends."""
        conditions = {
            "merge_where": merge_where,
            "delete_when": delete_when,
            "update_when": update_when,
            "insert_when": insert_when,
        }
        if merge_on is None:
            useless = [name for name, condition in conditions.items() if condition is not None]
            useless += ["when_matched"] * (when_matched != UPDATE_ALL)
            useless += ["when_not_matched"] * (when_not_matched != INSERT_ALL)
            useless += ["order_by"] * bool(order_by)
            if useless:
                raise ConfigurationError(
                    f"{useless[0]} is given without merge_on: rows are appended then.",
                    next_step="Give merge_on=, the key columns, if rows are to be merged.",
                    setting=useless[0],
                )
            return None
        for name, condition in conditions.items():
            if condition is not None:
                nonempty(name, condition, example="a condition in Spark's SQL over source.… and target.…")
        made = cls(
            on=texts("merge_on", merge_on, example="the key columns, such as ['id']"),
            where=merge_where,
            matched=_changes("when_matched", when_matched, UPDATE_ALL),
            not_matched=_changes("when_not_matched", when_not_matched, INSERT_ALL),
            delete_when=delete_when,
            update_when=update_when,
            insert_when=insert_when,
            order_by=texts("order_by", order_by, example="the columns, such as ['updated_at']"),
        )
        made._check()
        return made

    def _check(self) -> None:
        if not self.on:
            raise ConfigurationError(
                "merge_on=[] names no column.", next_step="Give the key columns, such as ['id'].", setting="merge_on"
            )
        for setting, condition, needed, clause in (
            ("update_when", self.update_when, "when_matched", self.matched),
            ("insert_when", self.insert_when, "when_not_matched", self.not_matched),
        ):
            if condition is not None and clause is None:
                raise ConfigurationError(
                    f"{setting}={condition!r} is given with {needed}=None, and would decide nothing.",
                    next_step=f"Leave {setting} out, or give {needed}.",
                    setting=setting,
                )
        if self.matched is None and self.not_matched is None and self.delete_when is None:
            raise ConfigurationError(
                "when_matched=None and when_not_matched=None, without delete_when: the merge would do nothing.",
                next_step="Give one of them.",
                setting="when_matched",
            )

    @property
    def takes_all(self) -> bool:
        """True if all columns of the rows are written to the table's columns with the same names."""
        return self.matched == UPDATE_ALL or self.not_matched == INSERT_ALL

    @property
    def conditions(self) -> Mapping[str, str]:
        texts = {
            "merge_where": self.where,
            "delete_when": self.delete_when,
            "update_when": self.update_when,
            "insert_when": self.insert_when,
        }
        return {setting: text for setting, text in texts.items() if text is not None}

    @property
    def changes(self) -> Mapping[str, Mapping[str, str]]:
        clauses = {"when_matched": self.matched, "when_not_matched": self.not_matched}
        return {setting: changes for setting, changes in clauses.items() if isinstance(changes, Mapping)}

    def read_by(self, spark: SparkSession) -> frozenset[str]:
        """Returns the rows' columns that expressions use, in lower case. The table need not have these columns."""
        expressions = [*self.conditions.values(), *(text for some in self.changes.values() for text in some.values())]
        names = (name for text in expressions for name in names_in(spark, text))
        return frozenset(name[1] for name in names if len(name) > 1 and name[0] == SOURCE)

    def plan(self, spark: SparkSession, columns: Sequence[str], fields: Sequence[StructField]) -> MergePlan:
        """Returns the merge of rows with ``columns`` into a table with ``fields``.

        Raises:
            RefusedError: If the rows have a column that the table lacks.
        """
        names = {name.lower(): name for name in columns}
        there = {one.name.lower() for one in fields}
        if self.takes_all and (lost := names.keys() - there - self.read_by(spark)):
            raise RefusedError(f"Columns {sorted(lost)} are not in the table, which has {sorted(there)}.")
        all_of_them = {
            one.name: f"{SOURCE}.{quoted(names[one.name.lower()])}" for one in fields if one.name.lower() in names
        }
        newer = None
        if self.order_by:
            # Spark compares structs column by column, and null is less than any other value.
            sides = (", ".join(f"{side}.{quoted(name)}" for name in self.order_by) for side in (SOURCE, TARGET))
            newer = " >= ".join(f"struct({columns})" for columns in sides)
        clauses = []
        if self.delete_when is not None:
            clauses.append(Clause("delete", _both(self.delete_when, newer), {}))
        if self.matched is not None:
            changes = all_of_them if self.matched == UPDATE_ALL else dict(self.matched)
            clauses.append(Clause("update", _both(self.update_when, newer), changes))
        if self.not_matched is not None:
            changes = all_of_them if self.not_matched == INSERT_ALL else dict(self.not_matched)
            clauses.append(Clause("insert", self.inserts(spark), changes))
        keys = " AND ".join(f"{TARGET}.{quoted(name)} = {SOURCE}.{quoted(name)}" for name in self.on)
        return MergePlan(_both(keys, self.where) or "", clauses)

    def inserts(self, spark: SparkSession) -> str | None:
        """Returns the condition under which a row without a match is inserted; None for every row.

        A row is not inserted if it is a deletion according to its own columns.
        """
        deletes = None
        if self.delete_when is not None and all(name[0] == SOURCE for name in names_in(spark, self.delete_when)):
            deletes = f"NOT coalesce(({self.delete_when}), false)"
        return _both(deletes, self.insert_when)

    def last(self, rows: DataFrame) -> DataFrame:
        """Returns the rows to merge: with ``order_by``, only the last one for each key.

        All other columns break ties, so the result is deterministic.
        """
        if not self.order_by:
            return rows
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        ordered = {name.lower() for name in self.order_by}
        others = sorted(name for name in rows.columns if name.lower() not in ordered)
        by_key = Window.partitionBy(*map(quoted, self.on))
        newest_first = by_key.orderBy(*(F.col(quoted(name)).desc() for name in (*self.order_by, *others)))
        ranked = rows.withColumn(_RANK, F.row_number().over(newest_first))
        return ranked.where((F.col(_RANK) == 1) | ~has_key(self.on)).drop(_RANK)


def has_key(on: Sequence[str]) -> Column:
    """Returns the condition that no column of the key is null. A row with a null in its key matches nothing."""
    from pyspark.sql import functions as F

    return reduce(lambda one, other: one & other, (F.col(quoted(name)).isNotNull() for name in on))


def _changes(setting: str, value: object, word: str) -> Mapping[str, str] | None:
    if value is None or value == word:
        return value  # type: ignore[return-value] # the word is a string
    if isinstance(value, str):
        one_of(setting, value, (word,))
    example = f"{word!r}, None, or expressions by column: {{'total': 'target.total + source.amount'}}"
    found = mapping(setting, value, example=example)
    for column, text in found.items():
        nonempty(f"{setting}[{column!r}]", text, example="an expression in Spark's SQL")
    if not found:
        raise ConfigurationError(f"{setting}={{}} sets no column.", next_step=f"Give {example}.", setting=setting)
    return found


def _both(*conditions: str | None) -> str | None:
    parts = [f"({one})" for one in conditions if one is not None]
    return " AND ".join(parts) or None


def names_in(spark: SparkSession, text: str) -> list[list[str]]:
    """Returns the parts of each name in an expression, in lower case.

    Raises:
        ParseException: If it is not a Spark SQL expression.
    """
    leaves = spark._jsparkSession.sessionState().sqlParser().parseExpression(text).collectLeaves()
    found = [leaf for leaf in items(leaves) if leaf.getClass().getSimpleName() == "UnresolvedAttribute"]
    return [[str(part).lower() for part in items(leaf.nameParts())] for leaf in found]


_T = TypeVar("_T")


def check_merge(merge: Merge, table: DataFrame, fields: list[StructField], rows: DataFrame, where: str) -> None:
    """Checks every setting of a merge against the columns of the table and of the rows.

    Raises:
        SchemaError: If a setting is wrong. The message names it.
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
    """Checks the syntax of every expression. The SchemaError for an invalid one names the setting."""
    expressions = [*merge.conditions.items()]
    expressions += [
        (f"{setting}[{name!r}]", text) for setting, some in merge.changes.items() for name, text in some.items()
    ]
    for setting, text in expressions:
        _analysed(setting, text, partial(names_in, spark, text))


def _check_names(merge: Merge, of_rows: set[str], there: set[str], where: str) -> None:
    named = [("merge_on", name) for name in merge.on] + [("order_by", name) for name in merge.order_by]
    wanted = [(*one, columns, whose) for one in named for columns, whose in ((of_rows, "the rows"), (there, where))]
    wanted += [(setting, name, there, where) for setting, changes in merge.changes.items() for name in changes]
    for setting, name, columns, whose in wanted:
        if name.lower() not in columns:
            raise SchemaError(
                f"{setting} names column {name!r}, which {whose} does not have: there are {sorted(columns)}.",
                next_step="Name a column that is there.",
            )


def _check_condition(setting: str, text: str, frame: DataFrame) -> None:
    # WHERE rejects the same expressions as MERGE: aggregates, windows and generators.
    _check_plan(setting, text, _analysed(setting, text, lambda: frame.where(text)))


def _check_value(setting: str, text: str, frame: DataFrame, kind: DataType) -> None:
    _check_plan(setting, text, _analysed(setting, text, lambda: frame.where(f"({text}) IS NULL")))
    found = frame.selectExpr(f"({text}) AS value").schema[0].dataType
    types = frame.sparkSession._jvm.org.apache.spark.sql
    of_java = (types.types.DataType.fromJson(one.json()) for one in (found, kind))
    if not types.catalyst.expressions.Cast.canANSIStoreAssign(*of_java):
        raise SchemaError(
            f"{setting}={text!r} is a {found.simpleString()}, and the column is a {kind.simpleString()}.",
            next_step="Cast it to the column's type.",
        )


def _check_plan(setting: str, text: str, found: DataFrame) -> None:
    plan = found._jdf.queryExecution().analyzed()
    if not plan.deterministic():
        raise SchemaError(
            f"{setting}={text!r} returns a different value each time, and a merge may be computed again.",
            next_step="Compute it in the query, before the rows reach the sink, and name the column here.",
        )
    if not plan.subqueriesAll().isEmpty():
        raise SchemaError(
            f"{setting}={text!r} has a subquery, which MERGE does not support.",
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


_MOST_IN_DRIVER = 1_000_000
"""Up to this number of rows, the driver compares the keys itself, which is faster than Spark jobs."""

_COUNT = "__sparkonce_count"


def repeated(on: Sequence[str], files: Sequence[BinaryIO], rows: Callable[[], DataFrame]) -> str:
    """Returns why rows must be rejected because several have the same key; empty if all keys are different.

    For many rows, and for keys of unusual types, reads the Parquet files with Spark by calling ``rows``.
    """
    read = [pq.ParquetFile(file) for file in files]
    few = sum(one.metadata.num_rows for one in read) <= _MOST_IN_DRIVER
    columns = _columns(on, read[0].schema_arrow)
    if few and all(_is_plain(read[0].schema_arrow.field(name).type) for name in columns):
        found = _in_driver(pa.concat_tables(one.read(columns=columns) for one in read))
    else:
        found = _by_spark(on, rows())
    if found is None:
        return ""
    *key, count = found
    told = ", ".join(f"{name}={value}" for name, value in zip(on, key, strict=True))
    return (
        f"{count} rows of the batch have the key {told}, and merge_on={list(on)} allows one row per key: aggregate in "
        "the query, or give order_by=, to keep the last one"
    )


def _columns(on: Sequence[str], schema: pa.Schema) -> list[str]:
    """Returns the key columns as spelled in the rows, because Spark ignores case."""
    names = {name.lower(): name for name in schema.names}
    return [names[name.lower()] for name in on]


def _is_plain(kind: pa.DataType) -> bool:
    """Returns True if Arrow and Spark agree about equality in a type. For floats, they do not agree about -0.0."""
    return not pa.types.is_nested(kind) and not pa.types.is_floating(kind)


def _in_driver(keys: pa.Table) -> list[str] | None:
    """Returns the values of a key that several rows have, followed by the number of these rows, all as strings."""
    names = [str(number) for number in range(keys.num_columns)]
    counted = keys.rename_columns(names).drop_null().group_by(names).aggregate([([], "count_all")])
    found = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1)
    return [str(python_value(column[0])) for column in found.columns] if found.num_rows else None


def _by_spark(on: Sequence[str], rows: DataFrame) -> list[str] | None:
    from pyspark.sql import functions as F

    counted = rows.where(has_key(on)).groupBy(*map(quoted, on)).agg(F.count("*").alias(_COUNT))
    # Collect strings, because Python has no dates after the year 9999.
    texts = [F.col(one).cast("string") for one in (*map(quoted, on), _COUNT)]
    found = counted.where(F.col(_COUNT) > 1).limit(1).select(*texts).collect()
    return [str(value) for value in found[0]] if found else None

"""Settings, columns and preflight of the sinks for all tables."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sparkonce.errors import ConfigurationError, PreflightError, SchemaError
from sparkonce.sink import Facts, SinkCommitter
from sparkonce.sinks.write_ahead.apply import Applies
from sparkonce.sinks.write_ahead.sink import WriteAheadSink
from sparkonce.spark.modules import require_class
from sparkonce.spark.tables.committer import Table, TableCommitter, never
from sparkonce.spark.tables.errors import error_message

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_Answer = TypeVar("_Answer")

_WIDER = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "float": ("double",),
}
"""Types of columns to types that take all of their values."""

FILLED_BY_TABLE = frozenset({"delta.generationExpression", "CURRENT_DEFAULT", "delta.identity.start"})
"""The metadata of a column that the table itself fills."""

_GIVEN = "__sparkonce_given"
_OF_PATTERNS, _ESCAPED = r"([\\*?\[\]{}])", r"\\\1"

SEEN_BY_ALL = "the folder in which rows wait is seen by the driver and all executors, under one path or URL"


class TableSink(WriteAheadSink, abc.ABC):
    """Appends each batch to a table in one version of it.

    Args:
        where: The table's setting and its value, for messages.
        folder: The folder in which rows wait until the decision, see `WriteAheadSink`; all executors read it.
        name: Unique within the query, and the same after a restart.
    """

    def __init__(self, where: str, *, folder: str | Path | None = None, name: str) -> None:
        super().__init__(never, applies=Applies.TRANSACTIONAL, per="batch", folder=folder, name=name)
        self.where = where
        self._identity: str | None = None

    @property
    @abc.abstractmethod
    def needs(self) -> tuple[str, str]:
        """The module whose jar the session needs, and a class of it."""

    @abc.abstractmethod
    def table(self, spark: SparkSession) -> Table:
        """Returns the table, in a session of the driver."""

    @abc.abstractmethod
    def conditions(self) -> Sequence[str]:
        """See `TwoPhaseCommitSink.conditions`. Names how long the table remembers, and what readers do."""

    @property
    def tells_refused(self) -> bool:
        """See `TwoPhaseCommitSink.tells_refused`."""
        return True

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns all columns, once they fit the table's, and the table's other columns may be null.

        Raises:
            SchemaError: naming the column that does not.
            PreflightError: if the table cannot be read.
        """
        from sparkonce.spark.views import to_arrow

        names = super().columns(schema)
        if _active_session() is None:  # a worker, where they were checked before
            return names
        fields = self._ask(lambda table: table.schema())
        there = {column.name.lower(): column for column in to_arrow(fields)}
        for column in schema:
            if column.name.lower() not in there:
                raise SchemaError(
                    f"Column {column.name!r} is none of {self.where}, which has {sorted(there)}.",
                    next_step="Add it to the table, or drop it from the rows.",
                )
            wanted, given = str(there[column.name.lower()].type), str(column.type)
            if wanted not in (given, str(_nullable(column.type)), *_WIDER.get(given, ())):
                raise SchemaError(
                    f"Column {column.name!r} is a {given}, and in {self.where} it is a {wanted}.",
                    next_step="Cast it to the table's type.",
                )
        taken = {name.lower() for name in names}
        for field in fields:
            if not field.nullable and field.name.lower() not in taken and not FILLED_BY_TABLE & field.metadata.keys():
                raise SchemaError(
                    f"Column {field.name!r} of {self.where} must not be null, and the rows do not have it.",
                    next_step="Add it to the rows, or let it be null in the table.",
                )
        return names

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:
        """Returns the same rows, whose computation fails for a row that the table would refuse after the decision.

        Args:
            rows: The rows.
            mark: The name of a column that says instead why the table would refuse a row; null for the others.

        Raises:
            PreflightError: if the table cannot be read, or is another table now.
        """
        from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

        given = {name.lower(): name for name in rows.columns}
        identity, fields, rules = self._ask(
            lambda table: (table.identity(), table.schema().fields, table.rules(given.keys()))
        )
        self._check_identity(identity, self._identity)
        if not rules.conditions:
            return rows.withColumn(mark, F.lit(None).cast("string")) if mark else rows
        plain = [
            (F.col(quoted(given[one.name.lower()])) if one.name.lower() in given else F.lit(None))
            .cast(one.dataType)
            .alias(one.name)
            for one in fields
            if one.name not in rules.fills
        ]
        filled = [
            fill.cast(one.dataType).alias(one.name) for one in fields if (fill := rules.fills.get(one.name)) is not None
        ]
        broken = F.coalesce(
            *(
                F.when(~F.coalesce(condition, F.lit(False)), F.lit(f"{self.where} does not take a row: {name}"))
                for name, condition in rules.conditions.items()
            )
        )
        whole = rows.select(F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias(_GIVEN), *plain)
        if mark:
            return whole.select("*", *filled).select(f"{_GIVEN}.*", broken.alias(mark))
        passed = F.when(broken.isNull(), F.lit(True)).otherwise(F.raise_error(broken).cast("boolean"))
        return whole.select("*", *filled).where(passed).select(f"{_GIVEN}.*")

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks that the table is there, and that it is the one in the log."""
        found = self._ask(lambda table: table.identity())
        self._check_identity(found, (recorded or {}).get("table"))
        self._identity = found
        return {**super().preflight(query, recorded), "table": found}

    def _check_identity(self, found: str, known: str | None) -> None:
        if known not in (None, found):
            raise PreflightError(
                f"{self.where} is the table {found}, and the query has written to the table {known}.",
                next_step="Give the sink the table that it wrote to, or start a new checkpoint.",
            )

    def _ask(self, question: Callable[[Table], _Answer]) -> _Answer:
        spark = driver_session(self.name)
        require_class(spark, *self.needs)
        table = self.table(spark)
        try:
            return question(table)
        except Exception as error:
            raise PreflightError(
                f"{self.where} of sink {self.name!r} cannot be read: {error_message(error)}",
                next_step="Create the table first, and see that the driver's session has its catalog.",
            ) from error

    def committer(self) -> SinkCommitter:
        """See `TwoPhaseCommitSink.committer`."""
        table = self.table(driver_session(self.name))
        return TableCommitter(self.folder(), self.name, self._prefix, table, self._identity)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Returns the type whose elements and fields may all be null, which takes values without nulls, too."""
    if pa.types.is_list(kind):
        return pa.list_(_nullable_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_nullable_field(field) for field in kind])
    return kind


def _nullable_field(field: pa.Field) -> pa.Field:
    return field.with_type(_nullable(field.type)).with_nullable(True)


def driver_session(sink: str) -> SparkSession:
    """Returns the session of this process.

    Raises:
        ConfigurationError: if there is none.
    """
    spark = _active_session()
    if spark is None:
        raise ConfigurationError(
            f"Sink {sink!r} writes with the driver's Spark session, and there is none in this process.",
            next_step="Start one, with the table's jar and catalog, before the sink is used.",
        )
    return spark


def _active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    active: SparkSession | None = SparkSession.getActiveSession()
    if active is not None:
        return active
    started: SparkSession | None = SparkSession._instantiatedSession
    return started


def quoted(name: str) -> str:
    """Returns a name quoted for Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def not_null(column: str) -> tuple[str, Column]:
    """Returns the condition that a column, or a field within one, has a value; its name is quoted."""
    from pyspark.sql import functions

    return f"{column} must not be null", functions.col(column).isNotNull()


def read_rows(spark: SparkSession, urls: Sequence[str]) -> DataFrame:
    """Returns the rows in these files."""
    # No file may be skipped, whatever the session's settings for files that are missing or damaged.
    reader = spark.read.option("ignoreMissingFiles", False).option("ignoreCorruptFiles", False)
    # Spark takes paths for patterns.
    return reader.parquet(*(re.sub(_OF_PATTERNS, _ESCAPED, url) for url in urls))

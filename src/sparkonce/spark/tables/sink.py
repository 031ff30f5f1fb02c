"""Settings, columns and preflight of the sinks for all tables."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sparkonce.arguments import flag
from sparkonce.errors import ConfigurationError, PreflightError, SchemaError
from sparkonce.sink import Facts, SinkCommitter
from sparkonce.sinks.write_ahead.apply import Applies
from sparkonce.sinks.write_ahead.sink import WriteAheadSink
from sparkonce.spark.jvm import no_rows
from sparkonce.spark.modules import require_class
from sparkonce.spark.tables.committer import TableCommitter, never
from sparkonce.spark.tables.errors import error_message
from sparkonce.spark.tables.merge_checks import check_merge, check_syntax
from sparkonce.spark.tables.merging import CONDITION, INSERT_ALL, SOURCE, Merge, quoted
from sparkonce.spark.tables.row_checks import REASON, with_reason
from sparkonce.spark.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

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

_MARK = "__sparkonce_mark"

SEEN_BY_ALL = "the folder in which rows wait is seen by the driver and all executors, under one path or URL"


class TableSink(WriteAheadSink, abc.ABC):
    """Appends each batch to a table, or merges it into the table, in one version of it.

    Args:
        where: The table's setting and its value, for messages.
        merge: The settings of a merge; None to append.
        evolve_schema: Whether columns that the table does not have are added to it at the start.
        folder: The folder in which rows wait until the decision, see `WriteAheadSink`; all executors read it.
        name: Unique within the query, and the same after a restart.
    """

    def __init__(
        self,
        where: str,
        *,
        merge: Merge | None = None,
        evolve_schema: bool = False,
        folder: str | Path | None = None,
        name: str,
    ) -> None:
        super().__init__(never, applies=Applies.TRANSACTIONAL, per="batch", folder=folder, name=name)
        self.where = where
        self.merge = merge
        self.evolve_schema = flag("evolve_schema", evolve_schema)
        self._identity: str | None = None
        self._new: tuple[StructField, ...] = ()
        self._checked = ""

    @property
    @abc.abstractmethod
    def needs(self) -> tuple[str, str]:
        """The module whose jar the session needs, and a class of it."""

    @abc.abstractmethod
    def table(self, spark: SparkSession) -> Table:
        """Returns the table, in a session of the driver."""

    @abc.abstractmethod
    def table_conditions(self) -> Sequence[str]:
        """Names how long the table remembers, and what readers do."""

    def conditions(self) -> Sequence[str]:
        """See `TwoPhaseCommitSink.conditions`."""
        return (*([CONDITION] if self.merge is not None else []), *self.table_conditions(), SEEN_BY_ALL)

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
        names = super().columns(schema)
        if _active_session() is None:  # a worker, where they were checked before
            return names
        self._ask(lambda table: self._fit(table, schema))
        return names

    def _fit(self, table: Table, schema: pa.Schema) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        from sparkonce.spark.views import to_arrow

        fields = table.schema()
        there = {column.name.lower(): column for column in to_arrow(fields)}
        given = {column.name.lower(): column for column in schema}
        merge = self.merge
        if merge is not None:
            check_syntax(merge, table.spark)
        takes_all = merge is None or merge.takes_all
        if takes_all:
            self._new = self._missing(table, schema, there)
        compared = given.keys() & there.keys()
        if merge is not None and not takes_all:
            # Rows of one key are told apart by the rows' type, and meet the table by the table's.
            compared &= {one.lower() for one in (*merge.on, *merge.order_by)}
        for name in compared:
            column, wanted, found = given[name], str(there[name].type), str(given[name].type)
            if wanted not in (found, str(_nullable(column.type)), *_WIDER.get(found, ())):
                raise SchemaError(
                    f"Column {column.name!r} is a {found}, and in {self.where} it is a {wanted}.",
                    next_step="Cast it to the table's type.",
                )
        inserted, by = {*given}, "the rows do not have it"
        if merge is not None and merge.not_matched != INSERT_ALL:
            inserted, by = {name.lower() for name in merge.not_matched or ()}, "when_not_matched does not set it"
        for field in fields if merge is None or merge.not_matched is not None else ():
            if (
                not field.nullable
                and field.name.lower() not in inserted
                and not FILLED_BY_TABLE & field.metadata.keys()
            ):
                raise SchemaError(
                    f"Column {field.name!r} of {self.where} must not be null, and {by}.",
                    next_step="Give it a value, or let it be null in the table.",
                )
        checked = f"{schema} {fields.json()}"
        if merge is not None and not self._new and self._checked != checked:
            rows = no_rows(table.spark, from_arrow_schema(schema))
            check_merge(merge, table.frame(), fields.fields, rows, self.where)
            self._checked = checked

    def _missing(self, table: Table, schema: pa.Schema, there: Collection[str]) -> tuple[StructField, ...]:
        """Returns the columns of the rows that are to be added to the table.

        Raises:
            SchemaError: if they are not to be.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        read = self.merge.read_by(table.spark) if self.merge is not None else frozenset[str]()
        new = [one for one in from_arrow_schema(schema) if one.name.lower() not in {*there, *read}]
        if new and (not self.evolve_schema or self._identity is not None):
            raise SchemaError(
                f"Column {new[0].name!r} is none of {self.where}, which has {sorted(there)}.",
                next_step="Add it to the table, or drop it from the rows; or start the query with evolve_schema=True.",
            )
        return tuple(new)

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
        merge = self.merge
        if not rules.conditions or (merge is not None and merge.not_matched != INSERT_ALL):
            return rows.withColumn(mark, F.lit(None).cast("string")) if mark else rows
        inserts = None if merge is None else merge.inserts(rows.sparkSession)
        values = {name: F.col(quoted(column)) for name, column in given.items()}
        judged = with_reason(rows.alias(SOURCE), values, fields, rules, self.where)
        reason = F.col(REASON) if inserts is None else F.when(F.expr(inserts), F.col(REASON))
        judged = judged.alias(SOURCE).select("*", reason.alias(_MARK)).drop(REASON)
        if mark:
            return judged.withColumnRenamed(_MARK, mark)
        passed = F.when(F.col(_MARK).isNull(), F.lit(True)).otherwise(F.raise_error(F.col(_MARK)).cast("boolean"))
        return judged.where(passed).drop(_MARK)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks that the table is there, and that it is the one in the log."""
        found = self._ask(lambda table: table.identity())
        self._check_identity(found, (recorded or {}).get("table"))
        if self._new:
            self._ask(lambda table: table.add_columns(self._new))
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
        except SchemaError:
            raise
        except Exception as error:
            raise PreflightError(
                f"{self.where} of sink {self.name!r} cannot be read: {error_message(error)}",
                next_step="Create the table first, and see that the driver's session has its catalog.",
            ) from error

    def committer(self) -> SinkCommitter:
        """See `TwoPhaseCommitSink.committer`."""
        table = self.table(driver_session(self.name))
        if self.merge is not None:  # it takes some of its settings from the session
            table = table.in_copy()
        return TableCommitter(self.folder(), self.name, self._prefix, table, self._identity, self.merge)


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

"""What the sinks for all tables share: settings, columns and preflight."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sparkonce.arguments import flag
from sparkonce.errors import ANEW, ConfigurationError, PreflightError, SchemaError
from sparkonce.jvm import no_rows, quoted, repeated_name, require_class
from sparkonce.sink import Facts, SinkCommitter
from sparkonce.sinks.tables.committer import TableCommitter, never
from sparkonce.sinks.tables.errors import error_message
from sparkonce.sinks.tables.fitting import REASON, difference, in_tables_order, ordered, with_own_types, with_reason
from sparkonce.sinks.tables.merging import CONDITION, INSERT_ALL, SOURCE, Merge, check_merge, check_syntax
from sparkonce.sinks.tables.table import Table
from sparkonce.sinks.write_ahead.application import Applies
from sparkonce.sinks.write_ahead.sink import WriteAheadSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

_Answer = TypeVar("_Answer")

FILLED_BY_TABLE = frozenset({"delta.generationExpression", "CURRENT_DEFAULT", "delta.identity.start"})
"""The metadata keys of columns that the table itself fills in."""

_MARK = "__sparkonce_mark"

SEEN_BY_ALL = "the folder in which rows wait is visible to the driver and all executors, under one path or URL"


class TableSink(WriteAheadSink, abc.ABC):
    """Appends each batch to a table, or merges it into the table, as one table version.

    Args:
        where: The table's setting and its value, for messages.
        merge: The settings of a merge; None to append.
        evolve_schema: True to add the columns that the table lacks, at the start.
        folder: The folder in which rows wait until the decision; see `WriteAheadSink`. All executors read it.
        name: A name that is unique within the query and stays the same after a restart.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where}, name={self.name!r})"

    @property
    @abc.abstractmethod
    def needs(self) -> tuple[str, str]:
        """The module whose jar the session needs, and one of its classes."""

    @abc.abstractmethod
    def table(self, spark: SparkSession) -> Table:
        """Returns the table, in a session of the driver."""

    @abc.abstractmethod
    def table_conditions(self) -> Sequence[str]:
        """Returns the conditions on how long the table remembers versions, and on how readers read it."""

    def conditions(self) -> Sequence[str]:
        return (*([CONDITION] if self.merge is not None else []), *self.table_conditions(), SEEN_BY_ALL)

    @property
    def tells_refused(self) -> bool:
        return True

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns all columns, after checking that they fit the table, and that the table's other columns are nullable.

        Raises:
            SchemaError: If a column does not fit. The message names it.
            PreflightError: If the table cannot be read.
        """
        names = super().columns(schema)
        for column in schema:
            if _has_variant(column):
                raise SchemaError(
                    f"Column {column.name!r} has a variant, which Spark cannot read back from the files where rows "
                    "wait for their commit.",
                    next_step="Write it as a string, to_json(…), into a string column.",
                )
        # A worker has no session, and the driver has already checked the columns.
        if _active_session() is None:
            return names
        self._ask(lambda table: self._fit(table, schema))
        return names

    @property
    def writes_with_session(self) -> bool:
        """True, because Spark Connect has no session that the sink could use."""
        return True

    @property
    def takes_dead_letters(self) -> bool:
        """False, because a table may reject a row after the decision."""
        return False

    def _fit(self, table: Table, schema: pa.Schema) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import ArrayType, MapType, StructType

        if (twice := repeated_name(schema.names, is_case_sensitive=False)) is not None:
            raise SchemaError(
                f"Column {twice!r} appears more than once, and {self.where} does not distinguish between upper and "
                "lower case.",
                next_step="Drop or rename all but one.",
            )
        fields, columns = table.schema(), from_arrow_schema(schema, prefer_timestamp_ntz=True)
        there = {column.name.lower(): column for column in fields}
        by_name = {column.name.lower(): column for column in columns}
        merge = self.merge
        if merge is not None:
            check_syntax(merge, table.spark)
        takes_all = merge is None or merge.takes_all
        if takes_all:
            self._new = self._missing(table, columns, there)
        compared = by_name.keys() & there.keys()
        if merge is not None and not takes_all:
            # Compare the keys' types, too: duplicates are detected with the rows' types, but matches with the table's
            # types.
            compared &= {one.lower() for one in (*merge.on, *merge.order_by)}
        for name in compared:
            column = by_name[name]
            if reason := difference(column.dataType, there[name].dataType, f"column {column.name!r}"):
                raise SchemaError(
                    f"The rows do not fit {self.where}: {reason}.",
                    next_step=(
                        "Rebuild it with named_struct(…), by the names and types of the table's fields. A cast "
                        "goes by position, and would swap them."
                    )
                    if isinstance(column.dataType, StructType | ArrayType | MapType)
                    else "Cast it to the table's type.",
                )
        inserted, by = {*by_name}, "the rows do not have it"
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
        if not self._new and self._checked != checked:
            self._check_commit(table, no_rows(table.spark, with_own_types(columns, fields.fields)), fields.fields)
            self._checked = checked

    def _check_commit(self, table: Table, rows: DataFrame, fields: list[StructField]) -> None:
        """Analyzes the commit's actual write, without rows. What fails now would otherwise fail for a decided batch."""
        from pyspark.errors import AnalysisException

        plan, merge = None, self.merge
        if merge is not None:
            check_merge(merge, table.frame(), fields, rows, self.where)
            plan = merge.plan(table.spark, rows.columns, fields)
        try:
            reason = table.refusal(in_tables_order(rows, fields) if merge is None or merge.takes_all else rows, plan)
        except AnalysisException as error:
            reason = error_message(error)
        if reason:
            raise PreflightError(
                f"{self.where} of sink {self.name!r} would refuse every batch: {reason.rstrip('.')}.",
                next_step="Change the table or the sink's settings. No batch was decided.",
            )

    def _missing(self, table: Table, columns: StructType, there: Collection[str]) -> tuple[StructField, ...]:
        """Returns the columns of the rows that must be added to the table."""
        read = self.merge.read_by(table.spark) if self.merge is not None else frozenset[str]()
        new = [one for one in columns if one.name.lower() not in {*there, *read}]
        if new and (not self.evolve_schema or self._identity is not None):
            raise SchemaError(
                f"Column {new[0].name!r} is not in {self.where}, which has {sorted(there)}.",
                next_step="Add it to the table, or drop it from the rows; or start the query with evolve_schema=True.",
            )
        return tuple(new)

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:
        """Returns the same rows, with a computation that fails for rows that the table would reject after the decision.

        If ``mark`` is set, the column of this name gets the reason instead of a failure; null for rows that are
        accepted.
        """
        from pyspark.sql import functions as F

        by_name = {name.lower(): name for name in rows.columns}
        identity, fields, rules = self._ask(
            lambda table: (table.identity(), table.schema().fields, table.rules(by_name.keys()))
        )
        self._check_identity(identity, self._identity)
        merge = self.merge
        if not rules.conditions or (merge is not None and merge.not_matched != INSERT_ALL):
            return rows.withColumn(mark, F.lit(None).cast("string")) if mark else rows
        inserts = None if merge is None else merge.inserts(rows.sparkSession)
        there, mine = {one.name.lower(): one for one in fields}, rows.schema
        values = {
            name: ordered(F.col(quoted(column)), mine[column].dataType, there[name].dataType)
            for name, column in by_name.items()
            if name in there
        }
        judged = with_reason(rows.alias(SOURCE), values, fields, rules, self.where)
        reason = F.col(REASON) if inserts is None else F.when(F.expr(inserts), F.col(REASON))
        judged = judged.alias(SOURCE).select("*", reason.alias(_MARK)).drop(REASON)
        if mark:
            return judged.withColumnRenamed(_MARK, mark)
        passed = F.when(F.col(_MARK).isNull(), F.lit(True)).otherwise(F.raise_error(F.col(_MARK)).cast("boolean"))
        return judged.where(passed).drop(_MARK)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
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
                next_step=f"Give the sink the table that it wrote to, or {ANEW}.",
            )

    def _ask(self, question: Callable[[Table], _Answer]) -> _Answer:
        spark = driver_session(self.name)
        require_class(spark, *self.needs)
        table = self.table(spark)
        try:
            return question(table)
        except (SchemaError, PreflightError):
            raise
        except Exception as error:
            raise PreflightError(
                f"{self.where} of sink {self.name!r} cannot be read: {error_message(error)}",
                next_step="Create the table first, and make sure that the driver's session has its catalog.",
            ) from error

    def committer(self) -> SinkCommitter:
        table = self.table(driver_session(self.name))
        if self.merge is not None:  # A merge passes some of its settings through the session.
            table = table.in_copy()
        return TableCommitter(self.folder(), self.name, self._prefix, table, self._identity, self.merge)


def driver_session(sink: str) -> SparkSession:
    """Returns the session of this process; raises ConfigurationError if there is none."""
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


def _has_variant(field: pa.Field) -> bool:
    """Returns True if a type contains a variant. Its Arrow fields may be null, which Spark's Parquet reader rejects.

    PySpark marks the variant's metadata field (``to_arrow_type`` in ``pyspark.sql.pandas.types``).
    """
    inside = [field.type.field(at) for at in range(field.type.num_fields)]
    return b"variant" in (field.metadata or {}) or any(map(_has_variant, inside))

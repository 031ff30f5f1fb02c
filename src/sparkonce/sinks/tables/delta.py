"""Delta Lake: each batch becomes one version of the table, whose entry in the table's log has the label of the rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import nonempty
from sparkonce.errors import ConfigurationError
from sparkonce.jvm import class_name, items, quoted, scala_map
from sparkonce.packages import DELTA_MODULE
from sparkonce.sinks.tables.fitting import Rules, as_stored, never_null_inside, not_null
from sparkonce.sinks.tables.merging import (
    INSERT_ALL,
    SOURCE,
    TARGET,
    UPDATE_ALL,
    Merge,
    MergePlan,
    WhenMatched,
    WhenNotMatched,
)
from sparkonce.sinks.tables.sink import TableSink
from sparkonce.sinks.tables.table import Label, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparkonce.sinks.write_ahead.application import Unit


class DeltaSink(TableSink):
    """Appends each batch to a Delta table, or merges it into the table, as one table version.

    Example:
        ```python
        from sparkonce import DeltaSink, ExactlyOnce

        sink = DeltaSink("s3a://lake/totals", merge_on=["customer"])
        ExactlyOnce(sink, "s3a://lake/checkpoints/totals").start(totals, output_mode="update")
        ```

    Args:
        path: The table's location. Use either this or `table`.
        table: The table's name in a catalog.
        merge_on: The key columns. With them, rows are merged into the table instead of appended: a row matches the rows
            of the table that have the same values in the key columns. Null matches nothing. In all expressions below,
            ``source`` is a row of the batch, and ``target`` a row of the table.
        merge_where: A condition, in addition to the key, under which two rows match.
        when_matched: What happens to a matching row of the table. ``update_all`` sets its columns to those of the
            batch's row; a mapping of columns to expressions sets these columns; None leaves it unchanged.
        when_not_matched: What happens to a row of the batch that matches none. ``insert_all`` inserts it; a mapping of
            columns to expressions inserts these columns; None drops it.
        delete_when: A condition under which a matching row of the table is deleted instead. If it uses only ``source``,
            such rows of the batch are not inserted either.
        update_when: An additional condition for `when_matched`.
        insert_when: An additional condition for `when_not_matched`.
        order_by: If several rows have the same key, the one with the greatest values in these columns is used. A row
            with lower values than the table's row changes nothing. Without this setting, several rows with the same key
            are rejected.
        evolve_schema: True to add the columns that the table lacks, at the start.
        folder: The folder in which rows wait; see `WriteAheadSink`.
        name: A name that is unique within the query and stays the same after a restart.

    Raises:
        ConfigurationError: If a setting is wrong.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        table: str | None = None,
        merge_on: Sequence[str] | None = None,
        merge_where: str | None = None,
        when_matched: WhenMatched = UPDATE_ALL,
        when_not_matched: WhenNotMatched = INSERT_ALL,
        delete_when: str | None = None,
        update_when: str | None = None,
        insert_when: str | None = None,
        order_by: Sequence[str] = (),
        evolve_schema: bool = False,
        folder: str | Path | None = None,
        name: str = "delta",
    ) -> None:
        if (path is None) == (table is None):
            raise ConfigurationError(
                f"path={path!r}, table={table!r}: one of them is needed, and not both.",
                next_step="Give the table's location as path=, or its name as table=.",
            )
        path = str(path) if isinstance(path, Path) else path
        if table is None:
            nonempty("path", path, example="the table's location")
        else:
            nonempty("table", table, example="its name: catalog.schema.table")
        merge = Merge.of(
            merge_on=merge_on,
            merge_where=merge_where,
            when_matched=when_matched,
            when_not_matched=when_not_matched,
            delete_when=delete_when,
            update_when=update_when,
            insert_when=insert_when,
            order_by=order_by,
        )
        where = f"path={path!r}" if table is None else f"table={table!r}"
        super().__init__(where, merge=merge, evolve_schema=evolve_schema, folder=folder, name=name)
        self._path = path
        self._table = table

    @property
    def needs(self) -> tuple[str, str]:
        return DELTA_MODULE, "io.delta.tables.DeltaTable"

    def table(self, spark: SparkSession) -> Table:
        return _DeltaTable(spark, self._path, self._table)

    def table_conditions(self) -> Sequence[str]:
        return (
            "delta.logRetentionDuration is longer than the query may be down with a half-committed batch",
            "the table stays the same table, and readers read it through its log, not its files",
        )


_IDENTITY = "delta.identity.start"
_EXPLICIT = "delta.identity.allowExplicitInsert"
_DELTA = "spark.databricks.delta"


class _DeltaTable(Table):
    def __init__(self, spark: SparkSession, path: str | None, name: str | None) -> None:
        super().__init__(spark)
        self._path = path
        self._name = name

    def identity(self) -> str:
        return str(self._metadata().id())

    def schema(self) -> StructType:
        """Reads the table's log, because a reader cannot see which columns Delta fills in."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._metadata().schema().json()))

    def rules(self, columns: Collection[str]) -> Rules:
        """Reads CHECK constraints, NOT NULL, string lengths, and generated columns."""
        from pyspark.sql import functions as F
        from pyspark.sql.classic.column import Column

        spark = self.spark._jvm.org.apache.spark.sql
        fills: dict[str, Column] = {}
        conditions: dict[str, Column] = {}
        for one in self.schema():
            generated, default = one.metadata.get("delta.generationExpression"), one.metadata.get("CURRENT_DEFAULT")
            if one.name.lower() not in columns and (generated or default):
                fills[one.name] = F.expr(generated or default)
            elif one.name.lower() not in columns and _IDENTITY in one.metadata:
                fills[one.name] = F.lit(one.metadata[_IDENTITY])
            elif generated:
                text = f"column {one.name!r} is generated always as {generated}, and the row has another value"
                conditions[text] = F.col(quoted(one.name)).eqNullSafe(F.expr(generated).cast(one.dataType))
        for rule in items(spark.delta.constraints.Constraints.getAll(self._metadata(), self.spark._jsparkSession)):
            if class_name(rule) == "NotNull":
                text, condition = not_null(".".join(quoted(part) for part in items(rule.column())))
                conditions[text] = condition
            else:
                text = f"CHECK constraint {rule.name()} ({rule.expression().sql()})"
                conditions[text] = Column(spark.classic.ExpressionUtils.column(rule.expression()))
        return Rules(fills=fills, conditions=conditions)

    def append(self, rows: DataFrame, unit: Unit, label: Label) -> None:
        """See `Table.append`. If two drivers write at the same time, Delta rejects one of the writes.

        Delta silently skips a version of an application id that it has already recorded (delta-io/delta#1141), so the
        caller must look for the label afterward.
        """
        writer = self._widened(rows).write.format("delta").mode("append")
        writer = writer.option("txnAppId", _application(unit)).option("txnVersion", unit.name.batch)
        writer = writer.option("userMetadata", label.to_text())
        if self._name is not None:
            writer.saveAsTable(self._name)
        else:
            writer.save(self._path)

    def merge(self, rows: DataFrame, plan: MergePlan, unit: Unit, label: Label) -> None:
        """Merges rows in one version that carries the label. See `Table.merge`.

        Delta skips and rejects merges like appends. Delta also rejects a merge if others have changed the merged rows
        since the merge read them. An append gets the label through its options; a MERGE gets it through the session's
        settings.
        """
        conf = self.spark.conf
        conf.set(f"{_DELTA}.write.txnAppId", _application(unit))
        conf.set(f"{_DELTA}.write.txnVersion", str(unit.name.batch))
        conf.set(f"{_DELTA}.commitInfo.userMetadata", label.to_text())
        # By default, Delta copies a source that might return different rows when it is read again. These files never
        # change.
        conf.set(f"{_DELTA}.merge.materializeSource", "none")
        # Delta casts values if needed, but cannot cast a nullable field to a field that must not be null.
        rows = never_null_inside(rows, self.schema().fields)
        made = self._handle().alias(TARGET).merge(rows.alias(SOURCE)._jdf, plan.on)
        for one in plan.clauses:
            condition = () if one.condition is None else (one.condition,)
            changes = self.spark._jvm.java.util.HashMap()
            for column, text in one.changes.items():
                changes[quoted(column)] = text
            if one.kind == "insert":
                made = made.whenNotMatched(*condition).insertExpr(changes)
            elif one.kind == "update":
                made = made.whenMatched(*condition).updateExpr(changes)
            else:
                made = made.whenMatched(*condition).delete()
        made.execute()

    def refusal(self, rows: DataFrame, plan: MergePlan | None) -> str:
        """Delta itself checks most of this only when it commits. See `Table.refusal`."""
        snapshot = self._snapshot()
        self._handle().deltaLog().protocolWrite(snapshot.protocol())
        if plan is None:
            self._widened(rows)
        inserted = rows.columns if plan is None else plan.columns("insert")
        updated = () if plan is None else plan.columns("update")
        for one in self.schema():
            if one.metadata.get(_EXPLICIT) is False and one.name.lower() in {name.lower() for name in inserted}:
                return f"column {one.name!r} is GENERATED ALWAYS AS IDENTITY, and the rows have a value for it"
            if _IDENTITY in one.metadata and one.name.lower() in {name.lower() for name in updated}:
                return f"column {one.name!r} is an identity column, and the merge updates it"
        changes = plan is not None and any(one.kind != "insert" for one in plan.clauses)
        if changes and scala_map(snapshot.metadata().configuration()).get("delta.appendOnly", "").lower() == "true":
            return "it has delta.appendOnly=true, and the merge updates or deletes rows"
        return ""

    def frame(self) -> DataFrame:
        return self._frame(self._handle().toDF())

    @property
    def sql_name(self) -> str:
        return self._name or f"delta.{quoted(self._path or '')}"

    def _widened(self, rows: DataFrame) -> DataFrame:
        """Casts the rows to the table's types, the only ones that Delta accepts in constraints and expressions."""
        types = {one.name.lower(): one.dataType for one in self.schema()}
        columns = (
            as_stored(rows[quoted(one.name)], types.get(one.name.lower(), one.dataType)).alias(one.name)
            for one in rows.schema
        )
        return rows.select(*columns)

    def labels(self, newest: int | None = None) -> list[Label]:
        history = self._handle().history() if newest is None else self._handle().history(newest)
        told = self._frame(history).where("userMetadata is not null").select("userMetadata").collect()
        return [label for row in told if (label := Label.of_text(row[0])) is not None]

    def has(self, label: Label) -> bool:
        """Reads the newest entry of the table's log, since reading the history would need a Spark job.

        Reads the history anyway if others have written after the label, or if a catalog stores the newest entry
        elsewhere.
        """
        return label == self._newest_label() or super().has(label)

    def _newest_label(self) -> Label | None:
        log, path = self._handle().deltaLog(), self.spark._jvm.org.apache.hadoop.fs.Path
        entry = path(log.logPath(), f"{self._snapshot().version():020}.json")
        if not entry.getFileSystem(log.newDeltaHadoopConf()).exists(entry):
            return None
        for line in items(log.store().read(entry, log.newDeltaHadoopConf())):
            if (info := json.loads(line).get("commitInfo")) is not None:
                return Label.of_text(info.get("userMetadata"))
        return None

    def remembers_since_ms(self, unit: Unit) -> int:  # noqa: ARG002 - the history covers all writers
        oldest = self._frame(self._handle().history()).selectExpr(
            "min_by(struct(version, unix_millis(timestamp)), version)"
        )
        version, at_ms = oldest.first()[0]
        return 0 if version == 0 else int(at_ms)

    def location(self) -> str:
        return str(self._handle().deltaLog().dataPath().toUri())

    def _metadata(self) -> Any:
        return self._snapshot().metadata()

    def _snapshot(self) -> Any:
        none = self.spark._jvm.scala.Option.empty
        return self._handle().deltaLog().update(False, none(), none())

    def _handle(self) -> Any:
        tables = self.spark._jvm.io.delta.tables.DeltaTable
        session = self.spark._jsparkSession
        return tables.forPath(session, self._path) if self._name is None else tables.forName(session, self._name)

    def _frame(self, java: Any) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame

        return DataFrame(java, self.spark)


def _application(unit: Unit) -> str:
    # The id contains the run, so that versions written after the log was restored never conflict with versions of
    # another run. The id also contains the unit, because a slot of a batch may be written again with different rows, as
    # a different unit.
    name = unit.name
    return f"{name.prefix}.{name.query}.{name.token.position}-{name.token.nonce}.{name.slot}.{unit.number}"

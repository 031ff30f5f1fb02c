"""Iceberg: each batch becomes a snapshot, staged on its own branch, then published in one commit with a note."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import nonempty
from sparkonce.errors import PreflightError
from sparkonce.jvm import quoted
from sparkonce.packages import ICEBERG_MODULE
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks.tables.errors import error_message
from sparkonce.sinks.tables.fitting import Rules, not_null, not_null_inside
from sparkonce.sinks.tables.merging import INSERT_ALL, UPDATE_ALL, Merge, MergePlan, WhenMatched, WhenNotMatched
from sparkonce.sinks.tables.sink import TableSink, driver_session
from sparkonce.sinks.tables.table import Label, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparkonce.sinks.write_ahead.application import Unit

log = logging.getLogger("sparkonce")

NOTE = "sparkonce."
"""The prefix of the table properties that are notes, followed by the name of the commit's first transaction."""

KEEP_NOTES = 20
"""The number of notes that each query and sink retains."""

_MAIN = "main"
_ROWS = "sparkonce_rows"
_DUPLICATE = "DuplicateWAPCommitException"
_STAGED, _PUBLISHED = "wap.id", "published-wap-id"
"""Iceberg's own keys in a snapshot's summary. Iceberg compares their values when it publishes a staged snapshot."""


class IcebergSink(TableSink):
    """Appends each batch to an Iceberg table, or merges it into the table, as one snapshot.

    Example:
        ```python
        from sparkonce import ExactlyOnce, IcebergSink

        sink = IcebergSink("lake.shop.totals", merge_on=["customer"])
        ExactlyOnce(sink, "s3a://lake/checkpoints/totals").start(totals, output_mode="update")
        ```

    Args:
        table: The table's name in Spark SQL: ``catalog.namespace.table``, or relative to the session's catalog.
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
        table: str,
        *,
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
        name: str = "iceberg",
    ) -> None:
        self._table = nonempty("table", table, example="its name: catalog.namespace.table")
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
        super().__init__(f"table={table!r}", merge=merge, evolve_schema=evolve_schema, folder=folder, name=name)

    @property
    def needs(self) -> tuple[str, str]:
        return ICEBERG_MODULE, "org.apache.iceberg.spark.Spark3Util"

    def table(self, spark: SparkSession) -> Table:
        return _IcebergTable(spark, self._table)

    def table_conditions(self) -> Sequence[str]:
        return (
            f"nobody unsets the table's properties that begin with {NOTE!r}",
            "readers read the table through its catalog and its branch main, not its files",
        )

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Also checks that the session does not redirect writes to a branch. See `TableSink.preflight`."""
        facts = super().preflight(query, recorded)
        spark = driver_session(self.name)
        for setting in ("spark.wap.id", "spark.wap.branch"):
            value = spark.conf.get(setting, None)
            if value is not None:
                raise PreflightError(
                    f"{setting}={value} in the driver's session: Iceberg would stage there what sink {self.name!r} "
                    "publishes.",
                    next_step=f"Unset {setting} in this session.",
                    setting=setting,
                )
        return facts


class _IcebergTable(Table):
    def __init__(self, spark: SparkSession, name: str) -> None:
        super().__init__(spark)
        self._name = name
        self._readers = spark

    def identity(self) -> str:
        return str(self._load().uuid())

    def schema(self) -> StructType:
        self._load()
        return self.spark.table(self._name).schema

    def rules(self, columns: Collection[str]) -> Rules:
        """Leaves required columns out, because `TableSink.columns` rejects rows without them. See `Table.rules`."""
        conditions: dict[str, Column] = {}
        for one in self.schema():
            if one.name.lower() in columns:
                conditions |= {} if one.nullable else dict([not_null(quoted(one.name))])
                conditions |= not_null_inside(one)
        return Rules(fills={}, conditions=conditions)

    def append(self, rows: DataFrame, unit: Unit, label: Label) -> None:
        """See `Table.append`. If two drivers publish at the same time, Iceberg rejects one of the snapshots.

        The label is the snapshot's id for write-audit-publish, which Iceberg publishes once.
        """
        filled = self._filled(rows)

        def write(branch: str) -> None:
            writer = filled.writeTo(self._of_branch(branch))
            writer.option(f"snapshot-property.{_STAGED}", label.to_text()).append()

        self._stage(write, unit, label, False)

    def merge(self, rows: DataFrame, plan: MergePlan, unit: Unit, label: Label) -> None:
        """See `Table.merge`. Publishes the branch only if nobody has committed since it was created."""

        def write(branch: str) -> None:
            rows.createOrReplaceTempView(_ROWS)
            _run_labelled(self.spark, plan.to_sql(self._of_branch(branch), _ROWS), {_STAGED: label.to_text()})

        self._stage(write, unit, label, True)

    def refusal(self, rows: DataFrame, plan: MergePlan | None) -> str:
        java, session = self.spark._jvm, self.spark._jsparkSession
        spark = java.org.apache.spark.sql
        self._load()
        if plan is None:
            table = session.sessionState().sqlParser().parsePlan(f"TABLE {self._name}")
            none = getattr(java.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
            filled = self._filled(rows)._jdf.queryExecution().logical()
            write = spark.catalyst.plans.logical.AppendData.byName(table, filled, none)
        else:
            rows.createOrReplaceTempView(_ROWS)
            write = session.sessionState().sqlParser().parsePlan(plan.to_sql(self._name, _ROWS))
        skip = spark.execution.CommandExecutionMode.SKIP()
        session.sessionState().executePlan(write, skip).assertAnalyzed()
        return ""

    def frame(self) -> DataFrame:
        self._load()
        return self.spark.table(self._name)

    @property
    def sql_name(self) -> str:
        return self._name

    def _of_branch(self, branch: str) -> str:
        return f"{self._name}.`branch_{branch}`"

    def _stage(self, write: Callable[[str], None], unit: Unit, label: Label, alone: bool) -> None:
        # Each attempt has its own branch, so the branch contains only what this attempt has written.
        branch = f"{unit.name}.{secrets.token_hex(4)}"
        self._load().manageSnapshots().createBranch(branch).commit()
        try:
            self._load()  # The session's cached copy of the table does not have the branch yet.
            write(branch)
            self._publish(branch, unit, label, alone)
        except Exception as error:
            if _DUPLICATE not in str(error):  # A duplicate is already published; the caller checks for that.
                self._drop_quietly(branch)
                raise
        self._drop_quietly(branch)
        # Each session has its own table cache, and this table may be read in the original session.
        self._forgotten(self._readers)

    def labels(self, newest: int | None = None) -> list[Label]:
        """Reads the notes, which outlive snapshots. For all labels, also reads the table's snapshots."""
        table = self._load()
        found = dict.fromkeys(_notes(table).values())
        if newest is None:
            # Ignore snapshots that were rolled back: if no note mentions such a snapshot, its rows may be written
            # again.
            for snapshot_id in self.spark._jvm.org.apache.iceberg.util.SnapshotUtil.currentAncestorIds(table):
                summary = table.snapshot(snapshot_id).summary()
                label = Label.of_text(summary.get(_STAGED) or summary.get(_PUBLISHED))
                if label is not None:
                    found[label] = None
        return list(found)

    def remembers_since_ms(self, unit: Unit) -> int:
        """For each query, the table keeps only the notes for the rows started last."""
        begun_ms = [_begun_ms(label) for name, label in _notes(self._load()).items() if _kin(name, unit.name)]
        return min(begun_ms) + 1 if len(begun_ms) >= KEEP_NOTES else 0

    def location(self) -> str:
        return str(self._load().location())

    def unfinished(self) -> Mapping[str, TransactionName]:
        """Lists the branches that failed attempts have left behind."""
        names = {str(branch): str(branch).rpartition(".")[0] for branch in self._load().refs()}
        return {branch: name for branch, text in names.items() if (name := TransactionName.parse(text)) is not None}

    def discard(self, unfinished: str) -> None:
        table = self._load()
        if table.refs().get(unfinished) is not None:
            table.manageSnapshots().removeBranch(unfinished).commit()

    def _filled(self, rows: DataFrame) -> DataFrame:
        """Returns the rows with null columns for those that they lack, because Iceberg requires all columns."""
        from pyspark.sql import functions

        names = {name.lower() for name in rows.columns}
        missing = [field for field in self.schema() if field.name.lower() not in names]
        return rows.select("*", *(functions.lit(None).cast(one.dataType).alias(one.name) for one in missing))

    def _publish(self, branch: str, unit: Unit, label: Label, alone: bool) -> None:
        """Adds the rows and a note to the table in one commit.

        If others commit first, Iceberg tries again, unless ``alone`` is True.
        """
        # Iceberg rejects a label only if it belongs to a snapshot in the table's current history. Check the notes
        # first, which also cover snapshots that have expired or were rolled back.
        table = self._load()
        staged = table.snapshot(branch)
        if Label.of_text(staged.summary().get(_STAGED)) != label:
            raise RuntimeError(f"The branch {branch} does not end with the rows that were written to it.")
        notes = _notes(table)
        if label in notes.values():
            return
        kin = {name: one for name, one in notes.items() if _kin(name, unit.name)} | {unit.name: label}
        newest = set(sorted(kin, key=lambda name: (_begun_ms(kin[name]), str(name)))[-KEEP_NOTES:])
        transaction = table.newTransaction()
        if alone:
            transaction.manageSnapshots().fastForwardBranch(_MAIN, branch).commit()
        else:
            transaction.manageSnapshots().cherrypick(staged.snapshotId()).commit()
        properties = transaction.updateProperties()
        for name in kin:
            if name not in newest:
                properties.remove(f"{NOTE}{name}")
            elif name == unit.name:
                properties.set(f"{NOTE}{name}", label.to_text())
        properties.commit()
        transaction.commitTransaction()

    def _drop_quietly(self, branch: str) -> None:
        try:
            try:
                self.discard(branch)
            except Exception:  # noqa: BLE001 - other code in this session has reloaded the table meanwhile
                self.discard(branch)
        except Exception as error:  # noqa: BLE001 - no reader sees the branch, and a sweep finds it
            log.warning("The branch %s of %s is left to a later sweep: %s", branch, self._name, error_message(error))

    def _load(self) -> Any:
        # Refreshing the table in Spark's catalog is not enough. If another session has recreated a table of a Hadoop
        # catalog, and both tables have the same number of versions, Spark would keep using the old table.
        return self._forgotten(self.spark).loadIcebergTable(self.spark._jsparkSession, self._name)

    def _forgotten(self, spark: SparkSession) -> Any:
        """Makes a session's catalog drop its cached table. Returns Iceberg's functions for Spark."""
        functions = spark._jvm.org.apache.iceberg.spark.Spark3Util
        found = functions.catalogAndIdentifier(spark._jsparkSession, self._name)
        found.catalog().invalidateTable(found.identifier())
        return functions


def _run_labelled(spark: SparkSession, statement: str, summary: Mapping[str, str]) -> None:
    """Runs a statement, and adds these entries to its snapshot's summary. Before Iceberg 1.11, SQL cannot add them.

    The entries apply while a Java function runs. This code passes the session's own method for running SQL. A Python
    function would have to be called by the thread that waits for it.
    """
    java = spark._jvm.java
    handles, text = java.lang.invoke.MethodHandles, java.lang.Class.forName("java.lang.String")
    kind = java.lang.invoke.MethodType.methodType(java.lang.Class.forName("org.apache.spark.sql.Dataset"), text)
    arguments = spark.sparkContext._gateway.new_array(java.lang.Object, 1)
    arguments[0] = statement
    run = handles.insertArguments(handles.publicLookup().bind(spark._jsparkSession, "sql", kind), 0, arguments)
    proxies = java.lang.invoke.MethodHandleProxies
    call = proxies.asInterfaceInstance(java.lang.Class.forName("java.util.concurrent.Callable"), run)
    words = java.util.HashMap()
    for key, value in summary.items():
        words[key] = value
    errors = java.lang.Class.forName("java.lang.RuntimeException")
    spark._jvm.org.apache.iceberg.spark.CommitMetadata.withCommitProperties(words, call, errors)


def _notes(table: Any) -> dict[TransactionName, Label]:
    found: dict[TransactionName, Label] = {}
    for key, text in dict(table.properties()).items():
        name = TransactionName.parse(str(key)[len(NOTE) :]) if str(key).startswith(NOTE) else None
        label = Label.of_text(str(text))
        if name is not None and label is not None:
            found[name] = label
    return found


def _kin(one: TransactionName, other: TransactionName) -> bool:
    return (one.prefix, one.query) == (other.prefix, other.query)


def _begun_ms(label: Label) -> int:
    return 0 if label.entry is None else label.entry.begun_ms

"""Delta Lake: a batch is a version of the table, whose entry in the table's log labels its rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import nonempty
from sparkonce.errors import ConfigurationError
from sparkonce.sources.packages import DELTA_MODULE
from sparkonce.spark.jvm import class_name, items
from sparkonce.spark.tables.committer import Label, Rules, Table
from sparkonce.spark.tables.sink import SEEN_BY_ALL, TableSink, not_null, quoted, read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparkonce.sinks.write_ahead.application import Unit


class DeltaSink(TableSink):
    """Appends each batch to a Delta table, in one version of it.

    Args:
        path: The table's location; or give `table`.
        table: The table's name in a catalog.
        folder: The folder in which rows wait, see `WriteAheadSink`.
        name: Unique within the query, and the same after a restart.

    Raises:
        ConfigurationError: if a setting is wrong.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        table: str | None = None,
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
        super().__init__(f"path={path!r}" if table is None else f"table={table!r}", folder=folder, name=name)
        self._path = path
        self._table = table

    @property
    def needs(self) -> tuple[str, str]:
        """See `TableSink.needs`."""
        return DELTA_MODULE, "io.delta.tables.DeltaTable"

    def table(self, spark: SparkSession) -> Table:
        """See `TableSink.table`."""
        return _DeltaTable(spark, self._path, self._table)

    def conditions(self) -> Sequence[str]:
        """See `TableSink.conditions`."""
        return (
            "delta.logRetentionDuration is longer than the query may be away with a batch half committed",
            "the table stays the same table, and readers read it by its log, not its files",
            SEEN_BY_ALL,
        )


_IDENTITY = "delta.identity.start"


class _DeltaTable(Table):
    def __init__(self, spark: SparkSession, path: str | None, name: str | None) -> None:
        self._spark = spark
        self._path = path
        self._name = name

    def identity(self) -> str:
        return str(self._metadata().id())

    def schema(self) -> StructType:
        """See `Table.schema`. Reads the table's log: a reader is not told which columns Delta fills itself."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._metadata().schema().json()))

    def rules(self, given: Collection[str]) -> Rules:
        """See `Table.rules`. Reads CHECK constraints, NOT NULL, lengths of texts, and the generated columns."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
        from pyspark.sql.classic.column import Column

        spark = self._spark._jvm.org.apache.spark.sql
        fills: dict[str, Column] = {}
        conditions: dict[str, Column] = {}
        for one in self.schema():
            generated, default = one.metadata.get("delta.generationExpression"), one.metadata.get("CURRENT_DEFAULT")
            if one.name.lower() not in given and (generated or default):
                fills[one.name] = F.expr(generated or default)
            elif one.name.lower() not in given and _IDENTITY in one.metadata:
                fills[one.name] = F.lit(one.metadata[_IDENTITY])
            elif generated:
                text = f"column {one.name!r} is generated always as {generated}, and the row has another value"
                conditions[text] = F.col(quoted(one.name)).eqNullSafe(F.expr(generated).cast(one.dataType))
        for rule in items(spark.delta.constraints.Constraints.getAll(self._metadata(), self._spark._jsparkSession)):
            if class_name(rule) == "NotNull":
                text, condition = not_null(".".join(quoted(part) for part in items(rule.column())))
                conditions[text] = condition
            else:
                text = f"CHECK constraint {rule.name()} ({rule.expression().sql()})"
                conditions[text] = Column(spark.classic.ExpressionUtils.column(rule.expression()))
        return Rules(fills=fills, conditions=conditions)

    def append(self, urls: Sequence[str], unit: Unit, label: Label) -> None:
        """See `Table.append`. Of two drivers that write the same at once, Delta refuses one.

        Delta silently skips a version of an application id that it has already seen (delta-io/delta#1141): the caller
        looks for the label afterwards.
        """
        # The id names the run, so that a restored log never meets the versions of another run; and the unit, since a
        # slot of a batch may be written again with other rows, which are another unit.
        name = unit.name
        application = f"{name.prefix}.{name.query}.{name.token.position}-{name.token.nonce}.{name.slot}.{unit.number}"
        writer = self._widened(read_rows(self._spark, urls)).write.format("delta").mode("append")
        writer = writer.option("txnAppId", application).option("txnVersion", name.batch)
        writer = writer.option("userMetadata", label.to_text())
        if self._name is not None:
            writer.saveAsTable(self._name)
        else:
            writer.save(self._path)

    def _widened(self, rows: DataFrame) -> DataFrame:
        """Casts the rows to the table's types: Delta takes no others for columns of constraints or of expressions."""
        types = {one.name.lower(): one.dataType for one in self.schema()}
        columns = (rows[quoted(name)].cast(types.get(name.lower(), kind)).alias(name) for name, kind in rows.dtypes)
        return rows.select(*columns)

    def labels(self, newest: int | None = None) -> list[Label]:
        history = self._handle().history() if newest is None else self._handle().history(newest)
        told = self._frame(history).where("userMetadata is not null").select("userMetadata").collect()
        return [label for row in told if (label := Label.of_text(row[0])) is not None]

    def remembers_since_ms(self, unit: Unit) -> int:  # noqa: ARG002 - the history is everybody's
        oldest = self._frame(self._handle().history()).selectExpr(
            "min_by(struct(version, unix_millis(timestamp)), version)"
        )
        version, at_ms = oldest.first()[0]
        return 0 if version == 0 else int(at_ms)

    def _metadata(self) -> Any:
        """Returns the metadata of the newest version. Fails if there is none."""
        none = self._spark._jvm.scala.Option.empty
        return self._handle().deltaLog().update(False, none(), none()).metadata()

    def _handle(self) -> Any:
        tables = self._spark._jvm.io.delta.tables.DeltaTable
        session = self._spark._jsparkSession
        return tables.forPath(session, self._path) if self._name is None else tables.forName(session, self._name)

    def _frame(self, java: Any) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame

        return DataFrame(java, self._spark)

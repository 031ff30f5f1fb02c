"""Adds up each customer's orders in SQLite, exactly once, with the write-ahead sink.

``total = total + amount`` must not be repeated for the same rows. The function therefore writes its token in the same
transaction, to a table of applied tokens that rejects a token it already contains. Without ``--orders``, the example
tests itself: after every third commit, the function fails as if it had lost the reply.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from pyspark.sql import SparkSession

from sparkonce import ExactlyOnce, WriteAheadSink
from sparkonce.write_ahead import SKIPPED, Applies, ApplyToken

ORDER = "id bigint, customer string, amount bigint"
TABLES = """
    CREATE TABLE IF NOT EXISTS applied (token TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders INTEGER, total INTEGER);
"""
ADD = """
    INSERT INTO totals VALUES (:customer, 1, :amount)
    ON CONFLICT (customer) DO UPDATE SET orders = orders + 1, total = total + excluded.total
"""


@dataclass(frozen=True)
class Totals:
    """Adds up a batch's rows in one transaction, which also contains the token of these rows."""

    database: str

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> object:
        with closing(self._connect()) as connection, connection:
            if not connection.execute("INSERT OR IGNORE INTO applied VALUES (?)", [token.id]).rowcount:
                return SKIPPED
            for batch in rows:
                connection.executemany(ADD, batch.to_pylist())
            return None

    def is_applied(self, token: ApplyToken) -> bool:
        with closing(self._connect()) as connection:
            return connection.execute("SELECT 1 FROM applied WHERE token = ?", [token.id]).fetchone() is not None

    def read(self) -> dict[str, tuple[int, int]]:
        """Returns the number of orders and the total of each customer."""
        with closing(self._connect()) as connection:
            return {customer: (orders, total) for customer, orders, total in connection.execute("SELECT * FROM totals")}

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.database, timeout=30)
        connection.executescript(TABLES)
        return connection


def sink_of(target: Totals) -> WriteAheadSink:
    return WriteAheadSink(
        target, applies=Applies.TRANSACTIONAL, is_applied=target.is_applied, per="batch", parallel=1, name="totals"
    )


def run(orders: Path, sink: WriteAheadSink, checkpoint: str) -> None:
    """Adds up all orders that are currently available."""
    spark = SparkSession.builder.appName("sqlite-upsert").getOrCreate()
    rows = spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 2).json(str(orders))
    ExactlyOnce(sink, checkpoint=checkpoint).start(rows, trigger={"availableNow": True}).awaitTermination()


def main(
    orders: Annotated[Path | None, typer.Option(help="A folder of JSON lines. If omitted, a sample is used.")] = None,
    database: Annotated[Path, typer.Option(help="The SQLite file.")] = Path("totals.db"),
    checkpoint: Annotated[str, typer.Option(help="A path or URL for positions, waiting rows, and decisions.")] = "",
) -> None:
    """Add up each customer's orders in SQLite, exactly once."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if orders is not None:
        return run(orders, sink_of(Totals(str(database))), checkpoint)

    from tryout.bulk import Forgetful, make_orders, show, totals_of

    with tempfile.TemporaryDirectory() as folder:
        sent = make_orders(Path(folder) / "orders")
        target = Totals(f"{folder}/totals.db")
        sink = sink_of(target)
        sink.apply = forgetful = Forgetful(target, every=3)
        run(Path(folder) / "orders", sink, f"{folder}/state")
        print(f"{forgetful.calls} calls, of which {forgetful.failed} were committed and then failed")
        wanted, found = totals_of(sent), target.read()
        raise typer.Exit(show(sorted(wanted.items()), sorted(found.items())))


if __name__ == "__main__":
    typer.run(main)

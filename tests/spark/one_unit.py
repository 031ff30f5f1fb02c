"""A query that writes to Kafka, to PostgreSQL and to files as one unit, and what each of them has of each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.faults import Watched
from spark.harness import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.pipeline import Config
    from sparkonce import KafkaSink
    from sparkonce.spark.views import Sinks

KAFKA, POSTGRES, FILES = "kafka", "postgres", "files"
TABLE = "output"

Rows = Counter[tuple[int, str]]
"""How often each (batch, id) stands somewhere."""


def sinks(config: Config, kafka: KafkaSink) -> Sinks:
    """All rows to Kafka and PostgreSQL; to the files, too, with half as many slots."""
    from sparkonce import FilesSink, PostgresSink

    watched = partial(Watched, desk=config.desk, points=config.points)
    postgres = PostgresSink(config.beside[POSTGRES], table=TABLE, **config.beside.get("more", {}))
    files = FilesSink(config.beside[FILES])
    return {kafka: None, watched(postgres): with_batch, watched(files): lambda df: with_batch(df).coalesce(2)}


def with_batch(df: DataFrame) -> DataFrame:
    """The id, and the number of the batch that `spark.pipeline.tagged` has put before the value."""
    return df.selectExpr("key as id", "cast(split(value, ' ')[0] as bigint) as batch")


class UnitJob(Job):
    """A job with three outputs.

    Args:
        bootstrap: The broker.
        folder: A new one.
        postgres: How to reach the database.
        more: `PostgresSink`'s other arguments.
        config: More of `Config`.
    """

    def __init__(
        self, bootstrap: str, folder: Path, postgres: str, *, more: Mapping[str, Any] | None = None, **config: Any
    ) -> None:
        self.postgres = postgres
        self.files = folder / FILES
        beside = {POSTGRES: postgres, FILES: str(self.files), "more": dict(more or {})}
        super().__init__(bootstrap, folder, unit="spark.one_unit:sinks", beside=beside, **config)

    def outputs(self) -> dict[str, Rows]:
        """What a reader of each system finds there now."""
        return {KAFKA: self._in_kafka(), POSTGRES: self._in_postgres(), FILES: self._in_files()}

    def open(self) -> dict[str, int]:
        """What each system holds that is neither committed nor aborted, asked of the system itself."""
        import psycopg

        with psycopg.connect(self.postgres) as witness:
            (prepared,) = witness.execute("select count(*) from pg_prepared_xacts").fetchall()
            (staged,) = witness.execute(
                "select count(*) from pg_tables where tablename ~ '^sparkonce_[0-9a-f]{12}_'"
            ).fetchall()
        hidden = [path for path in (self.files / ".sparkonce").rglob("*") if path.is_file() and path.name != "id"]
        return {
            KAFKA: len(self.transactions("Ongoing")),
            POSTGRES: prepared[0] + staged[0],
            FILES: len(hidden),
        }

    def _in_kafka(self) -> Rows:
        found = [((record.value or b"").decode(), (record.key or b"").decode()) for record in self.records()]
        return Counter((int(value.split(" ")[0]), key) for value, key in found)

    def _in_postgres(self) -> Rows:
        import psycopg

        with psycopg.connect(self.postgres) as witness:
            return Counter(witness.execute("select batch, id from output").fetchall())

    def _in_files(self) -> Rows:
        import pyarrow.dataset as ds

        paths = [str(path) for path in self.files.rglob("*.parquet")]
        if not paths:
            return Counter()
        table = ds.dataset(paths, format="parquet").to_table(columns=["batch", "id"])
        return Counter(zip(table["batch"].to_pylist(), table["id"].to_pylist(), strict=True))

"""The analyser's verdicts on Delta and Iceberg tables, each proved by an injury."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.harness import new_name
from spark.in_process import SPARK
from spark.injuries import ROWS, Kept, Proof, Verdict, forget_commit, once, proof, read_lines, run, write_lines
from sparkonce import explain
from sparkonce.analysis.checkpoint import checkpoint_facts
from sparkonce.checkpoint.local import LocalFiles

pytestmark = SPARK


def rows_of(session: SparkSession, table: str) -> Counter[str]:
    return Counter(row[0] for row in session.table(table).collect())


def delta_rows(session: SparkSession, folder: Path) -> Counter[str]:
    return Counter(row[0] for row in session.read.format("delta").load(str(folder)).collect())


def replace_one(session: SparkSession, folder: Path, *by: str) -> None:
    """What UPDATE or MERGE leaves of a file that ``row-000`` is in: it is removed, and its rows are written anew."""
    rows = session.createDataFrame([(row,) for row in (*ROWS[1:], *by)], "value string")
    rows.coalesce(1).write.format("delta").mode("overwrite").save(str(folder))


@pytest.mark.proves(
    query="files → Delta",
    verdict="exactly-once",
    injury="driver dies after the table's version is written, before Spark's commit",
    seen="each row once",
)
@proof
def test_a_delta_table(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    target = tmp_path / "table"
    writer = read_lines(tables, tmp_path / "in").writeStream.format("delta").option("path", str(target))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "one table version")
    yield
    verdict.of(explain(run(writer)), "one table version")
    forget_commit(tmp_path / "checkpoint")
    run(writer)
    assert delta_rows(tables, target) == once()


@pytest.mark.proves(
    query="files → Delta, its files read without its log",
    verdict="at-least-once (reader)",
    injury="a row of the table is changed, and VACUUM has not yet run",
    seen="files that no version holds",
)
@proof
def test_the_files_of_a_delta_table(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    target = tmp_path / "table"
    writer = read_lines(tables, tmp_path / "in").writeStream.format("delta").option("path", str(target))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer, reader="files"), "no version")
    yield
    run(writer)
    replace_one(tables, target, "changed")
    listed = Counter(row[0] for row in tables.read.parquet(*map(str, target.glob("*.parquet"))).collect())
    assert listed["row-001"] == 2
    assert delta_rows(tables, target) == once([*ROWS[1:], "changed"])


@pytest.mark.proves(
    query="files → Iceberg",
    verdict="exactly-once",
    injury="driver dies after the snapshot is committed, before Spark's commit",
    seen="each row once",
)
@proof
def test_an_iceberg_table(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    table = f"ice.db.{new_name('t').replace('-', '_')}"
    tables.sql(f"create table {table} (value string) using iceberg")
    writer = read_lines(tables, tmp_path / "in").writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer, "iceberg"), "one snapshot")
    yield
    verdict.of(explain(run(writer, table=table)), "one snapshot")
    forget_commit(tmp_path / "checkpoint")
    run(writer, table=table)
    assert rows_of(tables, table) == once()


@pytest.mark.proves(
    query="files → Iceberg",
    verdict="exactly-once",
    injury="against the condition: the snapshot of the last batch is expired before the replay",
    seen="rows doubled",
)
@proof
def test_an_iceberg_table_whose_snapshots_expire(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    table = f"ice.db.{new_name('t').replace('-', '_')}"
    tables.sql(f"create table {table} (value string) using iceberg")
    writer = read_lines(tables, tmp_path / "in").writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer, "iceberg"), "is not expired")
    yield
    run(writer, table=table)
    # Another writer's snapshot, after the query's.
    tables.createDataFrame([("other",)], "value string").writeTo(table).append()
    name = table.removeprefix("ice.")
    tables.sql(f"call ice.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
    forget_commit(tmp_path / "checkpoint")
    run(writer, table=table)
    assert rows_of(tables, table) == once([*ROWS, *ROWS, "other"])


@pytest.mark.proves(
    query="Delta with `ignoreChanges=true` → Delta",
    verdict="at-least-once (source)",
    injury="one row of the source table is changed",
    seen="the other rows of its file doubled",
)
@proof
def test_changes_that_are_ignored(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    source, target = tmp_path / "source", tmp_path / "target"
    tables.createDataFrame([(row,) for row in ROWS], "value string").coalesce(1).write.format("delta").save(str(source))
    plan = tables.readStream.format("delta").option("ignoreChanges", "true").load(str(source))
    writer = plan.writeStream.format("delta").option("path", str(target))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "ignoreChanges=true")
    yield
    run(writer)
    replace_one(tables, source, "changed")
    run(writer)
    assert checkpoint_facts(LocalFiles(tmp_path / "checkpoint")).sources[0].format == "delta"
    found = delta_rows(tables, target)
    assert found == once([*ROWS, *ROWS[1:], "changed"])


@pytest.mark.proves(
    query="Delta with `skipChangeCommits=true` → Delta",
    verdict="at-most-once (source)",
    injury="one commit changes a row and adds another",
    seen="the added row missing, no error",
)
@proof
def test_commits_that_are_skipped(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    source, target = tmp_path / "source", tmp_path / "target"
    tables.createDataFrame([(row,) for row in ROWS], "value string").write.format("delta").save(str(source))
    plan = tables.readStream.format("delta").option("skipChangeCommits", "true").load(str(source))
    writer = plan.writeStream.format("delta").option("path", str(target))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "skipChangeCommits=true")
    yield
    run(writer)
    replace_one(tables, source, "changed", "added")
    assert delta_rows(tables, source) == once([*ROWS[1:], "changed", "added"])
    run(writer)
    assert delta_rows(tables, target) == once()


@pytest.mark.proves(
    query="Iceberg with `streaming-skip-overwrite-snapshots=true` → foreachBatch",
    verdict="at-most-once (source)",
    injury="an overwrite puts another row in place of all",
    seen="the added row missing, no error",
)
@proof
def test_overwrites_that_are_skipped(tables: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    table = f"ice.db.{new_name('t').replace('-', '_')}"
    tables.sql(f"create table {table} (value string) using iceberg")
    tables.createDataFrame([(row,) for row in ROWS], "value string").writeTo(table).append()
    plan = tables.readStream.option("streaming-skip-overwrite-snapshots", "true").table(table)
    kept = Kept()
    writer = plan.writeStream.foreachBatch(kept).option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "streaming-skip-overwrite-snapshots=true")
    yield
    run(writer)
    tables.createDataFrame([("added",)], "value string").writeTo(table).overwrite(F.lit(True))
    run(writer)
    assert checkpoint_facts(LocalFiles(tmp_path / "checkpoint")).sources[0].format == "iceberg"
    assert kept.values() == once()
    assert rows_of(tables, table) == once(["added"])

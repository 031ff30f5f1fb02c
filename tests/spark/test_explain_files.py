"""The analyser's verdicts on file sources and file sinks, each proved by an injury."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark.in_process import SPARK
from spark.injuries import (
    ROWS,
    Kept,
    Proof,
    Verdict,
    forget,
    forget_commit,
    once,
    proof,
    read_lines,
    run,
    write_lines,
)
from sparkonce import explain

pytestmark = SPARK

LATE = [f"late-{number:03d}" for number in range(10)]


def to_folder(spark: SparkSession, folder: Path, **options: str):  # type: ignore[no-untyped-def]
    """A query from files to files."""
    checkpoint = str(folder / "checkpoint")
    lines = read_lines(spark, folder / "in", **options)
    return lines.writeStream.format("text").option("path", str(folder / "out")).option("checkpointLocation", checkpoint)


def read_by_spark(spark: SparkSession, folder: Path):  # type: ignore[no-untyped-def]
    return Counter(row[0] for row in spark.read.text(str(folder / "out")).collect())


def read_by_listing(folder: Path):  # type: ignore[no-untyped-def]
    return Counter(line for file in (folder / "out").glob("*.txt") for line in file.read_text().splitlines())


def write_twice(writer: DataStreamWriter, folder: Path) -> None:
    """As a driver does that dies when the files are written, before they are entered in ``_spark_metadata``."""
    run(writer)
    forget_commit(folder / "checkpoint")
    forget(folder / "out" / "_spark_metadata")
    run(writer)


@pytest.mark.proves(
    query="files → files, read by Spark",
    verdict="exactly-once",
    injury="driver dies after the files are written, before they are entered in `_spark_metadata`",
    seen="each row once",
)
@proof
def test_a_folder_read_by_spark(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    writer = to_folder(spark, tmp_path)
    verdict.of(explain(writer, reader="spark"), "only once")
    yield
    write_twice(writer, tmp_path)
    assert read_by_spark(spark, tmp_path) == once()


@pytest.mark.proves(
    query="files → files, read by listing the folder",
    verdict="at-least-once (reader)",
    injury="the same",
    seen="rows doubled",
)
@proof
def test_a_folder_read_by_listing_it(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    writer = to_folder(spark, tmp_path)
    verdict.of(explain(writer, reader="files"), "lists the files")
    yield
    write_twice(writer, tmp_path)
    found = read_by_listing(tmp_path)
    assert set(found) == set(ROWS)
    assert set(found.values()) == {2}


@pytest.mark.proves(
    query="files → files",
    verdict="exactly-once",
    injury="driver dies after the batch is in `_spark_metadata`, before Spark's own commit",
    seen="each row once, by listing too",
)
@proof
def test_a_folder_whose_batch_was_entered(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    writer = to_folder(spark, tmp_path)
    verdict.of(explain(writer), "the reader is Spark")
    yield
    run(writer)
    forget_commit(tmp_path / "checkpoint")
    run(writer)
    assert read_by_spark(spark, tmp_path) == once()
    assert read_by_listing(tmp_path) == once()


@pytest.mark.proves(
    query="files with `maxFileAge=1h`",
    verdict="at-most-once (source)",
    injury="a file comes with a modification time of two hours before the newest",
    seen="its rows missing, no error",
)
@proof
def test_a_file_that_comes_late(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    writer = to_folder(spark, tmp_path, maxFileAge="1h")
    verdict.of(explain(writer), "maxFileAge=1h")
    yield
    run(writer)
    write_lines(tmp_path / "in", "late.txt", LATE, age_s=7200)
    write_lines(tmp_path / "in", "more.txt", ["more"])
    run(writer)
    assert read_by_spark(spark, tmp_path) == once([*ROWS, "more"])


@pytest.mark.proves(
    query="files with the default `maxFileAge`",
    verdict="exactly-once",
    injury="a file comes two hours late (the condition says: 7 days)",
    seen="each row once",
)
@proof
def test_a_file_that_comes_in_time(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    writer = to_folder(spark, tmp_path)
    verdict.of(explain(writer), "7 days")
    yield
    run(writer)
    write_lines(tmp_path / "in", "late.txt", LATE, age_s=7200)
    run(writer)
    assert read_by_spark(spark, tmp_path) == once([*ROWS, *LATE])


@pytest.mark.proves(
    query="files with `ignoreMissingFiles=true`",
    verdict="at-most-once (source)",
    injury="a file is deleted after a batch took it in, and the batch is replayed",
    seen="its rows missing, no error",
)
@proof
def test_a_file_that_is_gone(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS[:30])
    lost = write_lines(tmp_path / "in", "b.txt", ROWS[30:])
    plan = read_lines(spark, tmp_path / "in", ignoreMissingFiles="true")
    writer = plan.writeStream.format("text").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "ignoreMissingFiles=true")
    yield
    run(writer)
    # As a driver leaves it that died before the batch was entered anywhere.
    forget_commit(tmp_path / "checkpoint")
    forget(tmp_path / "out" / "_spark_metadata")
    lost.unlink()
    run(writer)
    assert read_by_spark(spark, tmp_path) == once(ROWS[:30])


@pytest.mark.proves(
    query="files with `ignoreCorruptFiles=true`",
    verdict="at-most-once (source)",
    injury="a compressed file is damaged",
    seen="its rows missing, no error",
)
@proof
def test_a_file_that_is_damaged(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    write_lines(tmp_path / "in", "b.txt.gz", LATE)  # not what its name says
    writer = to_folder(spark, tmp_path, ignoreCorruptFiles="true")
    verdict.of(explain(writer), "ignoreCorruptFiles=true")
    yield
    run(writer)
    assert read_by_spark(spark, tmp_path) == once()


@pytest.mark.proves(
    query="files with `fileNameOnly=true`",
    verdict="at-most-once (source)",
    injury="two folders have a file of one name",
    seen="the second one's rows missing, no error",
)
@proof
def test_files_of_one_name(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in" / "day=1", "part.txt", ROWS)
    plan = read_lines(spark, tmp_path / "in", fileNameOnly="true").select("value")
    writer = plan.writeStream.format("text").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "fileNameOnly=true")
    yield
    run(writer)
    write_lines(tmp_path / "in" / "day=2", "part.txt", LATE)
    run(writer)
    assert read_by_spark(spark, tmp_path) == once()


@pytest.mark.proves(
    query="JSON files with `mode=DROPMALFORMED`",
    verdict="at-most-once (source)",
    injury="some lines are no JSON",
    seen="their rows missing, no error",
)
@proof
def test_lines_that_cannot_be_read(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "a.json", [*(f'{{"value": "{row}"}}' for row in ROWS), "{broken", '{"value": 1'])
    plan = spark.readStream.schema("value string").option("mode", "DROPMALFORMED").json(str(tmp_path / "in"))
    writer = plan.writeStream.format("text").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "mode=DROPMALFORMED")
    yield
    run(writer)
    assert read_by_spark(spark, tmp_path) == once()


@pytest.mark.proves(
    query="files with `latestFirst=true` into a windowed count with a watermark",
    verdict="at-most-once (source)",
    injury="a backlog of an old and two new files, one file a batch",
    seen="the old file's rows in no window",
)
@pytest.mark.parametrize("latest_first", ["true", "false"])
@proof
def test_the_newest_file_first(spark: SparkSession, tmp_path: Path, latest_first: str, verdict: Verdict) -> Proof:
    write_lines(tmp_path / "in", "old.json", ['{"at": "2024-01-01T00:00:00"}'] * 5, age_s=60)
    write_lines(tmp_path / "in", "new.json", ['{"at": "2024-01-02T00:00:00"}'] * 7, age_s=30)
    write_lines(tmp_path / "in", "newer.json", ['{"at": "2024-01-03T00:00:00"}'] * 9)
    lines = spark.readStream.schema("at timestamp").options(latestFirst=latest_first, maxFilesPerTrigger=1)
    rows = lines.json(str(tmp_path / "in")).withWatermark("at", "1 minute")
    counts = rows.groupBy(F.window("at", "1 hour")).count().select("count")
    kept = Kept()
    plan = counts.writeStream.outputMode("update").foreachBatch(kept)
    plan = plan.option("checkpointLocation", str(tmp_path / "checkpoint"))
    if latest_first == "true":
        verdict.of(explain(plan, "delta"), "latestFirst=true with a watermark")
    else:
        assert explain(plan, "delta").level.value == "exactly-once"
    yield
    run(plan)
    counted = [count for _, found in kept.batches for (count,) in found]
    assert sorted(counted) == ([7, 9] if latest_first == "true" else [5, 7, 9])

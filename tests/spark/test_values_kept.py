"""Rows that wait in Parquet, and files of the files sink, have the same values in every session."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark.in_process import SPARK
from sparkonce.sinks.files.formats import choose
from sparkonce.sinks.write_ahead.rows import RowsFile
from sparkonce.spark.tables import repeats
from sparkonce.spark.waiting import read_rows, schema_in

pytestmark = SPARK

OLD = {
    "d": pa.array([-719_162, 0], pa.int32()).cast(pa.date32()),
    "t": pa.array([-(10**16), 0]).cast(pa.timestamp("us")),
}
TEXTS = [("0001-01-01", "1653-02-10 06:13:20"), ("1970-01-01", "1970-01-01 00:00:00")]
MODES = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_dates_before_1582_stay_whatever_the_session_reads_old_files_by(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    rows = pa.record_batch(OLD)
    waiting, published = tmp_path / "waiting.parquet", tmp_path / "published.parquet"
    with waiting.open("w+b") as file:
        made = RowsFile(file)
        made.write(rows)
        made.seal()
    with published.open("wb") as file:
        encoder = choose("parquet", None, {}).open(file)
        encoder.write(pa.Table.from_batches([rows]))
        encoder.close()
    session = spark.newSession()
    for name in MODES:
        session.conf.set(name, mode)
    frames = [session.read.parquet(str(one)) for one in (published, waiting)]
    # A file of another hand has no calendar in it, as those of sparkonce 0.1 have none.
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.Table.from_batches([rows]), bare)
    frames.append(read_rows(session, [bare.as_uri()], schema_in(io.BytesIO(bare.read_bytes()))))
    for frame in frames:
        assert [tuple(row) for row in frame.selectExpr("cast(d as string)", "cast(t as string)").collect()] == TEXTS


@pytest.mark.parametrize("most", [1_000, 1], ids=["driver", "spark"])
def test_repeated_keys_that_python_lacks_are_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    monkeypatch.setattr(repeats, "_MOST_IN_DRIVER", most)
    file = tmp_path / "rows.parquet"
    far = pa.array([2_932_897] * 2, pa.int32()).cast(pa.date32())
    odd = pa.array([b"a\xff"] * 2).view(pa.string())
    pq.write_table(pa.table({"day": far, "word": odd}), file)
    content = io.BytesIO(file.read_bytes())
    reason = repeats.repeated(["day", "word"], [content], lambda: read_rows(spark, [file.as_uri()], schema_in(content)))
    assert "2 rows of the batch have the key day=" in reason
    assert "+10000-01-01" in reason

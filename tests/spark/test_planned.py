"""Another driver overwrites a batch's offsets in the checkpoint after the query has planned the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark.in_process import SPARK, Query, stopped
from sparkonce import ExactlyOnce, FilesSink
from sparkonce.errors import CheckpointMismatchError
from sparkonce.spark.checkpoints import planned

pytestmark = SPARK

ROWS = 10


def written(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder, format="parquet").to_table().column("value").to_pylist())


def start(once: ExactlyOnce, spark: SparkSession, until: int) -> None:
    """Runs until this many batches are done, or until the query fails."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 1).load()
    query = once.start(rows.select("value"))
    try:
        while not once.progress() or once.progress()[-1].batch < until:
            assert not query.awaitTermination(1)
    finally:
        stopped(query)


def test_a_batch_that_was_planned_with_other_offsets_is_refused(spark, tmp_path):
    class Overwritten(Query):
        """Sees different offsets for batch 1 than those the query has planned it with."""

        def __call__(self, df: DataFrame, batch: int) -> None:
            if batch == 1:
                file = Path(self.checkpoint, "offsets", "1")
                version, settings, line = file.read_text().splitlines()
                offset = json.loads(line)
                file.write_text("\n".join([version, settings, json.dumps({**offset, "offset": offset["offset"] + 7})]))
                file.with_name(".1.crc").unlink(missing_ok=True)
            super().__call__(df, batch)

    out, checkpoint = tmp_path / "out", str(tmp_path / "checkpoint")
    once = Overwritten(FilesSink(out), checkpoint=checkpoint)
    with pytest.raises(StreamingQueryException, match="has planned batch 1 with the offsets"):
        start(once, spark, 3)
    assert isinstance(once.error, CheckpointMismatchError)
    assert "it resumes with the offsets in the checkpoint" in once.error.next_step
    assert written(out) == list(range(ROWS))
    resumed = ExactlyOnce(FilesSink(out), checkpoint=checkpoint)
    start(resumed, spark, 2)
    found = written(out)
    assert found == list(range(len(found))), "batch 1 has the rows of the file's offsets, and nothing is doubled"
    assert len(found) > 2 * ROWS


def test_what_cannot_be_seen_is_not_compared(spark, tmp_path, monkeypatch, caplog):
    def renamed(*_: object) -> Sequence[str]:
        raise AttributeError("no such method")

    monkeypatch.setattr(planned, "_planned", renamed)
    with caplog.at_level("DEBUG", "sparkonce"):
        start(ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint")), spark, 1)
    assert "cannot be seen, and are not compared: no such method" in caplog.text
    assert written(tmp_path / "out")[: 2 * ROWS] == list(range(2 * ROWS))

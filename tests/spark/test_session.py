"""What a query shares with its session: the checkpoint's folder, and the settings."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conformance import folder_sink
from conformance.folder_sink import FolderSink
from spark.in_process import LIMIT_S, MARKS, travelling
from sparkonce import ExactlyOnce
from sparkonce.spark.work import SparkWork

pytestmark = MARKS

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture(autouse=True, scope="module")
def _folder_sink_travels() -> Iterator[None]:
    with travelling(folder_sink):
        yield


@pytest.mark.parametrize("name", ["a%20b", "a b?c#d"])
def test_a_file_url_leads_spark_and_the_log_to_one_folder(spark: SparkSession, tmp_path: Path, name: str) -> None:
    url = f"file://{tmp_path}/{name}"
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text(json.dumps({"number": 0}))
    rows = spark.readStream.schema("number bigint").json(str(tmp_path / "source"))
    once = ExactlyOnce(FolderSink(tmp_path / "sink"), checkpoint=url, display=False)
    writer = rows.writeStream.foreachBatch(once).option("checkpointLocation", url)
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    once.close()
    assert once.checkpoint == tmp_path / name
    assert {one.name for one in once.checkpoint.iterdir()} >= {"metadata", "offsets", "sparkonce"}
    gc.collect()


def test_how_much_spark_sends_at_a_time_is_set_unless_the_user_has_set_it(spark: SparkSession) -> None:
    session = spark.newSession()
    work = SparkWork(session.range(1), 0, ())
    work._bound_arrow_batches()
    assert session.conf.get(ARROW_BYTES) == "1m"
    session.conf.set(ARROW_BYTES, "3m")
    work._bound_arrow_batches()
    assert session.conf.get(ARROW_BYTES) == "3m"

"""What a query shares with its session: the checkpoint folder, the settings, and the job descriptions of its slots."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.classic import dataframe

from conformance.folder_sink import FolderSink
from spark.in_process import LIMIT_S, MARKS, ended, write_batch
from sparkonce import ExactlyOnce, Guarantee
from sparkonce.errors import ConfigurationError

pytestmark = MARKS


def test_a_file_url_leads_spark_and_the_log_to_one_folder(spark, tmp_path):
    name = "a%20b c?d#e"
    url = f"file://{tmp_path}/{name}"
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text(json.dumps({"number": 0}))
    rows = spark.readStream.schema("number bigint").json(str(tmp_path / "source"))
    once = ExactlyOnce(FolderSink(tmp_path / "sink"), checkpoint=url, display=False)
    writer = rows.writeStream.foreachBatch(once).option("checkpointLocation", url)
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    once.close()
    assert {one.name for one in (tmp_path / name).iterdir()} >= {"metadata", "offsets", "sparkonce"}
    gc.collect()


SLOTS = 3


def test_an_answer_that_is_cut_off_is_no_batch_with_fewer_slots(spark, tmp_path, monkeypatch):
    """PySpark takes the end of a connection for the end of the rows, so the last handles are missing."""

    def visible(root: Path) -> list[int]:
        return sorted(int(line) for file in (root / "committed").iterdir() for line in file.read_text().split())

    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text("".join(f'{{"number": {number}}}\n' for number in range(30)))
    rows = spark.readStream.schema("number bigint").json(str(tmp_path / "source")).repartition(SLOTS)

    def run() -> list[int]:
        once = ExactlyOnce(FolderSink(tmp_path / "sink"), checkpoint=str(tmp_path / "checkpoint"), display=False)
        try:
            ended(once.start(rows, trigger={"availableNow": True}))
        finally:
            once.close()
        return visible(tmp_path / "sink")

    load = dataframe._load_from_socket
    with monkeypatch.context() as patch:
        patch.setattr(dataframe, "_load_from_socket", lambda *given: list(load(*given))[: SLOTS - 1])
        with pytest.raises(StreamingQueryException, match=f"has {SLOTS} slots, but the handles .*folder': {SLOTS - 1}"):
            run()
    assert visible(tmp_path / "sink") == []
    assert run() == list(range(30))


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_slots_are_counted_as_they_are_run_whatever_makes_their_number(own_session, tmp_path, adaptive):
    session = own_session
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    session.conf.set("spark.sql.shuffle.partitions", "4")
    sink = FolderSink(tmp_path)
    numbers = session.range(100, numPartitions=5).withColumnRenamed("id", "number")
    plans = {
        5: numbers,
        2: numbers.coalesce(2),
        1 if adaptive == "true" else 4: numbers.repartition("number"),
        0: session.createDataFrame(session.sparkContext.emptyRDD(), "number bigint"),
    }
    for slots, df in plans.items():
        handles, _ = write_batch(sink, df)
        assert sorted(handle.slot for handle in handles) == list(range(slots))


def test_speculation_beside_an_at_most_once_sink_is_refused(spark, tmp_path):
    speculation, rejects = "spark.speculation", "spark.sql.legacy.setCommandRejectsSparkCoreConfs"
    sink = FolderSink(tmp_path / "sink", guarantee=Guarantee.AT_MOST_ONCE)
    once = ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint"), display=False)
    spark.conf.set(rejects, "false")  # otherwise Spark does not allow changing static settings
    spark.conf.set(speculation, "true")
    try:
        with pytest.raises(ConfigurationError, match=r"spark\.speculation=true, and sinks \['folder'\]"):
            once.start(spark.readStream.format("rate").load().selectExpr("value as number"))
    finally:
        spark.conf.unset(speculation)
        spark.conf.unset(rejects)
    once.close()

"""``sparkonce explain`` on checkpoints and query files of a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typer.testing import CliRunner, Result

from spark.in_process import MARKS, ROWS, Batches, Stream, read_lines, run, write_lines
from sparkonce.cli.main import app
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:03d}" for number in range(20)]


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def told(*arguments: object) -> dict[str, Any]:
    done = command(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parts(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(part["role"], part["name"], part["level"]) for part in told["queries"][0]["parts"]]


def test_a_checkpoint_with_a_log_of_ours(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    stream = Stream(spark, kafka, tmp_path, IDS, partitions=1)
    stream.run()
    found = told(stream.checkpoint, "--reader", "read_committed")
    assert parts(found) == [
        ("source", f"kafka: {stream.source}", "exactly-once"),
        ("engine", "spark", "exactly-once"),
        ("sink", "sparkonce: kafka", "exactly-once"),
        ("reader", "kafka consumer: read_committed", "exactly-once"),
    ]
    assert "failOnDataLoss is not false" in found["queries"][0]["parts"][0]["conditions"]
    asked = told(stream.checkpoint, "--bootstrap", kafka.bootstrap, "--downtime", "1d")
    assert f"{stream.source} keeps records forever (retention.ms=-1)" in asked["queries"][0]["parts"][0]["reasons"]
    assert asked["level"] == "at-least-once"


def test_the_source_of_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    sources = {
        "file: file:": read_lines(spark, tmp_path / "in"),
        "rate": spark.readStream.format("rate").load(),
        "rate-micro-batch": spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load(),
    }
    for number, (name, rows) in enumerate(sources.items()):
        checkpoint = tmp_path / f"{number}"
        run(rows.writeStream.foreachBatch(Batches()).option("checkpointLocation", str(checkpoint)))
        (role, found, _), _, sink, *_ = parts(told(checkpoint))
        assert role == "source"
        assert found.startswith(name)
        assert sink == ("sink", "not known", "at-most-once")
    assert parts(told(checkpoint, "--sink", "delta"))[2] == ("sink", "delta", "exactly-once")


QUERIES = """
    import sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    from sparkonce import ExactlyOnce, KafkaSink, await_end

    spark = SparkSession.builder.getOrCreate()
    lines = spark.readStream.format("text").load(sys.argv[1])
    sink = KafkaSink({"bootstrap.servers": "nowhere:9092"}, topic="totals")
    ExactlyOnce(sink, checkpoint=sys.argv[2]).start(lines, query_name="ours")
    query = lines.writeStream.start(
        sys.argv[3], format="parquet", queryName="files", checkpointLocation=sys.argv[2] + "-files"
    )
    await_end(query)
    Path(sys.argv[2]).mkdir()
"""


def test_a_query_file(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(dedent(QUERIES))
    write_lines(tmp_path / "in", "a.txt", ROWS)
    before = DataStreamWriter.start
    arguments = ["--no-ask", "--", tmp_path / "in", tmp_path / "checkpoint", tmp_path / "out"]
    done = command(file, "--json", *arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [query["level"] for query in found["queries"]] == ["at-least-once", "exactly-once"]
    assert [query["query"] for query in found["queries"]] == ["ours", "files"]
    assert found["queries"][1]["parts"][2]["name"] == f"parquet: {tmp_path / 'out'}"
    assert found["level"] == "at-least-once"
    assert DataStreamWriter.start is before
    assert spark.streams.active == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "job.py"], "nothing was made or started"
    assert "was stopped at its first wait" in found["unseen"], "the last line could start another"
    assert command(file, "--require", "at-least-once", *arguments).exit_code == 1
    file.write_text(file.read_text().rpartition("Path(")[0])
    for level, code in (("exactly-once", 1), ("at-least-once", 0)):
        assert command(file, "--require", level, *arguments).exit_code == code


SEVERAL = """
    from pyspark.sql import SparkSession

    def main():
        spark = SparkSession.builder.getOrCreate()
        rates = spark.readStream.format("rate").load()
        assert spark.streams.active == []
        writer = rates.writeStream.option("checkpointLocation", "/data/first").trigger({trigger})
        query = writer.start("/data/out", "parquet", "append", None, "first")
        print("not JSON")
        {wait}
        second = rates.writeStream.option("checkpointLocation", "/data/second")
        second.toTable("made_up", "delta", "append", "value", "second").awaitTermination()
        spark.stop()

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("trigger", "wait"),
    [
        ("availableNow=True", "query.awaitTermination()"),
        ("once=True", "spark.streams.awaitAnyTermination(60)"),
        ("processingTime='1 second'", "query.processAllAvailable()"),
    ],
)
def test_queries_after_a_wait(spark: SparkSession, tmp_path: Path, trigger: str, wait: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(dedent(SEVERAL.format(trigger=trigger, wait=wait)))
    found, required = told(file), command(file, "--require", "exactly-once")
    seen = [query["query"] for query in found["queries"]]
    if "processingTime" in trigger:
        assert seen == ["first"]
        assert found["unseen"] == f"{file} was stopped at its first wait; queries after it were not seen"
        assert required.exit_code == 1
        assert "queries after it were not seen" in required.stderr
    else:
        assert (seen, found["unseen"], required.exit_code) == (["first", "second"], "", 0)
        assert found["queries"][1]["parts"][2]["name"] == "delta: made_up"


@pytest.mark.parametrize("ask", ["spark.streams.active[0].awaitTermination()", "spark.streams.get(query.id)"])
def test_the_manager_is_asked_for_what_was_started(spark: SparkSession, tmp_path: Path, ask: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(dedent(SEVERAL.format(trigger="availableNow=True", wait=ask)))
    found = told(file)
    assert [query["query"] for query in found["queries"]] == ["first"]
    assert found["unseen"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPARK_REMOTE", "sc://nowhere"), ("SPARK_CONNECT_MODE_ENABLED", "1"), ("SPARK_API_MODE", "connect")],
)
def test_connect_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv(name, value)
    done = command(file)
    assert (done.exit_code, (tmp_path / "ran").exists()) == (2, False)
    assert "Spark Connect" in done.output


@pytest.mark.parametrize(
    "text",
    [
        "SparkSession.builder.remote('sc://nowhere')",
        "SparkSession.builder.config('spark.remote', 'sc://nowhere').getOrCreate()",
        "SparkSession.builder.config('spark.api.mode', 'connect').getOrCreate()",
    ],
)
def test_connect_is_refused_in_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(f"from pyspark.sql import SparkSession\n{text}\n")
    done = command(file)
    assert done.exit_code == 2
    assert "Spark Connect" in done.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("import sys; sys.exit('usage: job.py FOLDER')", "usage: job.py FOLDER"),
        ("print('nothing')", "starts no streaming query"),
    ],
)
def test_a_query_file_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(text)
    done = command(file)
    assert done.exit_code == 2
    assert says in done.output
    assert "Next:" in done.output

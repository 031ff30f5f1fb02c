"""The analyser's verdicts on plans, triggers and checkpoints, each proved by an injury."""

from __future__ import annotations

import datetime
import random
import socket
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import IntegerType, StringType

from eventually import eventually
from spark.harness import new_name
from spark.in_process import SPARK, CrashError, ended
from spark.injuries import (
    ROWS,
    Kept,
    Proof,
    Verdict,
    forget,
    forget_commit,
    proof,
    read_lines,
    replayed,
    run,
    twice,
    write_lines,
)
from sparkonce import ExactlyOnce, KafkaSink, explain
from sparkonce.analysis.findings import Role
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import create_topic, read_committed

pytestmark = SPARK

# Workers do not have the tests on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    return read_lines(spark, tmp_path / "in")


def dice() -> str:
    return str(random.random())


def clock() -> str:
    return datetime.datetime.now(tz=datetime.timezone.utc).isoformat()


def length(text: str) -> int:
    return len(text)


def hidden() -> str:
    return str(uuid.UUID(bytes=random.randbytes(16)))


# Without useArrow, PySpark would ask the JVM that it used last, which may have ended, while this module is imported.
rolled = F.udf(lambda _: dice(), StringType(), useArrow=False)
timed = F.udf(lambda _: clock(), StringType(), useArrow=False)
measured = F.udf(length, IntegerType(), useArrow=False)
declared = F.udf(lambda _: hidden(), StringType(), useArrow=False).asNondeterministic()


def changing(values: Callable[[], Column], name: str, query: str):  # type: ignore[no-untyped-def]
    proof = pytest.mark.proves(
        query=f"files with {query} → foreachBatch",
        verdict="at-least-once (engine, sink)",
        injury="driver dies after the function has written",
        seen="rows again, with other values",
    )
    return pytest.param(values, name, marks=proof)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        changing(lambda: F.rand(), "rand", "`rand()`"),
        changing(lambda: F.rand(42), "rand", "`rand(42)`, a seed of one's own"),
        changing(lambda: F.expr("uuid()"), "uuid", "`uuid()`"),
        changing(lambda: F.shuffle(F.array(*[F.lit(each) for each in range(30)])), "shuffle", "`shuffle()`"),
        changing(lambda: F.expr("now()"), "now", "`now()`"),
        changing(lambda: rolled("value"), "random", "a Python UDF that draws randomness"),
        changing(lambda: timed("value"), "now", "a Python UDF that reads the clock"),
        changing(lambda: declared("value"), "is declared not deterministic", "a UDF declared `asNondeterministic()`"),
    ],
)
@proof
def test_values_that_a_replay_does_not_give_again(
    lines: DataFrame, tmp_path: Path, verdict: Verdict, values: Callable[[], Column], named: str
) -> Proof:
    plan = lines.select("value", values().alias("drawn"))
    explanation = explain(plan, Kept(), ask=False)
    verdict.of(explanation, named)
    assert any(named in reason for reason in explanation.part(Role.ENGINE).reasons)
    yield
    first, second = replayed(plan, tmp_path)
    assert [row[0] for row in first] == [row[0] for row in second] == ROWS
    assert first != second


def same(values: Callable[[], Column], says: str, query: str):  # type: ignore[no-untyped-def]
    proof = pytest.mark.proves(
        query=f"files with {query} → foreachBatch",
        verdict="at-least-once (sink)",
        injury="driver dies after the function has written",
        seen="rows again, with the same values",
    )
    return pytest.param(values, says, marks=proof)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        same(lambda: F.current_timestamp(), "in the right place", "`current_timestamp()` in the plan"),
        same(lambda: F.localtimestamp(), "in the right place", "`localtimestamp()` in the plan"),
        same(lambda: measured("value"), "length gives the same rows", "a Python UDF that is stable"),
        same(lambda: F.input_file_name(), "", "`input_file_name()`"),
    ],
)
@proof
def test_values_that_a_replay_gives_again(
    lines: DataFrame, tmp_path: Path, verdict: Verdict, values: Callable[[], Column], says: str
) -> Proof:
    plan = lines.select("value", values().alias("made"))
    explanation = explain(plan, Kept(), ask=False)
    verdict.of(explanation, "foreachBatch")
    engine = explanation.part(Role.ENGINE)
    assert any(says in text for text in (*engine.conditions, *engine.notes))
    yield
    first, second = replayed(plan, tmp_path)
    assert first == second


@pytest.mark.proves(
    query="files → foreachBatch whose function calls `current_timestamp()`",
    verdict="at-least-once (engine, sink)",
    injury="driver dies after the function has written",
    seen="rows again, with another time",
)
@proof
def test_the_clock_in_the_wrong_place(lines: DataFrame, tmp_path: Path, verdict: Verdict) -> Proof:
    kept = Kept()

    def write(rows: DataFrame, batch: int) -> None:
        kept(rows.withColumn("at", F.current_timestamp()), batch)

    writer = lines.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "wrong place")
    yield
    run(writer)
    forget(tmp_path / "checkpoint" / "commits")
    run(writer)
    first, second = kept.runs()
    assert first != second
    assert [row[0] for row in first] == [row[0] for row in second]


@pytest.mark.proves(
    query="files with `spark_partition_id()` → foreachBatch",
    verdict="at-least-once (engine, sink)",
    injury="driver dies, and the replay has rows spread over another number of tasks",
    seen="rows again, with other values",
)
@proof
def test_values_that_depend_on_the_tasks(lines: DataFrame, tmp_path: Path, verdict: Verdict) -> Proof:
    kept = Kept()

    def writer(slots: int):  # type: ignore[no-untyped-def]
        plan = lines.repartition(slots, "value").withColumn("id", F.spark_partition_id())
        return plan.writeStream.foreachBatch(kept).option("checkpointLocation", str(tmp_path / "checkpoint"))

    verdict.of(explain(writer(4)), "spread over tasks")
    yield
    run(writer(4))
    forget(tmp_path / "checkpoint" / "commits")
    run(writer(2))
    first, second = kept.runs()
    assert [row[0] for row in first] == [row[0] for row in second]
    assert first != second


@pytest.mark.proves(
    query="files joined with a static table → foreachBatch",
    verdict="at-least-once (engine, sink)",
    injury="the table changes before a replay",
    seen="rows again, with other values",
)
@proof
def test_a_static_table_that_changes(spark: SparkSession, lines: DataFrame, tmp_path: Path, verdict: Verdict) -> Proof:
    names = tmp_path / "names"
    write_lines(names, "a.csv", ["row-000,old"])

    def plan() -> DataFrame:
        return lines.join(spark.read.schema("value string, name string").csv(str(names)), "value")

    kept = Kept()
    checkpoint = str(tmp_path / "checkpoint")
    writer = plan().writeStream.foreachBatch(kept).option("checkpointLocation", checkpoint)
    verdict.of(explain(writer), "joined as it is")
    yield
    run(writer)
    forget(tmp_path / "checkpoint" / "commits")
    write_lines(names, "a.csv", ["row-000,new"])
    run(plan().writeStream.foreachBatch(kept).option("checkpointLocation", checkpoint))
    assert kept.runs() == [[("row-000", "old")], [("row-000", "new")]]


@pytest.mark.proves(
    query="files → foreachBatch, no checkpointLocation",
    verdict="at-least-once (engine, sink)",
    injury="the query is stopped in order and started again",
    seen="every row doubled",
)
@proof
def test_no_checkpoint(lines: DataFrame, verdict: Verdict) -> Proof:
    kept = Kept()
    writer = lines.writeStream.foreachBatch(kept)
    verdict.of(explain(writer), "no checkpointLocation")
    yield
    run(writer)
    run(writer)
    assert kept.values() == twice()


@pytest.mark.proves(
    query="files → counts by key → foreachBatch",
    verdict="at-least-once (sink)",
    injury="driver dies after the state is stored and the function has written, before Spark's commit",
    seen="the counts of the replay are the same: nothing counted twice",
)
@proof
def test_state_is_not_counted_twice(lines: DataFrame, tmp_path: Path, verdict: Verdict) -> Proof:
    counts = lines.groupBy(F.substring("value", 1, 6).alias("start")).count()
    kept = Kept()
    writer = counts.writeStream.outputMode("update").foreachBatch(kept)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "again for a batch that failed")
    yield
    run(writer)
    forget(tmp_path / "checkpoint" / "commits")
    run(writer)
    first, second = kept.runs()
    assert first == second
    assert sum(count for _, count in second) == len(ROWS)


@pytest.mark.kafka
@pytest.mark.proves(
    query="files → sums by a random key → `ExactlyOnce(KafkaSink)`",
    verdict="at-least-once (engine)",
    injury="driver dies after the decision, before Spark's commit; then more rows come",
    seen="the newest sums add up to another number than the rows",
)
@proof
def test_state_of_random_keys(
    spark: SparkSession, lines: DataFrame, kafka: Cluster, tmp_path: Path, verdict: Verdict
) -> Proof:
    salt = F.floor(F.rand() * len(ROWS)).cast("string")
    # Powers of two: no two sets of rows have the same sum.
    weighed = lines.select(salt.alias("key"), F.expr("shiftleft(1L, int(right(value, 3)))").alias("weight"))
    sums = weighed.groupBy("key").agg(F.sum("weight").cast("string").alias("value"))
    topic, folder = new_name("sums"), tmp_path / "checkpoint"
    create_topic(kafka.bootstrap, topic, 1)
    sink = KafkaSink({"bootstrap.servers": kafka.bootstrap}, topic=topic)

    def newest() -> int:
        ours = ExactlyOnce(sink, checkpoint=str(folder), display=False)
        ended(ours.start(sums, output_mode="update", trigger={"availableNow": True}))
        written = {record.key: int(record.value or b"0") for record in read_committed(kafka.bootstrap, topic)}
        return sum(written.values())

    verdict.of(
        explain(sums, ExactlyOnce(sink, checkpoint="/data/checkpoint"), reader="read_committed"),
        "recomputed after a kill",
    )
    whole = 2 ** len(ROWS) - 1
    yield
    newest()
    write_lines(tmp_path / "in", "b.txt", ROWS)
    assert newest() == 2 * whole
    forget_commit(folder)
    write_lines(tmp_path / "in", "c.txt", ROWS)
    assert newest() != 3 * whole


@pytest.mark.proves(
    query="rate-micro-batch → foreachBatch",
    verdict="at-least-once (sink)",
    injury="driver dies after the function has written",
    seen="the source gives the same rows again",
)
@proof
def test_rate_replays(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    plan = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    explanation = explain(plan, Kept(), ask=False)
    verdict.of(explanation, "foreachBatch")
    assert "tests only" in explanation.part(Role.SOURCE).notes[0]
    yield
    first, second = replayed(plan, tmp_path)
    assert first == second
    assert len(first) == 20


@pytest.mark.proves(
    query="files → memory",
    verdict="at-most-once (sink)",
    injury="the query is stopped in order and started again",
    seen="what it held is gone",
)
@proof
def test_a_table_in_memory(spark: SparkSession, lines: DataFrame, tmp_path: Path, verdict: Verdict) -> Proof:
    counts = lines.groupBy("value").count()
    writer = counts.writeStream.format("memory").queryName("held").outputMode("complete")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "driver's memory")
    yield
    run(writer)
    assert spark.table("held").count() == len(ROWS)
    run(writer)
    assert spark.table("held").count() == 0


@pytest.mark.proves(
    query="files → foreach",
    verdict="at-least-once (sink)",
    injury="driver dies after the rows are written, before Spark's commit",
    seen="every row doubled",
)
@proof
def test_foreach(lines: DataFrame, tmp_path: Path, verdict: Verdict) -> Proof:
    target = str(tmp_path / "target")

    def append(row) -> None:  # type: ignore[no-untyped-def]
        with Path(target).open("a") as file:
            file.write(f"{row[0]}\n")

    writer = lines.coalesce(1).writeStream.foreach(append)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    verdict.of(explain(writer), "row by row")
    yield
    run(writer)
    assert sorted(Path(target).read_text().split()) == ROWS
    forget(tmp_path / "checkpoint" / "commits")
    run(writer)
    assert Counter(Path(target).read_text().split()) == twice()


@pytest.mark.proves(
    query="socket → foreachBatch",
    verdict="at-most-once (source)",
    injury="driver dies in the batch that takes the rows in",
    seen="its rows missing, and as many of those that come later; no error",
)
@proof
def test_a_socket(spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    kept, crash = Kept(), [True]

    def write(rows: DataFrame, batch: int) -> None:
        if crash and rows.count():
            crash.clear()
            raise CrashError
        kept(rows, batch)

    later = [f"later-{number:03d}" for number in range(len(ROWS) + 20)]
    with Sender(ROWS, later) as sender:
        plan = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", sender.port).load()
        writer = plan.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        verdict.of(explain(writer), "cannot be read again")
        yield
        with pytest.raises(StreamingQueryException):
            ended(writer.start())
        query = writer.start()
        eventually(lambda: sum(kept.values().values()) >= 20 or query.exception(), "what comes later is read")
        query.stop()
    assert query.exception() is None
    # The source counts from 0 again, so that it passes over as many of the new rows, too.
    assert set(kept.values()) == set(later[len(ROWS) :])


class Sender:
    """Sends lines to whoever connects: the first gets the first ones, and so on."""

    def __init__(self, *lines: list[str]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._lines = lines
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Sender:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes the thread that accepts; close alone does not, and its number is soon another file's.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        for one in (self._server, *self._connections):
            one.close()

    def _serve(self) -> None:
        for lines in self._lines:
            try:
                connection, _ = self._server.accept()
            except OSError:  # nobody came: only the verdict was asked for
                return
            self._connections.append(connection)
            connection.sendall("".join(f"{line}\n" for line in lines).encode())

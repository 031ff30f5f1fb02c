"""The query under verification reads rows from Kafka, and writes the rows and sums by key and window to all systems.

The query runs in a separate process (``python -m sparkonce_lab.query``). The process reports events as lines of JSON on
standard output. From standard input, the process reads its `QueryConfig` and then commands, also as lines of JSON.
(Arguments would be visible to anyone, and the settings may include passwords.) When standard input is closed, the
process stops, so it cannot outlive the process that started it. There are two commands: ``{"hold": "DECIDING"}`` holds
the query the next time that this phase begins, and ``{"go": true}`` releases it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.packages import SCALA
from sparkonce.protocol.state import Phase
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce_lab.clock import adapt_python, let_java_start, only_the_drivers
from sparkonce_lab.rig.kafka.jars import spark_jars_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sparkonce.sink import TwoPhaseCommitSink

    View = Callable[[DataFrame], DataFrame]
    Start = Callable[[SparkSession, "QueryConfig", "Gate", threading.Event], StreamingQuery]

_POLL_S = 0.1
_HOLD_S = 300.0
_PROGRESS_S = 10.0
_STOP_WITHIN_S = 120.0
WATERMARK_DELAY = "2 seconds"
LOCAL = "local[2,4]"
"""A master that retries a failed task up to four times, as on a cluster. ``local[2]`` has no retries."""
FAST_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:-UsePerfData"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConfig:
    """The configuration of one start of the query, as plain values.

    Attributes:
        source: librdkafka's connection settings for the source.
        topic: The source topic.
        sinks: For each system by name, the arguments of `System.build`.
        checkpoint: The query's folder, a path or a URL.
        temporary: The folder for files that Spark leaves behind if it is killed.
        jars: The value of ``spark.jars``.
        window_ms: The width of the windows.
        refuse_every: Of this many rows per key, Kafka rejects one; 0 if it rejects none.
        dead_letters: The folder for rejected rows; empty if there are none.
        conf: Spark's settings for the checkpoint's store, and for systems.
        trigger: ``processingTime``, or empty for ``availableNow``.
        master: Spark's master.
        slots: The number of slots of each system's sink; 0 for as many as the plan has.
        hold: The name of the phase at which the query is held from the beginning, if any.
        java_flags: Flags for the driver's JVM.
        plain_to: A folder to which Spark itself writes Parquet files, instead of writing to all sinks.
    """

    source: Mapping[str, Any]
    topic: str
    sinks: Mapping[str, Mapping[str, Any]]
    checkpoint: str
    temporary: str
    jars: tuple[str, ...]
    window_ms: int
    refuse_every: int = 0
    dead_letters: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    trigger: str = "500 milliseconds"
    master: str = LOCAL
    slots: int = 0
    hold: str = ""
    java_flags: str = FAST_START
    plain_to: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> QueryConfig:
        return cls(**json.loads(text))


def source_rows(spark: SparkSession, config: QueryConfig) -> DataFrame:
    """Reads the workload: key, number, amount, and the event time as ``at``."""
    from pyspark.sql import functions as F

    from sparkonce import read_kafka

    records = read_kafka(spark, config.source, topics=config.topic)
    fields = F.split(F.col("value").cast("string"), ",")
    return records.select(
        F.col("key").cast("string").cast("bigint").alias("key"),
        fields[0].cast("bigint").alias("number"),
        fields[1].cast("bigint").alias("amount"),
        F.timestamp_millis(fields[2].cast("bigint")).alias("at"),
    )


def sums(rows: DataFrame, config: QueryConfig) -> DataFrame:
    """Sums each key's amounts in each window. Emits a sum once, after the watermark has passed its window."""
    from pyspark.sql import functions as F

    return (
        rows.withWatermark("at", WATERMARK_DELAY)
        .groupBy(F.window("at", f"{config.window_ms} milliseconds"), "key")
        .agg(F.sum("amount").alias("amount"), F.count("*").alias("rows"))
        .select(F.lit("sum").alias("kind"), "key", F.unix_millis("window.start").alias("number"), "amount", "rows")
    )


def plan(spark: SparkSession, config: QueryConfig) -> DataFrame:
    """Emits each row, and the sums of each window."""
    from pyspark.sql import functions as F

    rows = source_rows(spark, config)
    single = rows.where("key >= 0").select(
        F.lit("row").alias("kind"), "key", "number", "amount", F.lit(1).cast("bigint").alias("rows")
    )
    return single.union(sums(rows, config))


def for_kafka(batch: DataFrame, refuse_every: int = 0) -> DataFrame:
    """Builds each row's key and value. Some rows also get a timestamp that Kafka rejects."""
    from pyspark.sql import functions as F

    value = F.concat_ws(",", *[F.col(name).cast("string") for name in batch.columns])
    columns = [F.col("key").cast("string").alias("key"), value.alias("value")]
    if refuse_every:
        refused = (F.col("kind") == "row") & (F.col("number") % refuse_every == 0)
        columns.append(F.when(refused, F.timestamp_millis(F.lit(0))).alias("timestamp"))
    return batch.select(*columns)


def sinks_of(config: QueryConfig) -> dict[TwoPhaseCommitSink, View]:
    """Creates every system's sink, with the view that assigns its slots.

    All sinks but Kafka's share a view, and therefore a Spark job.
    """

    def view(kafka: bool) -> View:
        def of(batch: DataFrame) -> DataFrame:
            shown = for_kafka(batch, config.refuse_every) if kafka else batch
            # Do not use coalesce, which groups partitions by the executors that currently hold them: to heal a partly
            # lost batch, sparkonce needs each row in the same slot as before.
            return shown.repartition(config.slots, "key") if config.slots else shown

        return of

    from sparkonce_lab.systems.names import SYSTEMS

    records, rows = view(True), view(False)
    found = {}
    for name, settings in config.sinks.items():
        sink = SYSTEMS[name].build(settings)
        found[sink] = records if name == "kafka" else rows
    return found


class Gate:
    """Holds the query at the beginning of a phase until it is released."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self._go = threading.Event()

    def hold(self, phase: str) -> None:
        self._go.clear()
        self._phase = phase

    def go(self) -> None:
        self._phase = ""
        self._go.set()

    def holds(self, phase: str) -> bool:
        return phase == self._phase

    def pass_by(self, phase: str, batch: int) -> None:
        if self.holds(phase):
            tell("held", phase=phase, batch=batch)
            self._go.wait(_HOLD_S)


def main(start: Start) -> int:
    """Runs a query until standard input is closed. Returns 0 unless it failed."""
    adapt_python()
    lines = _lines()
    config = QueryConfig.of_json(next(lines))
    gate, stopping = Gate(config.hold), threading.Event()
    threading.Thread(target=_listen, args=(lines, gate, stopping), daemon=True).start()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    ours = logging.getLogger("sparkonce")
    ours.setLevel(logging.INFO)
    ours.addHandler(_TellingHandler(level=logging.WARNING))
    spark = session(config)
    query = start(spark, config, gate, stopping)
    tell("started", run=str(query.runId))
    while query.isActive and not stopping.wait(_POLL_S):
        pass
    error = query.exception()
    if error is not None:
        tell("failed", error=type(error).__name__, message=str(error)[:2000])
        return 1
    _tell_state(spark, query, config.checkpoint)
    query.stop()
    spark.stop()
    tell("stopped")
    return 0


def _tell_state(spark: SparkSession, query: StreamingQuery, checkpoint: str) -> None:
    """Reports the number of state rows after the newest batch. Spark publishes it shortly after the batch finishes."""
    from sparkonce.spark.checkpoints.opening import open_checkpoint

    newest = SparkCheckpoint(open_checkpoint(spark, checkpoint)).finished()
    give_up_at = time.monotonic() + _PROGRESS_S
    while time.monotonic() < give_up_at:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= newest:
            tell("state", rows=sum(each["numRowsTotal"] for each in progress["stateOperators"]))
            return
        time.sleep(_POLL_S)


def start(spark: SparkSession, config: QueryConfig, gate: Gate, stopping: threading.Event) -> StreamingQuery:
    """Starts the query. Reports errors unless ``stopping`` is set, since a stop interrupts the query's batch."""
    rows = plan(spark, config)
    if config.plain_to:
        return writing(rows, config).format("parquet").option("path", config.plain_to).start()
    return writing(rows, config).foreachBatch(run_batches(sinks_of(config), config, gate, stopping)).start()


def writing(rows: DataFrame, config: QueryConfig) -> DataStreamWriter:
    """Returns Spark's writer for the query, with its checkpoint and its trigger."""
    trigger: dict[str, Any] = {"processingTime": config.trigger} if config.trigger else {"availableNow": True}
    return rows.writeStream.outputMode("append").option("checkpointLocation", config.checkpoint).trigger(**trigger)


def run_batches(
    sinks: Mapping[TwoPhaseCommitSink, View], config: QueryConfig, gate: Gate, stopping: threading.Event
) -> Callable[[DataFrame, int], None]:
    """Returns the function for ``foreachBatch``, which reports each phase and waits at the gate."""
    from sparkonce import ExactlyOnce
    from sparkonce_lab.systems.files import MOST, dead_letters_sink

    def listen(phase: Phase, batch: int) -> None:
        if phase is Phase.IDLE:
            done = exactly_once.progress()[-1]
            tell(
                "batch",
                batch=batch,
                rows=done.rows,
                transactions=done.transactions,
                recovered=done.recovered,
                healed=done.healed,
                seconds=done.seconds,
            )
        tell("phase", phase=phase.name, batch=batch)
        gate.pass_by(phase.name, batch)

    kafka = next((sink for sink in sinks if sink.name == "kafka"), None)
    dead_letters = {kafka: dead_letters_sink(config.dead_letters)} if config.dead_letters and kafka else None
    exactly_once = ExactlyOnce(
        sinks,
        checkpoint=config.checkpoint,
        listener=listen,
        display=False,
        outage_patience_s=60.0,
        sweep_every_s=2.0,
        dead_letters=dead_letters,
        max_refused=MOST,
    )

    def run_batch(rows: DataFrame, batch: int) -> None:
        from pyspark.sql import functions as F

        try:
            exactly_once(rows.withColumn("batch", F.lit(batch).cast("bigint")), batch)
        except Exception as error:
            # Report the original error here, because Spark wraps it in another error.
            if not stopping.is_set():
                tell("stop", error=type(error).__name__, message=str(error)[:2000])
            raise

    return run_batch


def session(config: QueryConfig) -> SparkSession:
    """Starts Spark on the loopback interface, with its temporary files in the configured folder."""
    from pyspark.sql import SparkSession

    if config.master.startswith("local-cluster"):
        # Start executors as in a Spark installation. By default, Spark would look for the folders of a source build.
        os.environ.update(SPARK_HOME=str(spark_jars_folder().parent), SPARK_SCALA_VERSION=SCALA)
    let_java_start()
    java = f"-Djava.io.tmpdir={config.temporary} {config.java_flags}"
    spark = (
        SparkSession.builder.config(map=dict(config.conf))
        .config("spark.hadoop.fs.defaultFS", "file:///")  # A path is on this machine.
        .master(config.master)
        .appName("sparkonce verify")
        .config("spark.jars", ",".join(config.jars))
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.extraJavaOptions", f"-Djava.io.tmpdir={config.temporary} {FAST_START}")
        .config("spark.local.dir", config.temporary)
        .config("spark.sql.shuffle.partitions", "3")
        .config(map=dict(only_the_drivers()))
        .config("spark.ui.enabled", "false")
        # Collect garbage often, and limit the tasks that Spark retains for its UI (100,000 by default, which accumulate
        # for hours). After an hour, the JVM's memory then shows how much the query really needs.
        .config("spark.cleaner.periodicGC.interval", "2min")
        .config("spark.ui.retainedJobs", "100")
        .config("spark.ui.retainedStages", "100")
        .config("spark.ui.retainedTasks", "1000")
        .config("spark.sql.ui.retainedExecutions", "100")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    return spark


def tell(event: str, **fields: Any) -> None:
    """Writes one line to the process that started this one."""
    # Write the whole line at once, because the JVM uses the same standard output.
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


def _lines() -> Iterator[str]:
    """Yields the lines of standard input."""
    # Do not read through sys.stdin: the reading thread would hold its lock when the interpreter exits.
    rest = b""
    while piece := os.read(0, 65_536):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)


def _listen(lines: Iterator[str], gate: Gate, stopping: threading.Event) -> None:
    for line in lines:
        command = json.loads(line)
        if "hold" in command:
            gate.hold(command["hold"])
        if "go" in command:
            gate.go()
    # If a server is gone as well, a normal stop may take forever, and nothing waits for it.
    end = threading.Timer(_STOP_WITHIN_S, os._exit, (1,))
    end.daemon = True
    end.start()
    gate.go()
    stopping.set()


class _TellingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("log", level=record.levelname, message=record.getMessage()[:1000])


if __name__ == "__main__":
    sys.exit(main(start))

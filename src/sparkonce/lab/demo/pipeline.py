"""The query: orders from Kafka, summed by customer and window, to Kafka.

A process of its own (``python -m sparkonce.lab.demo.pipeline``). It reports what it does in lines of JSON on standard
output, and stops when its standard input is closed, so it cannot outlive the process that started it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.lab.demo.crash import Crash, CrashingSink, CrashPoint
from sparkonce.lab.demo.orders import PARTITIONS, WATERMARK_DELAY_MS, WINDOW_MS
from sparkonce.protocol.state import Phase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "1 second"
_POLL_S = 0.1
_STOP_S = 25.0
_ORDER = "customer string, amount bigint, event_ms bigint"


def totals(spark: SparkSession, bootstrap: str, source: str) -> DataFrame:
    """Each customer's orders, summed by window; a row appears once, when the watermark has passed its window."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    orders = records.select(F.from_json(F.col("value").cast("string"), _ORDER).alias("order")).select(
        "order.customer", "order.amount", F.timestamp_millis("order.event_ms").alias("at")
    )
    sums = (
        orders.withWatermark("at", f"{WATERMARK_DELAY_MS} milliseconds")
        .groupBy(F.window("at", f"{WINDOW_MS} milliseconds"), "customer")
        .agg(F.sum("amount").alias("amount"), F.count("*").alias("orders"))
    )
    value = F.struct(
        F.unix_millis("window.start").alias("window_start_ms"),
        F.unix_millis("window.end").alias("window_end_ms"),
        "customer",
        "amount",
        "orders",
    )
    return sums.select(F.col("customer").alias("key"), F.to_json(value).alias("value"))


def main(arguments: Sequence[str]) -> int:
    """Runs the query until standard input is closed. Returns 0 unless the query failed."""
    given = _parse(arguments)
    stopping = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopping,), daemon=True).start()
    _tell_log()
    spark = _session(given)
    rows = totals(spark, given.bootstrap, given.source)
    start = _start_sparkonce if given.sink == "sparkonce" else _start_spark
    query = start(rows, given)
    _tell("started", run=str(query.runId))
    while query.isActive and not stopping.wait(_POLL_S):
        pass
    error = query.exception()
    if error is not None:
        _tell("failed", error=str(error))
        return 1
    query.stop()
    spark.stop()
    _tell("stopped")
    return 0


def _start_sparkonce(rows: DataFrame, given: argparse.Namespace) -> StreamingQuery:
    from sparkonce import ExactlyOnce

    sink = CrashingSink({"bootstrap.servers": given.bootstrap}, topic=given.target)
    point = given.crash
    crash = point and Crash(
        point,
        sink,
        open_transactions=lambda: _open_transactions(given.bootstrap),
        announce=lambda batch: _tell("crash", point=point.value, batch=batch),
    )

    def listen(phase: Phase, batch: int) -> None:
        _tell("phase", phase=phase.value, batch=batch)
        if phase is Phase.IDLE:
            done = exactly_once.progress()[-1]
            _tell("batch", batch=batch, rows=sum(done.rows.values()), recovered=done.recovered)
        if crash:
            crash(phase, batch)

    exactly_once = ExactlyOnce(sink, checkpoint=str(given.checkpoint), listener=listen, display=False)
    return exactly_once.start(rows, trigger={"processingTime": TRIGGER}, query_name="demo")


def _start_spark(rows: DataFrame, given: argparse.Namespace) -> StreamingQuery:
    return (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("topic", given.target)
        .option("checkpointLocation", str(given.checkpoint))
        .outputMode("append")
        .trigger(processingTime=TRIGGER)
        .queryName("demo")
        .start()
    )


def _session(given: argparse.Namespace) -> SparkSession:
    from pyspark.sql import SparkSession

    # A killed JVM leaves its temporary files behind: they belong into the demo's own folder.
    java = f"-Djava.io.tmpdir={given.temporary} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("sparkonce demo")
        .config("spark.jars", ",".join(given.jars))
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(given.temporary))
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _open_transactions(bootstrap: str) -> int:
    from sparkonce.testing.kafka import list_transactions

    return len(list_transactions(bootstrap, states=["Ongoing"]))


def _wait_for_end_of_input(stopping: threading.Event) -> None:
    # Not sys.stdin.read(): at the interpreter's end that would still hold the lock of the buffer.
    while os.read(0, 4096):
        pass
    # Where the broker is gone too, stopping in order may take for ever, and nobody waits for it any more.
    end = threading.Timer(_STOP_S, os._exit, (1,))
    end.daemon = True
    end.start()
    stopping.set()


def _tell(event: str, **fields: Any) -> None:
    # One write for a line: the JVM has the same standard output.
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


class _TellingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _tell("log", level=record.levelname, message=record.getMessage())


def _tell_log() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    ours = logging.getLogger("sparkonce")
    ours.setLevel(logging.INFO)
    ours.addHandler(_TellingHandler())


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparkonce.lab.demo.pipeline", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--temporary", required=True, type=Path)
    parser.add_argument("--jars", required=True, type=lambda text: text.split(","))
    parser.add_argument("--sink", required=True, choices=["sparkonce", "spark"])
    parser.add_argument("--crash", type=CrashPoint)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

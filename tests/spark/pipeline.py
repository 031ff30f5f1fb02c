"""The query under test: a process of its own that reads Kafka and writes Kafka.

``python -m spark.pipeline CONFIG…``, where CONFIG is the JSON of a `Config`. It visits the test's desk before each
phase of each batch and when it has ended, and ends by itself when all of its source is written. Several queries run in
one Spark, each with a desk of its own.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sparkonce.protocol.state import Phase

PHASE = "phase"
ENDED = "ended"
REFUSED = "refused"
STARTED = "started"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One start of the query. Of several that start together, the first one's settings of the process count.

    Attributes:
        bootstrap: ``bootstrap.servers``.
        sources: The topics read.
        target: The topic written to.
        checkpoint: The query's folder.
        temporary: For everything that Spark leaves behind when it is killed.
        jars: For ``spark.jars``.
        jvm_flags: Of the driver's JVM.
        desk: The address of the test's desk.
        plan: ``module:function`` of the plan, see `spark.plans`.
        output_mode: Spark's.
        master: Spark's master.
        slots: ``spark.sql.shuffle.partitions``, which a stateful query keeps from its first start on.
        rows_per_batch: ``maxOffsetsPerTrigger``.
        keep_batches: How many batches the log keeps.
        tidy_every_batches: How many more come before it is tidied.
        points: Where else the sink visits the desk, see `spark.faults`.
        unit: ``module:function`` of what makes all sinks of the query of the config and the Kafka sink.
        beside: What it needs to know, such as where their servers are.
        settings: More of librdkafka's settings.
        sink: More of the sink's arguments.
        query: More of the arguments of `ExactlyOnce`.
        spark: More of Spark's settings.
        sql: More of Spark's SQL settings, for this query alone.
    """

    bootstrap: str
    sources: tuple[str, ...]
    target: str
    checkpoint: str
    temporary: str
    jars: tuple[str, ...]
    jvm_flags: str
    desk: str
    plan: str = "spark.plans:distinct"
    output_mode: str = "append"
    master: str = "local[2]"
    slots: int = 4
    rows_per_batch: int = 5000
    keep_batches: int = 100
    tidy_every_batches: int = 2
    points: tuple[str, ...] = ()
    unit: str = ""
    beside: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)
    sql: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Config:
        return cls(**json.loads(text))


def tagged(rows: DataFrame, batch: int) -> DataFrame:
    """Says in each row's value of which batch it is, so that a reader can ask the log whether that is decided."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    if "value" not in rows.columns:
        return rows.withColumn("value", F.lit(str(batch)))
    kind = dict(rows.dtypes)["value"]
    return rows.withColumn("value", F.concat(F.lit(f"{batch} ").cast(kind), F.coalesce("value", F.lit("").cast(kind))))


def main(texts: Sequence[str]) -> int:
    from sparkonce.protocol import coordinator

    configs = [Config.of_json(text) for text in texts]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.DEBUG)
    # What is below is cleaned up each second batch, not each twentieth: a kill is to fall into that too.
    coordinator.KEEP_BATCHES, coordinator.TIDY_EVERY_BATCHES = configs[0].keep_batches, configs[0].tidy_every_batches
    spark = session(configs[0])
    queries = [start(spark, config) for config in configs]
    with ThreadPoolExecutor(len(configs)) as pool:
        return max(pool.map(attend, queries, configs))


def start(spark: SparkSession, config: Config) -> StreamingQuery:
    """Starts a query, with SQL settings of its own, and waits until it is at its first batch.

    Spark gives a Python process that it starts for `transformWithStateInPandas` ten seconds, which is little while
    other queries start, too.
    """
    from spark.desk import visit
    from spark.faults import WatchedSink
    from sparkonce import ExactlyOnce, Guarantee
    from sparkonce.errors import SparkonceError

    begun = threading.Event()

    def listen(phase: Phase, batch: int) -> None:
        begun.set()
        visit(config.desk, PHASE, phase=phase.name, batch=batch)

    more = dict(config.sink)
    if "guarantee" in more:
        more["guarantee"] = Guarantee[more["guarantee"]]
    sink = WatchedSink(
        {"bootstrap.servers": config.bootstrap, **config.settings},
        desk=config.desk,
        points=config.points,
        topic=config.target,
        **more,
    )
    sinks = named(config.unit)(config, sink) if config.unit else sink
    exactly_once = ExactlyOnce(sinks, checkpoint=config.checkpoint, listener=listen, display=False, **config.query)

    def run_batch(rows: DataFrame, batch: int) -> None:
        try:
            exactly_once(tagged(rows, batch), batch)
        except SparkonceError as error:
            details = {name: repr(value) for name, value in error.details.items()}
            visit(config.desk, REFUSED, kind=type(error).__name__, message=str(error), batch=batch, details=details)
            raise

    own = spark.newSession()
    for name, value in {**sql_settings(config), **config.sql}.items():
        own.conf.set(name, value)
    rows: DataFrame = named(config.plan)(own, config)
    writer = rows.writeStream.outputMode(config.output_mode).foreachBatch(run_batch)
    query = writer.option("checkpointLocation", config.checkpoint).trigger(availableNow=True).start()
    visit(config.desk, STARTED, run=str(query.runId))
    while query.isActive and not begun.wait(_POLL_S):
        pass
    return query


def named(text: str) -> Callable[..., Any]:
    """A function, of which the text says ``module:function``."""
    module, _, function = text.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def attend(query: StreamingQuery, config: Config) -> int:
    """Waits until a query has ended, and says how. 1 if it failed."""
    from pyspark.errors import StreamingQueryException

    from spark.desk import visit

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        visit(config.desk, ENDED, failed=str(error))
        return 1
    visit(config.desk, ENDED, failed="")
    return 0


def sql_settings(config: Config) -> dict[str, str]:
    """Those that every query has, whatever its own `Config.sql`."""
    return {
        "spark.sql.shuffle.partitions": str(config.slots),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }


def session(config: Config) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(config.jars),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={config.temporary} {config.jvm_flags}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": config.temporary,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **sql_settings(config),
        **config.spark,
    }
    builder = SparkSession.builder.master(config.master).appName("sparkonce tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

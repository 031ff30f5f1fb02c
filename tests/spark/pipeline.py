"""The query under test: a process of its own that reads Kafka, drops duplicates by state, and writes Kafka.

``python -m spark.pipeline CONFIG``, where CONFIG is the JSON of a `Config`. It visits the test's desk before each phase
of each batch and when it has ended, and ends by itself when all of its source is written.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PHASE = "phase"
ENDED = "ended"
REFUSED = "refused"
STARTED = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One start of the query.

    Attributes:
        bootstrap: ``bootstrap.servers``.
        source: The topic read.
        target: The topic written to.
        checkpoint: The query's folder.
        temporary: For everything that Spark leaves behind when it is killed.
        jars: For ``spark.jars``.
        jvm_flags: Of the driver's JVM.
        desk: The address of the test's desk.
        plan: A name in `PLANS`.
        master: Spark's master.
        slots: ``spark.sql.shuffle.partitions``, which a stateful query keeps from its first start on.
        rows_per_batch: ``maxOffsetsPerTrigger``.
        keep_batches: How many batches the log keeps.
        points: Where else the sink visits the desk, see `spark.faults`.
        settings: More of librdkafka's settings.
        sink: More of the sink's arguments.
        query: More of the arguments of `ExactlyOnce`.
        spark: More of Spark's settings.
    """

    bootstrap: str
    source: str
    target: str
    checkpoint: str
    temporary: str
    jars: tuple[str, ...]
    jvm_flags: str
    desk: str
    plan: str = "distinct"
    master: str = "local[2]"
    slots: int = 4
    rows_per_batch: int = 5000
    keep_batches: int = 100
    points: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Config:
        return cls(**json.loads(text))


def distinct(records: DataFrame) -> DataFrame:
    """Each id once, wherever in the topic it comes again: what has been seen is state, spread by a shuffle."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    return records.select(F.col("key").cast("string").alias("key")).dropDuplicates(["key"])


def stateless(records: DataFrame) -> DataFrame:
    """Each row as it comes, in the source's own partitions or as many as there are slots."""
    from pyspark.sql import functions as F  # noqa: N812

    return records.select(F.col("key").cast("string").alias("key"))


def spread(records: DataFrame) -> DataFrame:
    """Each row as it comes, spread by key over so many slots as this start has."""
    slots = int(records.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0)
    return stateless(records).repartition(slots, "key")


PLANS = {"distinct": distinct, "stateless": stateless, "spread": spread, "moody": distinct}
MOODY = "moody"
"""The plan whose rows are others each time that it runs."""


def tagged(rows: DataFrame, batch: int, plan: str) -> DataFrame:
    """Says in each row's value of which batch it is, so that a reader can ask the log whether that is decided."""
    from pyspark.sql import functions as F  # noqa: N812

    value = F.lit(str(batch))
    if plan == MOODY:
        value = F.concat(value, F.lit(" "), F.expr("uuid()"))
    return rows.select("key", value.alias("value"))


def main(text: str) -> int:
    from pyspark.errors import StreamingQueryException

    from spark.desk import visit
    from spark.faults import WatchedSink
    from sparkonce import ExactlyOnce, Guarantee
    from sparkonce.errors import SparkonceError
    from sparkonce.protocol import coordinator
    from sparkonce.protocol.state import Phase

    config = Config.of_json(text)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.DEBUG)

    def listen(phase: Phase, batch: int) -> None:
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
    # What is below is cleaned up each second batch, not each twentieth: a kill is to fall into that too.
    coordinator.KEEP_BATCHES, coordinator.TIDY_EVERY_BATCHES = config.keep_batches, 2
    exactly_once = ExactlyOnce(sink, checkpoint=config.checkpoint, listener=listen, display=False, **config.query)

    def run_batch(rows: DataFrame, batch: int) -> None:
        try:
            exactly_once(tagged(rows, batch, config.plan), batch)
        except SparkonceError as error:
            details = {name: repr(value) for name, value in error.details.items()}
            visit(config.desk, REFUSED, kind=type(error).__name__, message=str(error), batch=batch, details=details)
            raise

    spark = session(config)
    rows = PLANS[config.plan](source(spark, config))
    writer = rows.writeStream.foreachBatch(run_batch).option("checkpointLocation", config.checkpoint)
    query = writer.trigger(availableNow=True).start()
    visit(config.desk, STARTED, run=str(query.runId))
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        visit(config.desk, ENDED, failed=str(error))
        return 1
    visit(config.desk, ENDED, failed="")
    return 0


def session(config: Config) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(config.jars),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={config.temporary} {config.jvm_flags}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": config.temporary,
        "spark.sql.shuffle.partitions": str(config.slots),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **config.spark,
    }
    builder = SparkSession.builder.master(config.master).appName("sparkonce tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def source(spark: SparkSession, config: Config) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", config.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config.rows_per_batch)
        .load()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The query under test, in a separate process. It reads from Kafka or files and writes to the targets.

``python -m spark.pipeline CONFIG…``, where CONFIG is the JSON of a `Config`. The query arrives at the test's gate
before each phase of each batch and when it has ended. It ends on its own when its whole source has been written.
Several queries run in one Spark session, each with its own gate. If there is a `program`, it is run instead, and
reports only its phases.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.names import SYSTEMS
from striking.gate import arrive, come_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sparkonce.protocol.state import Phase
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce.spark.views import Sinks
    from striking.gated import GatedSink

PHASE = "phase"
ENDED = "ended"
REFUSED = "refused"
KAFKA = KafkaSystem.name
SPARK_STOPS = ('the return value of "scala.Option.get()" is null', "Python worker failed to connect back")
"""Errors that end a query through no fault of its own, and after which it can be restarted.

Spark 4.1.1's Kafka source stops after it has replayed a batch. Spark waits only ten seconds for a Python process that
it starts for a data source or a stateful function, which may be too short on a busy machine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One start of the query. If several start together, the first one's process settings apply."""

    bootstrap: str
    sources: tuple[str, ...]
    files: str = ""  # the folder whose files are read instead
    target: str
    checkpoint: str
    temporary: str  # the folder for everything that Spark leaves behind when it is killed
    jars: tuple[str, ...]
    jvm_flags: str  # of the driver
    gate: str  # the address of the test's gate
    points: tuple[str, ...] = ()  # the points besides its phases at which it arrives at the gate, see `striking.points`
    program: tuple[str, ...] = ()  # a program and its arguments, which runs instead of a plan, as a user would run it
    plan: str = "spark.plans:distinct"
    sinks: dict[str, dict[str, Any]] = field(default_factory=dict)  # the arguments of each, by the name of its system
    query: dict[str, Any] = field(default_factory=dict)  # additional arguments of `ExactlyOnce`
    output_mode: str = "append"
    master: str = "local[2]"
    slots: int = 4  # spark.sql.shuffle.partitions, which a stateful query keeps from its first start
    rows_per_batch: int = 5000
    keep_batches: int = 100  # how many batches the log keeps
    tidy_every_batches: int = 2  # how many more batches may accumulate before the log is cleaned up
    trigger: dict[str, Any] = field(default_factory=lambda: {"availableNow": True})  # ends when everything is written
    spark: dict[str, str] = field(default_factory=dict)  # additional Spark settings
    sql: dict[str, str] = field(default_factory=dict)  # additional Spark SQL settings of this query only

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Config:
        return cls(**json.loads(text))


def tagged(rows: DataFrame, batch: int) -> DataFrame:
    """Adds the batch number to each row's value, so that a reader can look up whether the batch is decided."""
    from pyspark.sql import functions as F

    if "value" not in rows.columns:
        return rows.withColumn("value", F.lit(str(batch)))
    kind = dict(rows.dtypes)["value"]
    return rows.withColumn("value", F.concat(F.lit(f"{batch} ").cast(kind), F.coalesce("value", F.lit("").cast(kind))))


def for_tables(rows: DataFrame) -> DataFrame:
    """Prepares the rows for all sinks except Kafka's.

    Since their view is the same function, they share the batch's tasks.
    """
    return rows.selectExpr("key as id", "cast(split(value, ' ')[0] as bigint) as batch")


def make_sinks(config: Config) -> Sinks:
    return {
        gated(config, SYSTEMS[name].build(given)): None if name == KAFKA else for_tables
        for name, given in config.sinks.items()
    }


def gated(config: Config, sink: TwoPhaseCommitSink) -> GatedSink:
    from striking.gated import GatedSink

    return GatedSink(sink, partial(come_to, config.gate), config.points)


def main(texts: Sequence[str]) -> int:
    configs = [Config.of_json(text) for text in texts]
    if configs[0].program:
        run_program(configs[0])
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.DEBUG)
    spark = session(configs[0])
    queries = [start(spark, config) for config in configs]
    with ThreadPoolExecutor(len(configs)) as pool:
        return max(pool.map(partial(attend, partial(start, spark)), queries, configs))


def run_program(config: Config) -> None:
    """Runs an example unchanged.

    Only what it imported as ``ExactlyOnce`` and ``KafkaSink`` is connected to the gate.
    """
    import typer

    import sparkonce

    script, *arguments = config.program
    sys.path.insert(0, str(Path(script).parent))
    example: Any = importlib.import_module(Path(script).stem)
    example.ExactlyOnce = partial(sparkonce.ExactlyOnce, listener=partial(listen, config), display=False)
    example.KafkaSink = lambda *given, **more: gated(config, sparkonce.KafkaSink(*given, **more))
    sys.argv = [script, *arguments]
    typer.run(example.main)


def listen(config: Config, phase: Phase, batch: int) -> None:
    arrive(config.gate, PHASE, phase=phase.name, batch=batch)


class Commit:
    """The function of ``foreachBatch``: tags the rows, and reports the query's error. Spark Connect pickles it."""

    def __init__(self, config: Config, listener: Callable[[Phase, int], None], **more: Any) -> None:
        from sparkonce import ExactlyOnce

        self._config = config
        sinks, given = make_sinks(config), {**config.query, **more}
        self._once = ExactlyOnce(sinks, checkpoint=config.checkpoint, listener=listener, **given)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        from sparkonce.errors import SparkonceError
        from sparkonce.protocol import horizon

        # Cleans up every second batch instead of every twentieth, so that kills can hit the cleanup too.
        horizon.KEEP_BATCHES, horizon.TIDY_EVERY_BATCHES = self._config.keep_batches, self._config.tidy_every_batches
        try:
            self._once(tagged(rows, batch), batch)
        except SparkonceError as error:
            details = {name: repr(value) for name, value in error.details.items()}
            told = {"message": str(error), "batch": batch, "details": details}
            arrive(self._config.gate, REFUSED, kind=type(error).__name__, **told)
            raise


def writer_of(spark: SparkSession, config: Config, commit: Commit) -> DataStreamWriter:
    """Returns the query, not yet started, with its own SQL settings in its own session."""
    for name, value in {**sql_settings(config), **config.sql}.items():
        spark.conf.set(name, value)
    module, _, function = config.plan.partition(":")
    rows: DataFrame = getattr(importlib.import_module(module), function)(spark, config)
    writer = rows.writeStream.outputMode(config.output_mode).foreachBatch(commit)
    return writer.option("checkpointLocation", config.checkpoint).trigger(**config.trigger)


def start(spark: SparkSession, config: Config) -> StreamingQuery:
    """Starts a query, and waits until it is in its first batch.

    Spark waits only ten seconds for a Python process that it starts for `transformWithStateInPandas`, which may be too
    short while other queries start, and so are short transactions of queries that all begin together.
    """
    begun = threading.Event()

    def begin(phase: Phase, batch: int) -> None:
        begun.set()
        listen(config, phase, batch)

    query = writer_of(spark.newSession(), config, Commit(config, begin, display=False)).start()
    while query.isActive and not begun.wait(0.1):
        pass
    return query


def attend(restart: Callable[[Config], StreamingQuery], query: StreamingQuery, config: Config) -> int:
    """Waits until a query has ended, and reports how. Returns 1 if it failed."""
    from pyspark.errors import StreamingQueryException

    failed = ""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        failed = str(error)
    if any(text in failed for text in SPARK_STOPS):
        return attend(restart, restart(config), config)
    arrive(config.gate, ENDED, failed=failed)
    return int(bool(failed))


def sql_settings(config: Config) -> dict[str, str]:
    """Returns the settings that every query has in addition to its own `Config.sql`."""
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
        "spark.python.daemon.module": "preloaded",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **sql_settings(config),
        **config.spark,
    }
    spark = SparkSession.builder.master(config.master).appName("sparkonce tests").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A client of Spark Connect that starts the queries under test: ``python -m spark.connect_job URL CONFIG…``.

Each query has a session of its own. Reports to the test's gate come from the queries' processes on the server. A line
on standard input stops all of them.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark.pipeline import REFUSED, SPARK_STOPS, Config, attend, listen, make_sinks, tagged
from sparkonce import ExactlyOnce
from sparkonce.errors import SparkonceError
from sparkonce.protocol import horizon
from striking.gate import arrive


class Commit:
    """The function of ``foreachBatch``: tags the rows, as `spark.pipeline` does, and reports what stops the query."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._once = ExactlyOnce(
            make_sinks(config), checkpoint=config.checkpoint, listener=partial(listen, config), **config.query
        )

    def __call__(self, rows: DataFrame, batch: int) -> None:
        horizon.KEEP_BATCHES, horizon.TIDY_EVERY_BATCHES = self._config.keep_batches, self._config.tidy_every_batches
        try:
            self._once(tagged(rows, batch), batch)
        except SparkonceError as error:
            details = {name: repr(value) for name, value in error.details.items()}
            told = {"message": str(error), "batch": batch, "details": details}
            arrive(self._config.gate, REFUSED, kind=type(error).__name__, **told)
            raise


def start(url: str, config: Config) -> Any:
    spark = SparkSession.builder.remote(url).create()
    spark.conf.set("spark.sql.shuffle.partitions", str(config.slots))
    for name, value in config.sql.items():
        spark.conf.set(name, value)
    module, _, function = config.plan.partition(":")
    rows: DataFrame = getattr(importlib.import_module(module), function)(spark, config)
    writer = rows.writeStream.outputMode(config.output_mode).foreachBatch(Commit(config))
    writer = writer.option("checkpointLocation", config.checkpoint).trigger(**config.trigger)
    while True:
        try:
            return writer.start()
        except PySparkException as error:  # noqa: PERF203 - a try each
            if not any(text in str(error) for text in SPARK_STOPS):
                raise


def stop_when_told(queries: Sequence[Any]) -> None:
    if sys.stdin.readline():
        for query in queries:
            query.stop()


def main(url: str, texts: Sequence[str]) -> int:
    configs = [Config.of_json(text) for text in texts]
    queries = [start(url, config) for config in configs]
    threading.Thread(target=stop_when_told, args=(queries,), daemon=True).start()
    with ThreadPoolExecutor(len(configs)) as pool:
        return max(pool.map(partial(attend, partial(start, url)), queries, configs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

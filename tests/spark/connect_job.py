"""A client of Spark Connect that starts the queries under test: ``python -m spark.connect_job URL CONFIG…``.

Each query has a separate session. Reports to the test's gate come from the queries' processes on the server. A line on
standard input stops all of them.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.pipeline import SPARK_STOPS, Commit, Config, attend, listen, writer_of

_sessions: list[SparkSession] = []


def start(url: str, config: Config) -> Any:
    spark = SparkSession.builder.remote(url).create()
    _sessions.append(spark)
    writer = writer_of(spark, config, Commit(config, partial(listen, config)))
    while True:
        try:
            return writer.start()
        except PySparkException as error:  # noqa: PERF203 - a try each
            if not any(text in str(error) for text in SPARK_STOPS):
                raise
            sys.stderr.write(f"started again after: {error}\n")


def stop_when_told(queries: Sequence[Any]) -> None:
    if sys.stdin.readline():
        for query in queries:
            query.stop()


def main(url: str, texts: Sequence[str]) -> int:
    faulthandler.register(signal.SIGQUIT)
    configs = [Config.of_json(text) for text in texts]
    queries = [start(url, config) for config in configs]
    threading.Thread(target=stop_when_told, args=(queries,), daemon=True).start()
    with ThreadPoolExecutor(len(configs)) as pool:
        code = max(pool.map(partial(attend, partial(start, url)), queries, configs))
    # While the interpreter exits, closing a session's channel may wait forever for gRPC's thread, which no longer runs.
    for session in _sessions:
        session.stop()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

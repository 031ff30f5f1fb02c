"""A stream of Pravega. The driver's half of its sink runs in a JVM, so each run has a Spark session of its own."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from crashes.target import COMMIT, ServerTarget, new_name
from jvm import bare_jvm, jars_beside_spark
from pravega_witness import SCOPE, PravegaWitness
from sparkonce import PravegaSink
from sparkonce.errors import SparkonceError
from sparkonce.rig.servers.pravega import PravegaServer
from sparkonce.rig.servers.process import HOST
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sources.packages import PRAVEGA_CLIENT
from sparkonce.spark.pravega.client import PravegaStream


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})


class InOwnSession(PravegaSink):
    """The sink, which starts a session when a run first asks Pravega."""

    jars: tuple[str, ...] = ()
    jvm_flags = ""

    def _opened(self) -> PravegaStream:
        from pyspark.sql import SparkSession

        settings = {
            "spark.driver.extraClassPath": ":".join(self.jars),
            "spark.driver.extraJavaOptions": self.jvm_flags,
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
        }
        SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        return super()._opened()


class PravegaTarget(ServerTarget):
    """The server keeps its data in memory, so it is never killed. The proxy is before its controller."""

    name = "pravega"
    choice = "none"  # a run starts a JVM and a session: the short form's faults are struck in spark/test_pravega.py
    can_restart = False
    preload = ("pyspark.sql", "sparkonce.sinks.write_ahead.writer", "sparkonce.spark.pravega.application")
    requests = {COMMIT: b"ControllerService/commitTransaction"}  # noqa: RUF012
    rows = staticmethod(rows)
    run_within_s = 240.0
    shows_within_s = gone_within_s = 0.0
    server: PravegaServer  # type: ignore[assignment]

    def missing(self) -> str:
        try:
            jars_beside_spark(PRAVEGA_CLIENT)
        except SparkonceError as error:
            return error.message
        return ""

    def make_server(self, folder: Path) -> PravegaServer:  # type: ignore[override]
        self._folder = folder
        return PravegaServer(folder / "settings")

    def start(self, folder: Path) -> None:
        super().start(folder)
        self._open = ExitStack()
        self._witness = PravegaWitness(
            self._open.enter_context(bare_jvm(jars_beside_spark(PRAVEGA_CLIENT))), self.server.url
        )

    def stop(self) -> None:
        self._open.close()
        gc.collect()  # PySpark leaves sockets behind in cycles
        super().stop()

    def new_place(self) -> None:
        self._stream = new_name()
        self._witness.create(self._stream)
        self._place = self._folder / self._stream

    def make_sink(self) -> TwoPhaseCommitSink:
        from startup import jvm_flags

        url = f"tcp://{HOST}:{self.proxy.port}"
        sink = InOwnSession(url, scope=SCOPE, stream=self._stream, folder=self._place)
        sink.jars, sink.jvm_flags = tuple(map(str, jars_beside_spark(PRAVEGA_CLIENT))), jvm_flags()
        return sink

    def visible(self) -> Sequence[int]:
        return [int(event) for event in self._witness.events(self._stream)]

    def lingering(self) -> Sequence[str]:
        folders = [folder for name in ("open", "prepared") for folder in self._place.rglob(name)]
        return [str(path) for folder in folders for path in folder.rglob("*") if path.is_file()]

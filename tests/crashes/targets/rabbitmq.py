"""A stream of RabbitMQ: each message that was published twice is there twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from crashes.cells import KILL, LATE, REPLY_LOST, RESTART, ZOMBIE
from crashes.target import COMMIT, ServerTarget, new_name
from rabbit_streams import new_super_stream
from sparkonce.rig.proxy import FaultProxy
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.sinks.rabbitmq.sink import RabbitMQStreamSink
from sparkonce.testing.systems.rabbitmq import StreamWitness


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})


class OnRabbit(ServerTarget):
    """A target in RabbitMQ, whose rows wait in a folder."""

    rows = staticmethod(rows)
    shows_within_s = 0.0
    gone_within_s = 0.0
    server: RabbitServer

    def missing(self) -> str:
        return "" if RabbitServer.is_installed() else "rabbitmq-server is not installed"

    def make_server(self, folder: Path) -> RabbitServer:
        self._folder = folder
        return RabbitServer(folder / "data")

    def new_place(self) -> None:
        self._place = self._folder / new_name()

    def lingering(self) -> Sequence[str]:
        folders = [folder for name in ("open", "prepared") for folder in self._place.rglob(name)]
        return [str(path) for folder in folders for path in folder.rglob("*") if path.is_file()]


class RabbitTarget(OnRabbit):
    name = "rabbitmq-stream"
    choice = "few"
    preload = (
        "sparkonce.sinks.rabbitmq.writer",
        "sparkonce.sinks.rabbitmq.committer",
        "sparkonce.sinks.rabbitmq.preflight",
    )
    requests = {COMMIT: re.compile(rb"\x00\x02\x00\x01\x00\x00\x00")}  # noqa: RUF012 - a frame that publishes

    def start(self, folder: Path) -> None:
        super().start(folder)
        self._witness = StreamWitness(HOST, self.server.stream_port, answers_within_s=20)
        self._witness.create()
        self.server.settle()

    def _start_proxy(self) -> None:
        self.proxy = FaultProxy((HOST, self.server.stream_port), self.requests)
        self.proxy.start()

    def new_place(self) -> None:
        super().new_place()
        self._target, self._streams = self._new_target()

    def _new_target(self) -> tuple[dict[str, str], Sequence[str]]:
        """Makes what the sink writes to, and returns the setting for it, and the streams in it."""
        stream = self._witness.create()
        return {"stream": stream}, [stream]

    def make_sink(self) -> TwoPhaseCommitSink:
        server = RabbitMQ(host=HOST, stream_port=self.proxy.port, timeout_s=2.0)
        return RabbitMQStreamSink(server, **self._target, body="raw", folder=self._place)

    def visible(self) -> Sequence[int]:
        return [int(body) for stream in self._streams for body in self._witness.messages(stream)]


class SuperStreamTarget(RabbitTarget):
    name = "rabbitmq-super-stream"
    marks = (pytest.mark.slow,)
    faults = (KILL, ZOMBIE, REPLY_LOST, LATE, RESTART)

    def _new_target(self) -> tuple[dict[str, str], Sequence[str]]:
        name, streams = new_super_stream(self.server, 3)
        return {"super_stream": name, "route_by": "value"}, streams

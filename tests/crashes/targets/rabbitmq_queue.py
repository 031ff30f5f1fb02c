"""A queue of RabbitMQ, read by a reader that drops each message whose id it has seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from crashes.target import COMMIT, ServerTarget, new_name
from rabbit_queues import new_queue, peek
from sparkonce.rig.proxy import FaultProxy
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.rabbitmq.queue_publisher import DEDUPLICATION_HEADER
from sparkonce.sinks.rabbitmq.queue_sink import RabbitMQQueueSink
from sparkonce.sinks.rabbitmq.server import RabbitMQ


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})


class QueueTarget(ServerTarget):
    name = "rabbitmq-queue"
    choice = "light"
    preload = ("sparkonce.sinks.rabbitmq.queue_publisher", "sparkonce.sinks.write_ahead.committer")
    requests = {COMMIT: re.compile(re.escape(DEDUPLICATION_HEADER.encode()))}  # noqa: RUF012 - a message's header
    rows = staticmethod(rows)
    shows_within_s = 0.0
    gone_within_s = 0.0
    server: RabbitServer

    def missing(self) -> str:
        return "" if RabbitServer.is_installed() else "rabbitmq-server is not installed"

    def make_server(self, folder: Path) -> RabbitServer:
        self._folder = folder
        return RabbitServer(folder / "data")

    def _start_proxy(self) -> None:
        self.proxy = FaultProxy((HOST, self.server.port), self.requests)
        self.proxy.start()

    def new_place(self) -> None:
        self._queue = new_queue(self.server, "classic")
        self._place = self._folder / new_name()

    def make_sink(self) -> TwoPhaseCommitSink:
        server = RabbitMQ(host=HOST, port=self.proxy.port, timeout_s=2.0)
        return RabbitMQQueueSink(server, queue=self._queue, folder=self._place)

    def visible(self) -> Sequence[int]:
        found = peek(self.server, self._queue)
        return [*{properties.headers[DEDUPLICATION_HEADER]: int(body) for properties, body in found}.values()]

    def lingering(self) -> Sequence[str]:
        folders = [folder for name in ("open", "prepared") for folder in self._place.rglob(name)]
        return [str(path) for folder in folders for path in folder.rglob("*") if path.is_file()]

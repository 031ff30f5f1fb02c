"""A queue of RabbitMQ, read by a reader that drops each message whose id it has seen."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crashes.target import COMMIT
from crashes.targets.rabbitmq import OnRabbit
from rabbit_queues import new_queue, peek
from sparkonce.rig.proxy import FaultProxy
from sparkonce.rig.servers.process import HOST
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.rabbitmq.queue_publisher import DEDUPLICATION_HEADER
from sparkonce.sinks.rabbitmq.queue_sink import RabbitMQQueueSink
from sparkonce.sinks.rabbitmq.server import RabbitMQ


class QueueTarget(OnRabbit):
    name = "rabbitmq-queue"
    choice = "light"
    preload = ("sparkonce.sinks.rabbitmq.queue_publisher", "sparkonce.sinks.write_ahead.committer")
    requests = {COMMIT: re.compile(re.escape(DEDUPLICATION_HEADER.encode()))}  # noqa: RUF012 - a message's header

    def _start_proxy(self) -> None:
        self.proxy = FaultProxy((HOST, self.server.port), self.requests)
        self.proxy.start()

    def new_place(self) -> None:
        super().new_place()
        self._queue = new_queue(self.server, "classic")

    def make_sink(self) -> TwoPhaseCommitSink:
        server = RabbitMQ(host=HOST, port=self.proxy.port, timeout_s=2.0)
        return RabbitMQQueueSink(server, queue=self._queue, folder=self._place)

    def visible(self) -> Sequence[int]:
        found = peek(self.server, self._queue)
        return [*{properties.headers[DEDUPLICATION_HEADER]: int(body) for properties, body in found}.values()]

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rabbit_queues import new_queue, peek, settings_of
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.sinks.rabbitmq.queue_sink import RabbitMQQueueSink
from sparkonce.testing.conformance import SinkConformance

pytestmark = [USES_RABBIT, pytest.mark.drawn(6, "a queue's promises")]


class TestQueue(SinkConformance):
    """As long as nothing interrupts it, it is exactly once, too."""

    visible_within_s = 0.0

    @pytest.fixture(autouse=True)
    def _queue(self, tmp_path: Path) -> None:
        self.root, self.server = tmp_path, rabbit_server()
        self.queue = new_queue(self.server, "classic")

    def make(self, **changed: Any) -> RabbitMQQueueSink:
        sink = RabbitMQQueueSink(settings_of(self.server), queue=self.queue, **changed)
        sink.use_checkpoint(LocalFiles(self.root / "checkpoint"))
        return sink

    def make_sink(self) -> RabbitMQQueueSink:
        return self.make()

    def make_second_sink(self) -> RabbitMQQueueSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> RabbitMQQueueSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})

    def visible(self) -> Sequence[int]:
        return [int(body) for _, body in peek(self.server, self.queue)]

    def expire(self, handle: Handle) -> bool:
        """Nothing times out; but somebody may delete files."""
        (self.root / "checkpoint/sparkonce-write-ahead/rabbitmq-queue/prepared" / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        self.server.settle()
        self.server.restart()
        return True

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.sinks.rabbitmq.sink import RabbitMQStreamSink
from sparkonce.testing.conformance import SinkConformance
from sparkonce.testing.systems.rabbitmq import StreamWitness

pytestmark = USES_RABBIT


@pytest.mark.drawn(8, "conformance of a stream")
class TestStream(SinkConformance):
    visible_within_s = 0.0

    @pytest.fixture(autouse=True)
    def _stream(self, tmp_path: Path) -> None:
        self.settle(tmp_path, rabbit_server())

    def settle(self, root: Path, server: RabbitServer) -> None:
        """Gives the check an empty stream."""
        self.root, self.server = root, server
        self.witness = StreamWitness(HOST, server.stream_port)
        self.stream = self.witness.create()

    def make(self, **changed: Any) -> RabbitMQStreamSink:
        server = RabbitMQ(host=HOST, stream_port=self.server.stream_port)
        sink = RabbitMQStreamSink(server, stream=self.stream, **{"body": "raw", **changed})
        sink.use_checkpoint(LocalFiles(self.root / "checkpoint"))
        return sink

    def make_sink(self) -> RabbitMQStreamSink:
        return self.make()

    def make_second_sink(self) -> RabbitMQStreamSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> RabbitMQStreamSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})

    def visible(self) -> Sequence[int]:
        return [int(body) for body in self.witness.messages(self.stream)]

    def expire(self, handle: Handle) -> bool:
        """Nothing times out; but somebody may delete files."""
        (self.root / "checkpoint/sparkonce-write-ahead/rabbitmq/prepared" / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        self.server.settle()
        self.server.restart()
        return True

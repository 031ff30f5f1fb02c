from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rabbit_streams import new_super_stream
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


class StreamConformance(SinkConformance):
    visible_within_s = 0.0
    loses_whole_batches = True

    @pytest.fixture(autouse=True)
    def _stream(self, tmp_path: Path) -> None:
        self.settle(tmp_path, rabbit_server())

    def settle(self, root: Path, server: RabbitServer) -> None:
        """Gives the check an empty stream."""
        self.root, self.server = root, server
        self.witness = StreamWitness(HOST, server.stream_port)
        self.target, self.streams = self.new_target()

    def new_target(self) -> tuple[dict[str, str], Sequence[str]]:
        """Makes what the sink writes to, and returns the setting for it, and the streams in it."""
        stream = self.witness.create()
        return {"stream": stream}, [stream]

    def make(self, **changed: Any) -> RabbitMQStreamSink:
        server = RabbitMQ(host=HOST, stream_port=self.server.stream_port)
        sink = RabbitMQStreamSink(server, **{**self.target, "body": "raw", **changed})
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
        return [int(body) for stream in self.streams for body in self.witness.messages(stream)]

    def expire(self, handle: Handle) -> bool:
        """Nothing times out; but somebody may delete files."""
        (self.root / "checkpoint/sparkonce-write-ahead/rabbitmq/prepared" / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        self.server.settle()
        self.server.restart()
        return True


@pytest.mark.drawn(8, "conformance of a stream")
class TestStream(StreamConformance):
    """One stream."""


@pytest.mark.drawn(5, "conformance of a super stream")
class TestSuperStream(StreamConformance):
    def new_target(self) -> tuple[dict[str, str], Sequence[str]]:
        name, streams = new_super_stream(self.server, 3)
        return {"super_stream": name, "route_by": "value"}, streams

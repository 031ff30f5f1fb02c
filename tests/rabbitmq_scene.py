"""A sink for streams without Spark: a stream of its own, prepared slots, committers as other processes have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.lab.systems.rabbitmq import StreamClient
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sink import Facts, Owner, WriterContext
from sparkonce.sinks.rabbitmq.committer import StreamCommitter
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.sinks.rabbitmq.sink import RabbitMQStreamSink

QUERY = "7f6e5d4c0000"
PUBLISHER = f"sparkonce.{QUERY}.rabbitmq"


class StreamScene:
    """One query's sink.

    Args:
        server: The server.
        root: For the checkpoint.
        arguments: Of the stream.
    """

    def __init__(self, server: RabbitServer, root: Path, **arguments: Any) -> None:
        self.server = RabbitMQ(host=HOST, stream_port=server.stream_port)
        self.witness = StreamClient(HOST, server.stream_port)
        self.stream = self.witness.create(**arguments)
        self.root = root
        self._opened: list[StreamCommitter] = []

    def sink(self, files: CheckpointFiles | None = None, **changed: Any) -> RabbitMQStreamSink:
        """The sink, told of its checkpoint."""
        sink = RabbitMQStreamSink(**{"server": self.server, "stream": self.stream, "body": "raw", **changed})
        sink.use_checkpoint(files or LocalFiles(self.root))
        return sink

    def facts(self, sink: RabbitMQStreamSink) -> Facts:
        return sink.preflight(QUERY, None)

    def prepare(self, bodies: Sequence[str], batch: int = 0, slot: int = 0, **kept: Any) -> Handle:
        """A slot's rows, prepared."""
        sink = self.sink(**kept)
        owner = Owner(query=QUERY, token=Token(3, "0" * 8), facts=self.facts(sink))
        writer = sink.writer(WriterContext(owner=owner, batch=batch, slot=slot, copy="1.1.0"))
        writer.begin()
        writer.write(pa.record_batch({"value": list(bodies)}))
        fields = transaction_fields(writer.prepare())
        writer.close()
        return Handle(sink=sink.name, slot=slot, rows=len(bodies), transaction=fields)

    def committer(self, **kept: Any) -> StreamCommitter:
        """A committer that shares only checkpoint and stream with the others."""
        made = self.sink(**kept).committer()
        assert isinstance(made, StreamCommitter)
        self._opened.append(made)
        return made

    def close(self) -> None:
        """Closes what was opened."""
        for one in self._opened:
            one.close()

    def finish(self, committer: StreamCommitter, batch: int, *handles: Handle) -> None:
        """Commits and concludes a batch, which has to work."""
        assert [one.outcome.value for one in committer.commit(handles)] == ["committed"] * len(handles)
        committer.conclude(batch, handles)

    def bodies(self) -> list[str]:
        """The bodies that a reader sees."""
        return [body.decode() for body in self.witness.messages(self.stream)]

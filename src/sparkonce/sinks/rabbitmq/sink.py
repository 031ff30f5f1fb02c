"""The sink for streams of RabbitMQ: its settings, from which its writers and its committer are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.arguments import need_package, nonempty, number, one_of
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, WriterContext
from sparkonce.sinks._shared.preflight import check_same
from sparkonce.sinks.rabbitmq.messages import FRAME_OVERHEAD_BYTES, Body, columns_of
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.sinks.write_ahead.apply import Applies, ApplyToken
from sparkonce.sinks.write_ahead.sink import WriteAheadSink

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.rabbitmq.publishing import Publisher

_BEGINS = "sparkonce"


class RabbitMQStreamSink(WriteAheadSink):
    """Publishes rows to a stream of RabbitMQ, one message a row.

    EXACTLY_ONCE keeps the rows in the checkpoint until the batch is decided. Then the driver publishes them under a
    name of the query's own, each with an id that every process makes alike: the stream takes an id once.
    AT_LEAST_ONCE publishes from the executors, without a name.

    Columns: ``value`` is the body, a string or binary. With ``body="amqp"`` there may also be ``message_id``, ``to``,
    ``subject``, ``reply_to``, ``correlation_id`` and ``content_type``, all strings, and ``application_properties``, an
    array of structs of ``key`` and ``value``.

    Args:
        server: The server, the user and TLS.
        stream: The stream's name. It must exist.
        body: ``amqp``: messages of AMQP 1.0, as RabbitMQ's own clients write and read them. ``raw``: bare bytes.
        wait_s: How long a commit waits for its rows to be published before the driver asks again, in seconds.
        folder: The folder in which rows wait; by default in the query's checkpoint. See `WriteAheadSink`.
        guarantee: See above.
        name: Unique within the query, and the same after a restart. A part of the publisher's name.

    Raises:
        ConfigurationError: naming the setting that is wrong.
    """

    def __init__(
        self,
        server: RabbitMQ,
        *,
        stream: str,
        body: Body = "amqp",
        wait_s: float = 60.0,
        folder: str | Path | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        name: str = "rabbitmq",
    ) -> None:
        need_package("RabbitMQStreamSink", "rstream", "rstream", "rabbitmq")
        if not isinstance(server, RabbitMQ):
            raise ConfigurationError(
                f"server is a {type(server).__name__}.", next_step="Give RabbitMQ(host=…).", setting="server"
            )
        self.server = server
        self.stream = nonempty("stream", stream, example="a stream's name, such as 'orders'")
        self.body = one_of("body", body, ("amqp", "raw"))
        super().__init__(
            PlainPublish(server, stream),
            applies=Applies.TRANSACTIONAL,
            per="batch",
            parallel=1,
            wait_s=number("wait_s", wait_s, above=0),
            folder=folder,
            guarantee=guarantee,
            name=name,
        )

    def conditions(self) -> Sequence[str]:
        """Names the conditions on the stream and its readers."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        return (
            "rows become visible one by one, as they are published: a reader may see part of a batch while it is "
            "being committed",
            "the stream keeps what it has confirmed, which RabbitMQ bases on replicas and not on fsync: use three "
            "replicas, since a single node that loses its power may lose the newest rows",
            "fewer than 255 publishers with names write to the stream: it forgets the name that has been silent "
            "longest, and with it which rows of the query it has",
            "nobody else publishes under the query's name, which begins with sparkonce.",
        )

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns the columns of a message."""
        return columns_of(schema, self.body)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks that the stream is there, that it is the recorded one, and that this user may publish and ask."""
        from sparkonce.sinks.rabbitmq.preflight import check_stream

        exactly = self.guarantee is Guarantee.EXACTLY_ONCE
        check_same(
            "stream",
            self.stream,
            recorded,
            "stream",
            "the query has published to {before}",
            "Give {before}, or give the sink a new name when its last batch is finished.",
        )
        frame_max = check_stream(self.server, self.stream, self._publisher_name(query) if exactly else "")
        return {
            **super().preflight(query, recorded),
            "query": query,
            "stream": self.stream,
            "frame_max": str(frame_max),
        }

    def worker_needs(self) -> WorkerNeeds:
        """See `TwoPhaseCommitSink.worker_needs`. At EXACTLY_ONCE executors do not connect to the server."""
        rows = super().worker_needs()
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return rows
        return WorkerNeeds(
            modules=(*rows.modules, "rstream"), files=self.server.files, addresses=(self.server.stream_address,)
        )

    def writer(self, context: WriterContext) -> SinkWriter:
        """See `TwoPhaseCommitSink.writer`."""
        from sparkonce.sinks.rabbitmq.writer import MessageWriter

        return MessageWriter(
            self.folder(),
            self._prefix,
            context,
            body=self.body,
            most_bytes=int(context.owner.facts["frame_max"]) - FRAME_OVERHEAD_BYTES,
            apply_now=None if self.guarantee is Guarantee.EXACTLY_ONCE else self.apply,
        )

    def committer(self) -> SinkCommitter:
        """See `TwoPhaseCommitSink.committer`."""
        from sparkonce.sinks.rabbitmq.committer import StreamCommitter
        from sparkonce.sinks.write_ahead.application import CallSettings

        settings = CallSettings(
            apply=self.apply, is_applied=None, applies=self.applies, per=self.per, parallel=1, wait_s=self.wait_s
        )
        return StreamCommitter(self.folder(), self.name, self._prefix, settings, self._publisher)

    def _publisher(self, query: str) -> Publisher:
        from sparkonce.sinks.rabbitmq.publishing import Publisher

        return Publisher(self.server, self.stream, self._publisher_name(query))

    def _publisher_name(self, query: str) -> str:
        """Returns the name under which this sink of a query publishes, for all of the query's life."""
        return f"{_BEGINS}.{query}.{self._prefix}"


@dataclass(frozen=True)
class PlainPublish:
    """Publishes the rows of one slot without a name. Nothing tells a repeat from the first time."""

    server: RabbitMQ
    stream: str

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:  # noqa: ARG002 - see `Apply`
        """See `Apply`."""
        from sparkonce.sinks.rabbitmq.publishing import Publisher

        publisher = Publisher(self.server, self.stream, "")
        try:
            publisher.publish(rows, 0)
        finally:
            publisher.close()

"""The sink for RabbitMQ streams: its settings, from which it creates its writers and its committer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.arguments import nonempty, number, one_of
from sparkonce.checks import check_same
from sparkonce.errors import ConfigurationError
from sparkonce.sink import Facts, Guarantee, SinkCommitter, SinkWriter, WorkerNeeds, WriterContext
from sparkonce.write_ahead import Applies, ApplyToken, WriteAheadSink
from sparkonce_rabbitmq.server import PACKAGES, RabbitMQ, checked_server
from sparkonce_rabbitmq.sinks.messages import FRAME_OVERHEAD_BYTES, Body, columns_of
from sparkonce_rabbitmq.sinks.routing import check_key

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce_rabbitmq.sinks.publishing import Publisher

_BEGINS = "sparkonce"


class RabbitMQStreamSink(WriteAheadSink):
    """Publishes rows to a stream of RabbitMQ, one message per row.

    EXACTLY_ONCE stores the rows in the checkpoint until the batch is decided. Then the driver publishes them under a
    publisher name that belongs to the query. Each row has an id that every process computes in the same way, and the
    stream accepts an id only once. AT_LEAST_ONCE publishes from the executors, without a name.

    Columns: ``value`` is the body, a string or binary. With ``body="amqp"``, optional columns are ``message_id``,
    ``to``, ``subject``, ``reply_to``, ``correlation_id`` and ``content_type``, all strings, and
    ``application_properties``, an array of structs of ``key`` and ``value``.

    Example:
        ```python
        from sparkonce import ExactlyOnce
        from sparkonce_rabbitmq import RabbitMQ, RabbitMQStreamSink

        sink = RabbitMQStreamSink(RabbitMQ(host="rabbit-1", user="shop", password=password), "orders")
        ExactlyOnce(sink, "/data/checkpoints/orders").start(orders)
        ```

    Args:
        server: The server, the user and the TLS settings.
        stream: The stream's name. It must exist.
        super_stream: A super stream, whose partitions must exist, instead of `stream`.
        route_by: With `super_stream`, the string column with a row's key. Equal keys go to the same partition as with
            RabbitMQ's clients for Java, Go and .NET. The key is not part of the message, unless its column is one of
            those above.
        body: ``amqp``: AMQP 1.0 messages, as written and read by RabbitMQ's own clients. ``raw``: bare bytes.
        wait_s: How long a commit waits for its rows to be published before the driver retries, in seconds.
        folder: The folder in which rows wait. Defaults to the query's checkpoint. See `WriteAheadSink`.
        guarantee: EXACTLY_ONCE publishes decided rows from the driver; AT_LEAST_ONCE publishes rows from the executors.
        name: A name that is unique within the query and stays the same after a restart. It is part of the publisher's
            name.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it.
    """

    def __init__(
        self,
        server: RabbitMQ,
        stream: str | None = None,
        *,
        super_stream: str | None = None,
        route_by: str | None = None,
        body: Body = "amqp",
        wait_s: float = 60.0,
        folder: str | Path | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        name: str = "rabbitmq",
    ) -> None:
        self.server = checked_server(server)
        if (stream is None) == (super_stream is None):
            raise ConfigurationError(
                f"stream={stream!r} and super_stream={super_stream!r}: exactly one is needed.",
                next_step="Give one of them.",
                setting="stream",
            )
        if (super_stream is None) != (route_by is None):
            raise ConfigurationError(
                f"super_stream={super_stream!r} and route_by={route_by!r} belong together.",
                next_step="Give both, or neither.",
                setting="route_by",
            )
        setting, name_of = ("stream", stream) if super_stream is None else ("super_stream", super_stream)
        self.stream = nonempty(setting, name_of, example="a stream's name, such as 'orders'")
        self.route_by = "" if route_by is None else nonempty("route_by", route_by, example="a column, such as 'key'")
        self.body = one_of("body", body, ("amqp", "raw"))
        super().__init__(
            PlainPublish(server, (self.stream,)),
            applies=Applies.TRANSACTIONAL,
            per="batch",
            parallel=1,
            wait_s=number("wait_s", wait_s, above=0),
            folder=folder,
            guarantee=guarantee,
            name=name,
        )

    def __repr__(self) -> str:
        return f"RabbitMQStreamSink({self.server.host!r}, stream={self.stream!r}, name={self.name!r})"

    def conditions(self) -> Sequence[str]:
        """Returns the conditions on the stream and its readers."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        return (
            "rows become visible one by one, as they are published: a reader may see part of a batch while it is "
            "being committed",
            "the stream keeps what it has confirmed, which RabbitMQ bases on replicas and not on fsync: use three "
            "replicas, since a single node that loses power may lose the newest rows",
            "fewer than 255 publishers with names write to the stream: it forgets the name that has been silent "
            "longest, and with it which rows of the query it has",
            "nobody else publishes under the query's name, which begins with sparkonce.",
        )

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        if self.route_by:
            check_key(schema, self.route_by)
        return columns_of(schema, self.body, self.route_by)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks that the stream exists and is the recorded one, and that this user may publish to it and query it."""
        from sparkonce_rabbitmq.sinks.preflight import check_stream, partitions_of

        exactly = self.guarantee is Guarantee.EXACTLY_ONCE
        check_same(
            "stream",
            self.stream,
            recorded,
            "stream",
            "the query has published to {before}",
            "Give {before}, or give the sink a new name once its last batch is finished.",
        )
        streams = partitions_of(self.server, self.stream) if self.route_by else [self.stream]
        partitions = json.dumps(streams if self.route_by else [])
        check_same(
            "super_stream",
            partitions,
            recorded,
            "partitions",
            "the query has published to the partitions {before}",
            "Give the super stream its partitions back, or give the sink a new name once its last batch is finished.",
        )
        publisher = self._publisher_name(query) if exactly else ""
        frame_max = min(check_stream(self.server, stream, publisher) for stream in streams)
        return {
            **super().preflight(query, recorded),
            "query": query,
            "stream": self.stream,
            "frame_max": str(frame_max),
            **({"partitions": partitions} if self.route_by else {}),
        }

    def worker_needs(self) -> WorkerNeeds:
        """Returns what executors need, which do not connect to the server at EXACTLY_ONCE."""
        rows = replace(super().worker_needs(), packages=PACKAGES)
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return replace(rows, modules=(*rows.modules, "mmh3")) if self.route_by else rows
        modules = (*rows.modules, "rstream")
        return replace(rows, modules=modules, files=self.server.files, addresses=(self.server.stream_address,))

    def writer(self, context: WriterContext) -> SinkWriter:
        from sparkonce_rabbitmq.sinks.messages import MessageWriter

        # Use the recorded partitions, to which the rows' partition numbers refer. Partitions that have been added on
        # the server since then are not used yet.
        partitions = json.loads(context.owner.facts.get("partitions", "[]"))
        publish = PlainPublish(self.server, tuple(partitions) or (self.stream,))
        return MessageWriter(
            self.folder(),
            self._prefix,
            context,
            body=self.body,
            most_bytes=int(context.owner.facts["frame_max"]) - FRAME_OVERHEAD_BYTES,
            route_by=self.route_by,
            partitions=partitions,
            apply_now=None if self.guarantee is Guarantee.EXACTLY_ONCE else publish,
        )

    def committer(self) -> SinkCommitter:
        from sparkonce.write_ahead import CallSettings
        from sparkonce_rabbitmq.sinks.committer import StreamCommitter

        settings = CallSettings(
            apply=self.apply, is_applied=None, applies=self.applies, per=self.per, parallel=1, wait_s=self.wait_s
        )
        return StreamCommitter(self.folder(), self.name, self._prefix, settings, self.stream, self._publisher)

    def _publisher(self, query: str, stream: str) -> Publisher:
        from sparkonce_rabbitmq.sinks.publishing import Publisher

        return Publisher(self.server, stream, self._publisher_name(query))

    def _publisher_name(self, query: str) -> str:
        """Returns the name under which this sink of a query publishes, for the lifetime of the query."""
        return f"{_BEGINS}.{query}.{self._prefix}"


@dataclass(frozen=True)
class PlainPublish:
    """Publishes the rows of one slot without a publisher name. The server cannot recognize a retry."""

    server: RabbitMQ
    streams: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:  # noqa: ARG002 - see `Apply`
        from sparkonce_rabbitmq.sinks.publishing import Publisher
        from sparkonce_rabbitmq.sinks.routing import by_stream

        publishers = {stream: Publisher(self.server, stream, "") for stream in self.streams}
        try:
            for batch in rows:
                for stream, part in by_stream(batch, self.streams):
                    if part.num_rows:
                        publishers[stream].publish([part], 0)
        finally:
            for one in publishers.values():
                one.close()

"""Makes RabbitMQ streams and publishes to them, by the usual client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pika
from rstream import CompressionType, Producer, RawMessage
from rstream.exceptions import StreamDoesNotExist

from eventually import eventually
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.sources.rabbitmq.asking import StreamAsker

PIECE = 1000


def new_stream(server: RabbitServer, start: str = "stream", arguments: Mapping[str, Any] | None = None) -> str:
    """Makes a stream of a new name."""
    name = f"{start}-{secrets.token_hex(4)}"
    make(server, name, arguments)
    return name


def make(server: RabbitServer, name: str, arguments: Mapping[str, Any] | None = None) -> None:
    """Makes a stream. One of that name goes."""

    async def work(producer: Producer) -> None:
        with suppress(StreamDoesNotExist):
            await producer.delete_stream(name)
        await producer.create_stream(name, dict(arguments or {}))

    _run(server, work)


def new_super_stream(server: RabbitServer, partitions: int) -> tuple[str, Sequence[str]]:
    """Makes a super stream, as RabbitMQ 3.10 knows it: an exchange. Returns its name and its streams in order."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    channel = connection.channel()
    name = f"super-{secrets.token_hex(4)}"
    channel.exchange_declare(name, "direct", durable=True, arguments={"x-super-stream": True})
    for number in range(partitions):
        channel.queue_declare(f"{name}-{number}", durable=True, arguments={"x-queue-type": "stream"})
        order = {"x-stream-partition-order": number}
        channel.queue_bind(f"{name}-{number}", name, str(number), arguments=order)
    connection.close()
    return name, [f"{name}-{number}" for number in range(partitions)]


def publish(
    server: RabbitServer,
    stream: str,
    messages: Iterable[bytes],
    *,
    publisher: str | None = None,
    at_once: int = PIECE,
) -> None:
    """Publishes messages, and waits until the server has confirmed them all.

    Args:
        server: The server.
        stream: The stream.
        messages: The messages, in order.
        publisher: The name under which the server remembers their ids.
        at_once: How many are sent together: a chunk has no more.
    """
    sent = list(messages)

    async def work(producer: Producer) -> None:
        for first in range(0, len(sent), at_once):
            left = set(range(len(piece := sent[first : first + at_once])))

            def confirmed(status: Any, left: set[int] = left) -> None:
                assert status.is_confirmed, status.response_code
                left.pop()

            await producer.send_batch(
                stream, [RawMessage(one) for one in piece], publisher_name=publisher, on_publish_confirm=confirmed
            )
            while left:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(_with(server, work), 60))


def publish_packed(server: RabbitServer, stream: str, messages: Sequence[bytes], codec: CompressionType) -> None:
    """Publishes messages as one sub-entry batch, and waits until they are there."""
    before = end_of(server, stream)

    async def work(producer: Producer) -> None:
        await producer.send_sub_entry(stream, [RawMessage(one) for one in messages], compression_type=codec)

    _run(server, work)
    eventually(lambda: end_of(server, stream) == before + len(messages), "the batch is there")


def end_of(server: RabbitServer, stream: str) -> int:
    """Returns the offset behind a stream's last message."""
    asker = StreamAsker(settings_of(server), patience_s=30)
    try:
        return asker.ends((stream,))[stream].get("offset", 0)
    finally:
        asker.close()


def settings_of(server: RabbitServer, **more: Any) -> RabbitMQ:
    """Returns the settings of a server for our readers."""
    return RabbitMQ(**{"host": HOST, "stream_port": server.stream_port, **more})


def _run(server: RabbitServer, work: Callable[[Producer], Awaitable[None]]) -> None:
    asyncio.run(_with(server, work))


async def _with(server: RabbitServer, work: Callable[[Producer], Awaitable[None]]) -> None:
    async with Producer(HOST, server.stream_port, username="guest", password="guest") as producer:  # noqa: S106
        await work(producer)

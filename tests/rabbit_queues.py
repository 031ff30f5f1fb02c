"""Makes RabbitMQ queues, publishes to them and asks about them, by pika."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sinks.rabbitmq.server import RabbitMQ

KINDS = ("classic", "quorum")


@contextmanager
def channel_to(server: RabbitServer) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def new_queue(server: RabbitServer, kind: str, arguments: Mapping[str, Any] | None = None) -> str:
    """Makes a durable queue of a new name."""
    name = f"queue-{secrets.token_hex(4)}"
    with channel_to(server) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **(arguments or {})})
    return name


def publish(server: RabbitServer, queue: str, names: Iterable[str], **properties: Any) -> None:
    """Publishes messages whose body and id are their names, and waits until the server has confirmed each."""
    with channel_to(server) as channel:
        channel.confirm_delivery()
        for name in names:
            sent = pika.BasicProperties(**{"message_id": name, "delivery_mode": 2, **properties})
            channel.basic_publish("", queue, name.encode(), sent, mandatory=True)


def ready(server: RabbitServer, queue: str) -> int:
    """Returns how many messages of a queue wait for a consumer."""
    with channel_to(server) as channel:
        return channel.queue_declare(queue, passive=True).method.message_count


def peek(server: RabbitServer, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    """Returns the messages of a queue that no consumer has, with their properties; they stay there."""
    found = []
    with channel_to(server) as channel:
        while (one := channel.basic_get(queue))[0] is not None:
            found.append((one[1], one[2]))
    return found


def all_messages(server: RabbitServer, queue: str) -> int:
    """Returns how many messages a queue without a consumer has."""
    return len(peek(server, queue))


def counted(server: RabbitServer, queue: str) -> int:
    """Returns how many messages a queue has, with those that a consumer has; of a quorum queue some seconds late."""
    told = server.control("-q", "list_queues", "name", "messages").splitlines()
    return next(int(line.split("\t")[1]) for line in told if line.startswith(f"{queue}\t"))


def settings_of(server: RabbitServer, **more: Any) -> RabbitMQ:
    """Returns the settings of a server for our readers and sinks."""
    return RabbitMQ(**{"host": HOST, "port": server.port, "stream_port": server.stream_port, **more})

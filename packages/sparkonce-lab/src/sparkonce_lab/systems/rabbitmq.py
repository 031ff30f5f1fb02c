"""RabbitMQ: a stream, a super stream or a queue. The sink's rows wait in a folder."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sparkonce_lab.faults import Fault
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.systems.base import ServerSystem
from sparkonce_lab.systems.files import expire_rows, waiting_rows
from sparkonce_lab.systems.injections import Injection
from sparkonce_rabbitmq.sinks.queue_publisher import DEDUPLICATION_HEADER

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request
    from sparkonce_rabbitmq.server import RabbitMQ

_Answer = TypeVar("_Answer")
_ANSWERS_WITHIN_S = 60.0
_AT_ONCE = 1000
_CREDIT = 20
_SUBSCRIPTION = 0
_FRAME_MAX = 1 << 20
_POLL_S = 0.2


class RabbitSystem(ServerSystem):
    """A server that is started here or by the caller. Each `place` creates a new `folder` for waiting rows."""

    rabbit: RabbitServer
    _parent: Path

    def __init__(self, *, server: RabbitServer | None = None) -> None:
        self._borrowed = server
        self.folder = Path()

    @classmethod
    def missing(cls) -> str:
        return "" if RabbitServer.is_installed() else "rabbitmq-server is not installed."

    def start(self, folder: Path) -> None:
        self._parent = folder
        if self._borrowed is not None:
            self.rabbit = self._borrowed
            self.borrow(self._borrowed)
            return
        self.rabbit = RabbitServer(folder / "data")
        self.start_own(self.rabbit, None)
        self.injections = {**self.injections, Fault.SERVER_KILLED: Injection(self._kill, self.rabbit.start)}
        self.start_proxy((HOST, self.port()), self.REQUESTS[""])

    def port(self) -> int:
        return self.rabbit.port

    def place(self, *columns: str) -> None:  # noqa: ARG002 - messages have none
        self.folder = self._parent / f"rows-{secrets.token_hex(5)}"

    def drop_place(self) -> None:
        """Does nothing, because the server is not the user's."""

    def close(self) -> None:
        """Does nothing, because every request opens a connection."""

    def restart(self) -> bool:
        """First waits until declarations are on disk."""
        self.rabbit.settle()
        return super().restart()

    def _kill(self, _: float) -> None:
        self.rabbit.settle()
        self.rabbit.kill()

    @property
    def address(self) -> dict[str, Any]:
        """The server's address, bypassing the proxy, as arguments of `sparkonce_rabbitmq.RabbitMQ`."""
        return {"host": HOST, "port": self.rabbit.port, "stream_port": self.rabbit.stream_port}

    def settings(self, **changed: Any) -> RabbitMQ:
        """Returns the settings for connecting to the server, bypassing the proxy."""
        from sparkonce_rabbitmq.server import RabbitMQ

        return RabbitMQ(**{**self.address, **changed})

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {"server": {**self.address, "timeout_s": 2.0}, "folder": str(self.folder), **options}

    def expire(self, handle: Handle) -> bool:
        return expire_rows(self.folder, handle)

    def left_open(self) -> Sequence[str]:
        return waiting_rows(self.folder)


class RabbitStreamSystem(RabbitSystem):
    """A stream, in which a message that is published twice occurs twice, or a super stream with N partitions."""

    name = "rabbitmq"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "": {"commit": re.compile(rb"\x00\x02\x00\x01\x00\x00\x00")}  # A frame that publishes.
    }

    def __init__(self, partitions: int = 0, *, server: RabbitServer | None = None) -> None:
        super().__init__(server=server)
        self._partitions = partitions
        self.target: dict[str, str] = {}
        self.streams: Sequence[str] = ()

    def port(self) -> int:
        return self.rabbit.stream_port

    @property
    def client(self) -> StreamClient:
        return StreamClient(HOST, self.rabbit.stream_port)

    def place(self, *columns: str) -> None:
        super().place(*columns)
        if self._partitions:
            name, self.streams = new_super_stream(self.rabbit, self._partitions)
            self.target = {"super_stream": name, "route_by": "value"}
        else:
            self.streams = [self.client.create()]
            self.target = {"stream": self.streams[0]}

    def arguments(self, **options: Any) -> dict[str, Any]:
        found = super().arguments(**self.target, body="raw", **options)
        if self.proxy is not None:
            found["server"] |= {"stream_port": self.proxy.port}
        return found

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce_rabbitmq.server import RabbitMQ
        from sparkonce_rabbitmq.sinks.sink import RabbitMQStreamSink

        return RabbitMQStreamSink(**{**arguments, "server": RabbitMQ(**arguments["server"])})

    def visible(self, *columns: str) -> list[Any]:  # noqa: ARG002 - messages have none
        return [int(body) for stream in self.streams for body in self.client.messages(stream)]


class RabbitQueueSystem(RabbitSystem):
    """A queue. If requested, its reader drops messages whose deduplication id it has already seen."""

    name = "rabbitmq-queue"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {"": {"commit": DEDUPLICATION_HEADER.encode()}}

    def __init__(self, *, server: RabbitServer | None = None, deduplicates: bool = False) -> None:
        super().__init__(server=server)
        self._deduplicates = deduplicates
        self.queue = ""

    def place(self, *columns: str) -> None:
        super().place(*columns)
        self.queue = self.declare()

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """Opens a channel on another connection."""
        import pika

        with pika.BlockingConnection(pika.URLParameters(self.rabbit.url)) as connection:
            yield connection.channel()

    def declare(self, kind: str = "classic", **arguments: Any) -> str:
        """Creates a durable queue with a new name, and returns the name."""
        name = f"queue-{secrets.token_hex(4)}"
        options = {key.replace("_", "-"): value for key, value in arguments.items()}
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **options})
        return name

    def publish(self, queue: str, names: Iterable[str], **properties: Any) -> None:
        """Publishes messages whose bodies and ids are these names. Returns once all of them are confirmed."""
        import pika

        with self.channel() as channel:
            channel.confirm_delivery()
            for name in names:
                sent = pika.BasicProperties(**{"message_id": name, "delivery_mode": 2, **properties})
                channel.basic_publish("", queue, name.encode(), sent, mandatory=True)

    def ready(self, queue: str) -> int:
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def peek(self, queue: str) -> list[tuple[Any, bytes]]:
        """Returns the properties and bodies of messages that no consumer has received, without removing them."""
        found = []
        with self.channel() as channel:
            while (one := channel.basic_get(queue))[0] is not None:
                found.append((one[1], one[2]))
        return found

    def arguments(self, **options: Any) -> dict[str, Any]:
        found = super().arguments(queue=self.queue, **options)
        if self.proxy is not None:
            found["server"] |= {"port": self.proxy.port}
        return found

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce_rabbitmq.server import RabbitMQ
        from sparkonce_rabbitmq.sinks.queue_sink import RabbitMQQueueSink

        return RabbitMQQueueSink(**{**arguments, "server": RabbitMQ(**arguments["server"])})

    def visible(self, *columns: str) -> list[Any]:  # noqa: ARG002 - messages have none
        found = [(about.headers[DEDUPLICATION_HEADER], int(body)) for about, body in self.peek(self.queue)]
        return [*dict(found).values()] if self._deduplicates else [number for _, number in found]


def new_super_stream(server: RabbitServer, partitions: int) -> tuple[str, Sequence[str]]:
    """Creates a super stream in the form that RabbitMQ 3.10 uses, an exchange. Returns its name and its streams."""
    import pika

    name = f"super-{secrets.token_hex(4)}"
    streams = [f"{name}-{number}" for number in range(partitions)]
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "direct", durable=True, arguments={"x-super-stream": True})
        for number, stream in enumerate(streams):
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
            order = {"x-stream-partition-order": number}
            channel.queue_bind(stream, name, str(number), arguments=order)
    return name, streams


@dataclass(frozen=True, slots=True)
class StreamClient:
    """Queries a server about streams, as a user with all permissions. Each request uses a new connection."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - the server's own default
    virtual_host: str = "/"
    answers_within_s: float = _ANSWERS_WITHIN_S

    def create(self, stream: str = "", **arguments: Any) -> str:
        """Creates an empty stream, by default with a new name, and returns the name."""
        name = stream or f"stream-{secrets.token_hex(6)}"
        self.ask(
            lambda client: client.create_stream(name, {key.replace("_", "-"): one for key, one in arguments.items()})
        )
        return name

    def delete(self, stream: str) -> None:
        self.ask(lambda client: client.delete_stream(stream))

    def sequence(self, stream: str, publisher: str) -> int:
        found: int = self.ask(lambda client: client.query_publisher_sequence(stream, publisher))
        return found

    def publish(
        self, stream: str, bodies: Sequence[bytes], publisher: str = "", first_id: int = 1, at_once: int = _AT_ONCE
    ) -> None:
        """Publishes messages, with this many per frame. Returns once all of them are confirmed."""
        self.ask(lambda client: _publish(client, stream, bodies, publisher, first_id, at_once))

    def publish_as(self, stream: str, publishers: Sequence[str], body: bytes) -> None:
        """Publishes one message under each of these names."""

        async def each(client: Any) -> None:
            for publisher in publishers:
                await _publish(client, stream, [body], publisher, 1, 1)
                await client.delete_publisher(0)

        self.ask(each)

    def messages(self, stream: str) -> list[bytes]:
        """Returns the current messages of a stream, in the order they were published."""
        end = f"sparkonce-end-{secrets.token_hex(8)}".encode()
        self.publish(stream, [end])  # Nothing else shows where a stream ends.
        found: list[bytes] = self.ask(lambda client: _read(client, stream, end))
        return [one for one in found if not one.startswith(b"sparkonce-end-")]

    def ask(self, question: Callable[[Any], Awaitable[_Answer]]) -> _Answer:
        """Sends a request. Retries it if a server that has just started has no leader for the stream."""
        from rstream.client import Client
        from rstream.exceptions import StreamNotAvailable

        async def run() -> _Answer:
            client = Client(self.host, self.port, frame_max=_FRAME_MAX, heartbeat=0)
            await client.start()
            try:
                await client.authenticate(self.virtual_host, self.user, self.password)
                return await question(client)
            finally:
                await client.close()

        give_up_at = time.monotonic() + self.answers_within_s
        while True:
            try:
                return asyncio.run(asyncio.wait_for(run(), self.answers_within_s))
            except StreamNotAvailable:
                if time.monotonic() >= give_up_at:
                    raise
            time.sleep(_POLL_S)


async def _publish(
    client: Any, stream: str, bodies: Sequence[bytes], publisher: str, first_id: int, at_once: int
) -> None:
    from rstream import schema

    left = 0
    done = asyncio.Event()

    def confirmed(frame: Any) -> None:
        nonlocal left
        left -= len(frame.publishing_ids)
        if left == 0:
            done.set()

    client.add_handler(schema.PublishConfirm, confirmed)
    await client.declare_publisher(stream, publisher, 0)
    for first in range(0, len(bodies), at_once):
        some = bodies[first : first + at_once]
        left = len(some)
        done.clear()
        messages = [schema.Message(first_id + first + at, None, body) for at, body in enumerate(some)]
        await client.send_publish_frame(schema.Publish(0, messages))
        await done.wait()


async def _read(client: Any, stream: str, end: bytes) -> list[bytes]:
    from rstream import schema

    client.add_handler(schema.Deliver, lambda _: None, name=str(_SUBSCRIPTION))
    await client.subscribe(stream, _SUBSCRIPTION, initial_credit=_CREDIT)
    found: list[bytes] = []
    while end not in found[-1000:]:
        frame = await client._frames[_SUBSCRIPTION].get()
        found += frame.get_messages()
        await client.credit(_SUBSCRIPTION, 1)
    return found

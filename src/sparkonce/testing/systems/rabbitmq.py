"""RabbitMQ's streams, asked by rstream's own client."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")
_CREDIT = 20
_SUBSCRIPTION = 0
_FRAME_MAX = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class StreamWitness:
    """A server, asked on a new connection each time.

    Attributes:
        host: Its address.
        port: Its port of the stream protocol.
        user: A user who may do everything.
        password: That user's password.
        virtual_host: The virtual host.
        answers_within_s: The longest wait for an answer, in seconds.
    """

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - the server's own default
    virtual_host: str = "/"
    answers_within_s: float = 60.0

    def create(self, stream: str = "", **arguments: Any) -> str:
        """Makes an empty stream, by default under a new name, and returns the name."""
        name = stream or f"stream-{secrets.token_hex(6)}"
        self.ask(
            lambda client: client.create_stream(name, {key.replace("_", "-"): one for key, one in arguments.items()})
        )
        return name

    def delete(self, stream: str) -> None:
        """Deletes a stream."""
        self.ask(lambda client: client.delete_stream(stream))

    def sequence(self, stream: str, publisher: str) -> int:
        """Returns a publisher's highest id."""
        found: int = self.ask(lambda client: client.query_publisher_sequence(stream, publisher))
        return found

    def publish(self, stream: str, bodies: Sequence[bytes], publisher: str = "", first_id: int = 1) -> None:
        """Publishes messages, and returns when all are confirmed."""
        self.ask(lambda client: _publish(client, stream, bodies, publisher, first_id))

    def publish_as(self, stream: str, publishers: Sequence[str], body: bytes) -> None:
        """Publishes one message under each of these names."""

        async def each(client: Any) -> None:
            for publisher in publishers:
                await _publish(client, stream, [body], publisher, 1)
                await client.delete_publisher(0)

        self.ask(each)

    def messages(self, stream: str) -> list[bytes]:
        """Returns the messages that are there now, in order, as they were published."""
        end = f"sparkonce-end-{secrets.token_hex(8)}".encode()
        self.publish(stream, [end])  # of a stream, nobody tells where it ends
        found: list[bytes] = self.ask(lambda client: _read(client, stream, end))
        return [one for one in found if not one.startswith(b"sparkonce-end-")]

    def ask(self, question: Callable[[Any], Awaitable[_Answer]]) -> _Answer:
        """Asks one thing; again, as long as a server that has just started is looking for the stream's leader."""
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


async def _publish(client: Any, stream: str, bodies: Sequence[bytes], publisher: str, first_id: int) -> None:
    from rstream import schema

    left = len(bodies)
    done = asyncio.Event()

    def confirmed(frame: Any) -> None:
        nonlocal left
        left -= len(frame.publishing_ids)
        if left == 0:
            done.set()

    client.add_handler(schema.PublishConfirm, confirmed)
    await client.declare_publisher(stream, publisher, 0)
    messages = [schema.Message(first_id + at, None, body) for at, body in enumerate(bodies)]
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

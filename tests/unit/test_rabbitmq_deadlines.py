"""Tests that each wait for RabbitMQ ends, even with a server that sends heartbeats and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from rstream import schema
from rstream.constants import Key, OffsetType
from rstream.encoding import encode_frame

from sparkonce_lab.rig.process import HOST
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.connection import PublisherConnection, StreamConnection
from sparkonce_rabbitmq.sinks.messages import Frame
from sparkonce_rabbitmq.stream.connection import ConsumerConnection

LIMIT = r"did not send {} within timeout_s=1"
BEAT_S = 0.02
LOGIN = {Key.PeerProperties, Key.SaslHandshake, Key.SaslAuthenticate, Key.Open}


class Beating:
    """A server that sends heartbeats, or the first bytes of one, and answers only requests of some kinds."""

    def __init__(self, answered: set[Key], beat: bytes = encode_frame(schema.Heartbeat())) -> None:
        self._answered, self._beat = answered, beat
        self._listener = socket.create_server((HOST, 0))
        self._ended = threading.Event()
        self.settings = RabbitMQ(host=HOST, stream_port=self._listener.getsockname()[1], timeout_s=1.0)
        self._threads = [threading.Thread(target=self._answer), threading.Thread(target=self._tick)]
        self._client: socket.socket | None = None
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        self._listener.close()
        for one in self._threads:
            one.join(10)
            assert not one.is_alive()

    def _answer(self) -> None:
        self._client, _ = self._listener.accept()
        self._threads[1].start()
        with suppress(OSError), self._client, self._client.makefile("rb") as requests:
            while head := requests.read(4):
                data = requests.read(int.from_bytes(head, "big"))
                key = Key(int.from_bytes(data[:2], "big"))
                if key in self._answered:
                    for frame in answers(key, int.from_bytes(data[4:8], "big")):
                        self._client.sendall(encoded(frame))

    def _tick(self) -> None:
        with suppress(OSError):
            while not self._ended.wait(BEAT_S):
                self._client.sendall(self._beat)


def answers(key: Key, number: int) -> list[schema.Frame]:
    return {
        Key.PeerProperties: [schema.PeerPropertiesResponse(number, 1, [])],
        Key.SaslHandshake: [schema.SaslHandshakeResponse(number, 1, ["PLAIN"])],
        Key.SaslAuthenticate: [schema.SaslAuthenticateResponse(number, 1), schema.Tune(1 << 20, 60)],
        Key.Open: [schema.OpenResponse(number, 1, [])],
        Key.Subscribe: [schema.SubscribeResponse(number, 1)],
    }[key]


def encoded(frame: schema.Frame) -> bytes:
    """The bytes of a frame; rstream writes no answers, and omits the bit that marks them."""
    data = bytearray(encode_frame(frame))
    data[4] |= 0x80 if hasattr(frame, "response_code") else 0
    return bytes(data)


@pytest.fixture
def serve() -> Iterator[Callable[..., RabbitMQ]]:
    servers: list[Beating] = []

    def start(answered: set[Key], **more: bytes) -> RabbitMQ:
        servers.append(Beating(answered, **more))
        return servers[-1].settings

    yield start
    for one in servers:
        one.close()


@pytest.mark.parametrize("kind", [PublisherConnection, ConsumerConnection])
@pytest.mark.parametrize("answered", [set(), LOGIN - {Key.Open}], ids=["greeting", "virtual host"])
def test_a_login(serve, kind, answered):
    with pytest.raises(TimeoutError, match=LIMIT.format("an answer")):
        kind(serve(answered))


def test_the_limits_of_a_server_and_a_login_byte_by_byte(serve, monkeypatch):
    with pytest.raises(TimeoutError, match=LIMIT.format("an answer")):
        StreamConnection(serve(set(), beat=b"\x01"))  # by its length, a frame of 16 MiB

    monkeypatch.setattr(f"{__name__}.answers", lambda key, number, known=answers: known(key, number)[:1])
    with pytest.raises(TimeoutError, match=LIMIT.format("its limits")):
        StreamConnection(serve(LOGIN))


def test_confirms_chunks_and_questions(serve):
    expected = pytest.raises(TimeoutError, match=LIMIT.format("all confirms"))
    with closing(PublisherConnection(serve(LOGIN))) as connection, expected:
        connection.publish(Frame(1, 1, memoryview(b"\0" * 13)))

    with closing(ConsumerConnection(serve({*LOGIN, Key.Subscribe}))) as connection:
        connection.subscribe("orders", OffsetType.FIRST, credit=1)
        with pytest.raises(TimeoutError, match=LIMIT.format("a chunk")):
            connection.next_chunk()

    expected = pytest.raises(TimeoutError, match=LIMIT.format("an answer"))
    with closing(StreamConnection(serve(LOGIN))) as connection, expected:
        connection.nodes_of("orders")

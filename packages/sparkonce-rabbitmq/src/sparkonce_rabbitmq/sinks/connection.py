"""A connection of the stream protocol: rstream's frames over a blocking socket, with a deadline for each wait.

This module replaces rstream's own client, which swallows socket errors, reads in pieces of 256 bytes, and waits without
a deadline. After that client reconnects, its producer republishes automatically, and its consumer continues at a wrong
offset.
"""

from __future__ import annotations

import io
import itertools
import random
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from rstream import schema
from rstream.constants import Key
from rstream.encoding import decode_frame, encode_frame

from sparkonce import __version__
from sparkonce.errors import OutageError

if TYPE_CHECKING:
    from sparkonce_rabbitmq.server import RabbitMQ
    from sparkonce_rabbitmq.sinks.messages import Frame

OK = 1
NO_STREAM = 2
NOT_AVAILABLE = 6
FINAL = frozenset({NO_STREAM, 7, 8, 9, 11, 12, 16})
"""The codes for which a retry cannot help."""

WORDS = {
    NO_STREAM: "the stream does not exist",
    NOT_AVAILABLE: "the stream is not available now",
    7: "the server has no login by user and password",
    8: "the user or password is wrong",
    9: "the login failed",
    11: "this user may only log in from the server's own machine",
    12: "the user has no access to the virtual host",
    14: "the frame is too large",
    15: "the server had an internal error",
    16: "the user lacks the right to do this",
    17: "the server does not accept it now: it has a memory or disk alarm",
    18: "the server has dropped the publisher: the stream's leader went down",
}

OUTAGES = (OSError, OutageError)
"""The errors after which a new connection may succeed. `OSError` includes those of sockets and TLS."""

_FRAME_MAX = 1 << 20
"""The maximum frame size if the server announces none."""
_BUFFERED = 1 << 18
_PARTITIONS = Key.Partitions.value.to_bytes(2, "big")
_CONFIRMED, _CONFIRM_HEAD = 3, 9
_PUBLISHER = 0
_TRIES = 30
"""The maximum number of attempts, per suitable node, to reach such a node through a load balancer."""

Answer = TypeVar("Answer", bound=schema.Frame)
Kind = TypeVar("Kind", bound="StreamConnection")
Node = tuple[str, int]


class StreamRefusedError(Exception):
    """The server rejected a request."""

    def __init__(self, request: str, code: int) -> None:
        super().__init__(f"{request}: {WORDS.get(code, f'the server answers with code {code}')}")
        self.code = code


class StreamConnection:
    """An open connection to a node.

    Every method raises OSError if the connection breaks, or if the server does not send the response in time, even if
    it sends other frames. The connection is then unusable. If the server rejects a request, the method raises the error
    that `refusal` returns.

    Args:
        server: The server and the user.
        address: The host and port of another node, as returned by `nodes_of`; None for those in ``server``.

    Attributes:
        address: The host and port that the connection leads to.
        advertised: This node's host and port, as returned by `nodes_of`.
        frame_max: The maximum frame size that the server accepts.
    """

    def __init__(self, server: RabbitMQ, address: Node | None = None) -> None:
        self.address = address or server.stream_address
        self._server = server
        self._numbers = itertools.count(1)
        context = server.ssl_context()
        self._socket = socket.create_connection(self.address, timeout=server.timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=self.address[0])
            self._incoming = _Incoming(self._socket)
            self._received = io.BufferedReader(self._incoming, _BUFFERED)
            self._log_in()
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        return "RabbitMQ at {}:{}".format(*self.address)

    def close(self) -> None:
        """Closes the connection. A frame in flight may still arrive."""
        with suppress(OSError):
            self._socket.close()

    def nodes_of(self, stream: str) -> Sequence[Node]:
        """Returns the addresses of the nodes that hold a stream, its leader first."""
        what = f"stream {stream!r}"
        answer = self._ask(schema.Metadata(next(self._numbers), streams=[stream]), schema.MetadataResponse, what)
        (about,) = answer.metadata
        if about.response_code != OK:
            raise self.refusal(about.response_code, what)
        brokers = {broker.reference: (broker.host, broker.port) for broker in answer.brokers}
        if about.leader_ref not in brokers:
            raise self.refusal(NOT_AVAILABLE, what)
        return [brokers[number] for number in (about.leader_ref, *about.replicas_refs) if number in brokers]

    def partitions_of(self, super_stream: str) -> Sequence[str]:
        """Returns the streams of a super stream, in partition order."""
        asked = schema.SuperStreamPartitions(next(self._numbers), super_stream=super_stream)
        return list(self._ask(asked, schema.SuperStreamPartitionsResponse, f"super stream {super_stream!r}").streams)

    def refusal(self, code: int, what: str) -> Exception:
        """Returns the error for a request that the server rejects with this code."""
        return StreamRefusedError(what, code)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _log_in(self) -> None:
        server = self._server
        told = {"product": "sparkonce", "version": __version__, "connection_name": "sparkonce"}
        properties = [schema.Property(key, value) for key, value in told.items()]
        self._ask(schema.PeerProperties(next(self._numbers), properties), schema.PeerPropertiesResponse, "no greeting")
        self._ask(schema.SaslHandshake(next(self._numbers)), schema.SaslHandshakeResponse, "no greeting")
        secret = f"\0{server.user}\0{server.password}".encode()
        login = schema.SaslAuthenticate(next(self._numbers), mechanism="PLAIN", data=secret)
        self._ask(login, schema.SaslAuthenticateResponse, f"user={server.user!r}")
        self._wait_for("its limits")
        while not isinstance(tune := self._take(), schema.Tune):
            pass
        self.frame_max = tune.frame_max or _FRAME_MAX
        # Turn heartbeats off, since nothing would answer them while Spark processes rows or has no batch to run.
        self._send(schema.Tune(frame_max=self.frame_max, heartbeat=0))
        opening = schema.Open(next(self._numbers), virtual_host=server.virtual_host)
        opened = self._ask(opening, schema.OpenResponse, f"virtual_host={server.virtual_host!r}")
        known = {one.key: one.value for one in opened.properties}
        host, port = self.address
        self.advertised = (known.get("advertised_host", host), int(known.get("advertised_port", port)))

    def _ask(self, asked: schema.Frame, kind: type[Answer], what: str) -> Answer:
        self._send(asked)
        self._wait_for("an answer")
        while True:
            frame = self._take()
            if isinstance(frame, kind) and frame.corr_id == asked.corr_id:
                if (code := getattr(frame, "response_code", OK)) != OK:
                    raise self.refusal(code, what)
                return frame

    def _send(self, frame: schema.Frame) -> None:
        self._send_bytes(encode_frame(frame))

    def _send_bytes(self, data: bytes) -> None:
        self._socket.settimeout(self._server.timeout_s)  # This is the time limit for sending all of the data.
        self._socket.sendall(data)

    def _wait_for(self, awaited: str) -> None:
        """Begins a wait for one kind of frame. Frames of other kinds do not extend the wait."""
        self._incoming.give_up_at = time.monotonic() + self._server.timeout_s
        self._awaited = awaited

    def _take(self) -> schema.Frame:
        return self._handled(self._frame())

    def _frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _handled(self, data: bytes) -> schema.Frame:
        """Decodes a frame that may be a response, and handles frames of other kinds."""
        if data[:2] == _PARTITIONS:  # RabbitMQ 3.10 puts the request's key into its response.
            data = b"\x80" + data[1:]
        try:
            frame: Any = decode_frame(data)
        except ValueError as error:  # This includes a chunk with a wrong checksum.
            raise ConnectionError(
                f"{self.where} sent a frame that cannot be read: {error.__cause__ or error}"
            ) from None
        if isinstance(frame, schema.Heartbeat):
            self._send(schema.Heartbeat())
        elif isinstance(frame, schema.Close):
            raise ConnectionError(f"{self.where} closed the connection: {frame.reason}")
        elif isinstance(frame, schema.MetadataUpdate):
            raise ConnectionError(f"{self.where}: the stream {frame.metadata_info.stream!r} has moved or is gone")
        return cast("schema.Frame", frame)

    def _exactly(self, count: int) -> bytes:
        try:
            found = self._received.read(count)
        except TimeoutError:
            raise TimeoutError(
                f"{self.where} did not send {self._awaited} within timeout_s={self._server.timeout_s:g}"
            ) from None
        if len(found) < count:
            raise ConnectionError(f"{self.where} closed the connection.")
        return found


class PublisherConnection(StreamConnection):
    """A connection that publishes to one stream, one frame at a time.

    A frame is sent only after all messages of the previous one are confirmed. If the server rejects a frame, it
    therefore never accepts a later one, whose higher ids would hide the rejected messages.
    """

    def sequence(self, stream: str, publisher: str) -> int:
        """Returns the highest publishing id of a publisher that the stream's leader remembers; 0 if it has none."""
        asked = schema.QueryPublisherSequence(next(self._numbers), publisher_ref=publisher, stream=stream)
        what = f"the publisher's last id in stream {stream!r} cannot be read"
        return self._ask(asked, schema.QueryPublisherSequenceResponse, what).sequence

    def declare(self, stream: str, publisher: str) -> None:
        """Declares the stream to publish to, and the publisher's name; an empty name stands for no name."""
        asked = schema.DeclarePublisher(
            next(self._numbers), publisher_id=_PUBLISHER, reference=publisher, stream=stream
        )
        self._ask(asked, schema.DeclarePublisherResponse, f"stream {stream!r} cannot be published to")

    def publish(self, frame: Frame) -> None:
        """Publishes messages, and waits until the server has confirmed each of them."""
        wire = bytearray(encode_frame(schema.Publish(publisher_id=_PUBLISHER, messages=[])))
        wire[-4:] = frame.count.to_bytes(4, "big")
        wire[:4] = (len(wire) - 4 + len(frame.payload)).to_bytes(4, "big")
        self._send_bytes(b"".join((wire, frame.payload)))
        self._wait_for("all confirms")
        unconfirmed = frame.count
        while unconfirmed:
            data = self._frame()
            if int.from_bytes(data[:2], "big") == _CONFIRMED:
                ids = np.frombuffer(data, dtype=">u8", offset=_CONFIRM_HEAD)
                unconfirmed -= int(np.count_nonzero((ids >= frame.first_id) & (ids < frame.first_id + frame.count)))
            elif isinstance(other := self._handled(data), schema.PublishError):
                raise self.refusal(other.errors[0].response_code, "the stream did not accept a message")


class _Incoming(io.RawIOBase):
    """The bytes that a socket receives until a deadline."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.give_up_at = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self.give_up_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        return self._socket.recv_into(buffer)


def connect_to(kind: type[Kind], server: RabbitMQ, stream: str, *, leader: bool = False) -> Kind:
    """Returns a connection to a node that holds a stream; ``server`` may be any node of the cluster.

    With ``leader``, connects to the leader, since messages that another node forwards may be lost. Otherwise, prefers a
    replica.

    Raises:
        Exception: See `StreamConnection.refusal`, if there is no such stream, or the login is rejected.
        OSError: If no node is reachable.
    """
    connection = kind(server)
    try:
        nodes = connection.nodes_of(stream)
    except BaseException:
        connection.close()
        raise
    wanted = _in_order(nodes, connection.advertised, leader=leader)
    # A node's own address may be unreachable from this machine, and is not needed if the connection already leads to
    # the node.
    if wanted[0] == connection.advertised:
        return connection
    problem: Exception | None = None
    for address in wanted * (_TRIES if server.load_balancer else 1):
        connection.close()
        try:
            connection = kind(server, None if server.load_balancer else address)
            # Query this node for the leader: the previous node may not know yet that the leader has changed.
            here = connection.advertised
            if here in wanted and (not leader or connection.nodes_of(stream)[0] == here):
                return connection
        except OUTAGES as error:
            problem = error
        except BaseException:
            connection.close()
            raise
    connection.close()
    raise problem or ConnectionError(f"No node of the stream {stream!r} was reached")


def _in_order(nodes: Iterable[Node], here: Node, *, leader: bool) -> list[Node]:
    """Returns the suitable nodes, the best one first."""
    first, *others = nodes
    if leader:
        return [first]
    random.shuffle(others)
    return sorted([*others, first], key=lambda node: node != here)  # Prefer the node that is already connected.

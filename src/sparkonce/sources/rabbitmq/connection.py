"""A connection of the stream protocol: rstream's frames over a blocking socket, with a deadline for each wait.

Neither rstream's ``Consumer`` nor its ``Client`` is used. They read in pieces of 256 bytes, wait without a deadline,
and after a reconnect continue at an offset that counts a sub-entry batch as one message.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from rstream import schema
from rstream.constants import Key, OffsetType
from rstream.encoding import decode_frame, encode_frame
from rstream.exceptions import (
    AccessRefused,
    AuthenticationFailure,
    ServerError,
    StreamDoesNotExist,
    VirtualHostAccessFailure,
)

from sparkonce.errors import OutageError, PreflightError, SparkonceError
from sparkonce.sinks.rabbitmq.server import RabbitMQ

Answer = TypeVar("Answer", bound=schema.Frame)

_FRAME_MAX = 1 << 20
_HEARTBEAT_S = 60
_BUFFERED = 1 << 18
_OK = 1
_PARTITIONS = Key.Partitions.value.to_bytes(2, "big")
_SUBSCRIPTION = 0
"""The number of a connection's one subscription."""

OUTAGES = (OSError, OutageError)
"""The errors after which a new connection may succeed. `OSError` has those of sockets and of TLS."""


class ConsumerConnection:
    """An open connection, which has at most one subscription.

    Args:
        server: The server's address and the login.
        address: Another node's host and port, as `nodes_of` gave it; None for the server's own.

    Attributes:
        advertised: This node's host and port, as `nodes_of` names it.

    Raises:
        PreflightError: if the server refuses the login or the virtual host, or is not trusted.
        OSError, OutageError: if it does not answer.
    """

    def __init__(self, server: RabbitMQ, address: tuple[str, int] | None = None) -> None:
        self.address = address or server.stream_address
        self._server = server
        self._correlation = 0
        self.advertised = ("", 0)
        self._delivered: deque[schema.Deliver] = deque()
        self._socket = socket.create_connection(self.address, timeout=server.timeout_s)
        try:
            if (context := server.ssl_context()) is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=self.address[0])
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._received = self._socket.makefile("rb", _BUFFERED)
            self._log_in()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise PreflightError(
                f"{self._where} shows a certificate that is not trusted: {error.verify_message}.",
                next_step="Check ca_file, and that host is a name in the server's certificate.",
                setting="ca_file",
            ) from None
        except BaseException:
            self.close()
            raise
        self.used_at = time.monotonic()

    def close(self) -> None:
        """Closes the socket. The server ends the subscription."""
        with suppress(OSError):
            self._socket.close()
        with suppress(OSError, AttributeError):
            self._received.close()

    def nodes_of(self, stream: str) -> Sequence[tuple[str, int]]:
        """Returns the addresses of the nodes that hold a stream, its leader first.

        Raises:
            PreflightError: if there is no such stream.
            OutageError: if it has no leader now.
        """
        answer = self._ask(schema.Metadata(self._number(), streams=[stream]), schema.MetadataResponse, stream)
        (about,) = answer.metadata
        if about.response_code != _OK:
            raise _error(about.response_code, stream, self._where)
        brokers = {broker.reference: (broker.host, broker.port) for broker in answer.brokers}
        if about.leader_ref not in brokers:
            raise OutageError(f"The stream {stream!r} has no leader now.", next_step="Read the server's log.")
        return [brokers[number] for number in (about.leader_ref, *about.replicas_refs) if number in brokers]

    def partitions_of(self, super_stream: str) -> Sequence[str]:
        """Returns the streams of a super stream, in the order of its partitions.

        Raises:
            PreflightError: if there is no such super stream.
        """
        frame = schema.SuperStreamPartitions(self._number(), super_stream=super_stream)
        return list(self._ask(frame, schema.SuperStreamPartitionsResponse, super_stream).streams)

    def subscribe(self, stream: str, kind: OffsetType, offset: int | None = None, *, credit: int) -> None:
        """Asks for chunks from this position on.

        Raises:
            PreflightError: if there is no such stream, or this user may not read it.
            OutageError: if this node does not have it now.
        """
        place = schema.OffsetSpec.from_params(kind, offset)
        frame = schema.Subscribe(
            self._number(),
            subscription_id=_SUBSCRIPTION,
            stream=stream,
            offset_spec=place,
            credit=credit,
            properties=[],
        )
        self._delivered.clear()
        self._ask(frame, schema.SubscribeResponse, stream)

    def unsubscribe(self, stream: str) -> None:
        """Ends the subscription. Chunks of it that were under way are dropped."""
        frame = schema.Unsubscribe(self._number(), subscription_id=_SUBSCRIPTION)
        self._ask(frame, schema.UnsubscribeResponse, stream)
        self._delivered.clear()

    def credit(self, chunks: int) -> None:
        """Allows the server to send so many more chunks."""
        self._send(schema.Credit(subscription_id=_SUBSCRIPTION, credit=chunks))

    def next_chunk(self) -> schema.Deliver:
        """Returns the subscription's next chunk.

        Raises:
            OSError: if none has come in time.
        """
        give_up_at = time.monotonic() + self._server.timeout_s
        while not self._delivered:
            self._take()
            if not self._delivered and time.monotonic() >= give_up_at:  # heartbeats came, and nothing else
                raise TimeoutError(f"{self._where} sent no chunk within {self._server.timeout_s:g} s")
        return self._delivered.popleft()

    def first_chunk(self, stream: str, kind: OffsetType, offset: int | None = None) -> schema.Deliver | None:
        """Returns the chunk at a position, or the first one after it; None if the server has none there now.

        The server answers a connection's requests in turn, and sends a subscription's first chunk before it reads the
        next request. So once a second question is answered, no chunk is under way.
        """
        self.subscribe(stream, kind, offset, credit=1)
        self.nodes_of(stream)
        found = self._delivered[0] if self._delivered else None
        self.unsubscribe(stream)
        return found

    def store_offset(self, stream: str, name: str, offset: int) -> None:
        """Stores an offset under a name, for tools that show lag. The server does not answer."""
        self._send(schema.StoreOffset(reference=name, stream=stream, offset=offset))

    def query_offset(self, stream: str, name: str) -> int:
        """Returns the offset that is stored under a name."""
        frame = schema.QueryOffset(self._number(), reference=name, stream=stream)
        return int(self._ask(frame, schema.QueryOffsetResponse, stream).offset)

    @property
    def _where(self) -> str:
        host, port = self.address
        return f"RabbitMQ at {host}:{port}"

    def _log_in(self) -> None:
        who = {"product": "sparkonce", "connection_name": "sparkonce"}
        properties = [schema.Property(key, value) for key, value in who.items()]
        self._ask(schema.PeerProperties(self._number(), properties=properties), schema.PeerPropertiesResponse)
        self._ask(schema.SaslHandshake(self._number()), schema.SaslHandshakeResponse)
        secret = b"\0" + self._server.user.encode() + b"\0" + self._server.password.encode()
        self._ask(
            schema.SaslAuthenticate(self._number(), mechanism="PLAIN", data=secret), schema.SaslAuthenticateResponse
        )
        while not isinstance(tune := self._take(), schema.Tune):
            pass
        self._send(
            schema.Tune(
                frame_max=min(_FRAME_MAX, tune.frame_max) or _FRAME_MAX, heartbeat=min(_HEARTBEAT_S, tune.heartbeat)
            )
        )
        opened = self._ask(schema.Open(self._number(), virtual_host=self._server.virtual_host), schema.OpenResponse)
        known = {one.key: one.value for one in opened.properties}
        self.advertised = (known.get("advertised_host", ""), int(known.get("advertised_port", 0)))

    def _number(self) -> int:
        self._correlation += 1
        return self._correlation

    def _send(self, frame: schema.Frame) -> None:
        self._socket.settimeout(self._server.timeout_s)
        self._socket.sendall(encode_frame(frame))

    def _ask(self, frame: schema.Frame, kind: type[Answer], stream: str = "") -> Answer:
        self._send(frame)
        give_up_at = time.monotonic() + self._server.timeout_s
        while True:
            if time.monotonic() >= give_up_at:
                raise TimeoutError(f"{self._where} did not answer within {self._server.timeout_s:g} s")
            answer = self._take()
            if isinstance(answer, kind) and answer.corr_id == frame.corr_id:
                if (code := getattr(answer, "response_code", _OK)) != _OK:
                    raise _error(code, stream, self._where)
                return answer

    def _take(self) -> schema.Frame:
        """Returns the next frame; keeps a chunk aside, too."""
        self._socket.settimeout(self._server.timeout_s)
        length = int.from_bytes(self._exactly(4), "big")
        try:
            frame: Any = decode_frame(_with_response_bit(self._exactly(length)))
        except ValueError as error:  # a chunk whose checksum is wrong, too
            raise ConnectionError(
                f"{self._where} sent a frame that cannot be read: {error.__cause__ or error}"
            ) from None
        self.used_at = time.monotonic()
        if isinstance(frame, schema.Deliver):
            self._delivered.append(frame)
        elif isinstance(frame, schema.Heartbeat):
            self._send(schema.Heartbeat())
        elif isinstance(frame, schema.Close):
            raise ConnectionError(f"{self._where} closed the connection: {frame.reason}")
        elif isinstance(frame, schema.MetadataUpdate):
            raise ConnectionError(f"{self._where}: the stream {frame.metadata_info.stream!r} has moved or is gone")
        return cast("schema.Frame", frame)

    def _exactly(self, count: int) -> bytes:
        found: bytes = self._received.read(count) or b""
        if len(found) < count:
            raise ConnectionError(f"{self._where} closed the connection.")
        return found


def _with_response_bit(frame: bytes) -> bytes:
    """Returns the frame. RabbitMQ 3.10 answers the question for partitions under the question's own key."""
    return b"\x80" + frame[1:] if frame[:2] == _PARTITIONS else frame


def _error(code: int, stream: str, where: str) -> SparkonceError:
    """Returns the error for a code of the protocol."""
    kind = ServerError.from_code(code)
    if kind is StreamDoesNotExist:
        return PreflightError(
            f"The stream {stream!r}, which this query reads, does not exist at {where}.",
            next_step="Create it, or correct its name or virtual_host; nothing here creates streams.",
            setting="streams",
        )
    if kind is AccessRefused:
        return PreflightError(
            f"The stream {stream!r} may not be read by this user at {where}.",
            next_step="Grant read on it: rabbitmqctl set_permissions.",
            setting="streams",
        )
    if kind in (AuthenticationFailure, VirtualHostAccessFailure):
        return PreflightError(
            f"{where} refused this user: {kind.__name__}.",
            next_step="Check user, password and virtual_host among the settings, and the user's rights there.",
            setting="user",
        )
    return OutageError(f"{where} answered with code {code} ({kind.__name__}).", next_step="Read the server's log.")

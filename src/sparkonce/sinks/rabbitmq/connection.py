"""One connection of the stream protocol that publishes one frame at a time.

rstream's own client is not used for this: it swallows errors of its socket, and its producer publishes again by itself
after it has connected again. Its frames are used.

**One frame at a time**: a frame is sent when all messages of the one before are confirmed. So a frame that the server
refuses is never followed by one that it takes, which would hide the refused messages: their ids are below then.
"""

from __future__ import annotations

import itertools
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rstream import schema
from rstream.encoding import decode_frame, encode_frame

from sparkonce.version import __version__

if TYPE_CHECKING:
    from sparkonce.sinks.rabbitmq.messages import Frame
    from sparkonce.sinks.rabbitmq.server import RabbitMQ

OK = 1
NO_STREAM = 2
NOT_AVAILABLE = 6
_NO_LEADER = 65535
_CONFIRMED, _CONFIRM_HEAD = 3, 9
_RESPONSE = 1 << 15
_PUBLISHER = 0
_TRIES = 30

WORDS = {
    2: "the stream does not exist",
    6: "the stream is not available now",
    7: "the server has no login by user and password",
    8: "the user or password is wrong",
    9: "the login failed",
    11: "this user may log in on the server's own machine only",
    12: "the user has no access to the virtual host",
    14: "the frame is too large",
    15: "the server had an internal error",
    16: "the user lacks the right to do this",
    17: "the server does not take it now: it has an alarm for memory or disk",
    18: "the server has given up the publisher: the stream's leader went away",
}

FINAL = frozenset({2, 7, 8, 9, 11, 12, 16})
"""The codes that no repeat changes."""

Response = TypeVar("Response", bound=schema.Frame)


class StreamRefusedError(Exception):
    """Raised for a request that the server refuses.

    Args:
        request: The request, in words.
        code: The server's code.
    """

    def __init__(self, request: str, code: int) -> None:
        super().__init__(f"{request}: {WORDS.get(code, f'the server answers with code {code}')}")
        self.code = code


class StreamConnection:
    """A connection to the node that leads a stream.

    Every method raises OSError if the connection breaks, or if the server does not answer in time; the connection is
    of no use then. It raises StreamRefusedError if the server refuses.

    Args:
        settings: The server and the user.
        stream: The stream's name.

    Attributes:
        frame_max: The greatest size of a frame that the server takes.
    """

    def __init__(self, settings: RabbitMQ, stream: str) -> None:
        self._settings = settings
        self._stream = stream
        self._numbers = itertools.count(1)
        self.frame_max = 0
        address = settings.stream_address
        for _ in range(_TRIES):
            here = self._open(address)
            try:
                leader = self._leader()
            except BaseException:
                self.close()
                raise
            # What a node forwards to a leader elsewhere may be lost in between. So messages go to the leader's node.
            if leader in (here, address):
                return
            self.close()
            address = settings.stream_address if settings.load_balancer else leader
        raise OSError(f"None of {_TRIES} connections reached {leader[0]}:{leader[1]}, the leader of {stream!r}.")

    def sequence(self, publisher: str) -> int:
        """Returns the highest publishing id of a publisher that the stream's leader remembers; 0 if it has none."""
        asked = schema.QueryPublisherSequence(next(self._numbers), publisher_ref=publisher, stream=self._stream)
        what = f"the publisher's last id in stream {self._stream!r} cannot be read"
        return self._request(asked, schema.QueryPublisherSequenceResponse, what).sequence

    def declare(self, publisher: str) -> None:
        """Says under which name this connection publishes; an empty one is no name."""
        asked = schema.DeclarePublisher(
            next(self._numbers), publisher_id=_PUBLISHER, reference=publisher, stream=self._stream
        )
        self._request(asked, schema.DeclarePublisherResponse, f"stream {self._stream!r} cannot be published to")

    def publish(self, frame: Frame) -> None:
        """Publishes messages, and waits until the server has confirmed each."""
        head = schema.Publish(publisher_id=_PUBLISHER, messages=[])
        wire = bytearray(encode_frame(head))
        wire[-4:] = frame.count.to_bytes(4, "big")
        wire[:4] = (len(wire) - 4 + len(frame.payload)).to_bytes(4, "big")
        self._socket.sendall(b"".join((wire, frame.payload)))
        unconfirmed = frame.count
        while unconfirmed:
            data = self._read()
            if int.from_bytes(data[:2], "big") != _CONFIRMED:
                self._take(decode_frame(data), f"stream {self._stream!r} did not take a message")
                continue
            ids = np.frombuffer(data, dtype=">u8", offset=_CONFIRM_HEAD)
            unconfirmed -= int(np.count_nonzero((ids >= frame.first_id) & (ids < frame.first_id + frame.count)))

    def close(self) -> None:
        """Closes it. A frame that is on its way may still arrive."""
        with suppress(OSError):
            self._file.close()
        self._socket.close()

    # --- how ----------------------------------------------------------------------------------------------------------

    def _open(self, address: tuple[str, int]) -> tuple[str, int]:
        """Connects and logs in, and returns the address by which the cluster knows this node."""
        settings = self._settings
        context = settings.ssl_context()
        opened = socket.create_connection(address, timeout=settings.timeout_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = opened if context is None else context.wrap_socket(opened, server_hostname=address[0])
        except BaseException:
            opened.close()
            raise
        self._file = self._socket.makefile("rb")
        try:
            return self._log_in(address)
        except BaseException:
            self.close()
            raise

    def _log_in(self, address: tuple[str, int]) -> tuple[str, int]:
        settings = self._settings
        told = [schema.Property(*one) for one in (("product", "sparkonce"), ("version", __version__))]
        self._request(schema.PeerProperties(next(self._numbers), told), schema.PeerPropertiesResponse, "no greeting")
        self._request(schema.SaslHandshake(next(self._numbers)), schema.SaslHandshakeResponse, "no greeting")
        login = schema.SaslAuthenticate(
            next(self._numbers), mechanism="PLAIN", data=f"\0{settings.user}\0{settings.password}".encode()
        )
        self._request(login, schema.SaslAuthenticateResponse, f"user={settings.user!r}")
        while not isinstance(tune := decode_frame(self._read()), schema.Tune):
            self._take(tune, "no greeting")
        self.frame_max = tune.frame_max
        # Without heartbeats: a connection that was idle is asked something before it publishes.
        self._send(schema.Tune(frame_max=tune.frame_max, heartbeat=0))
        opened = self._request(
            schema.Open(next(self._numbers), virtual_host=settings.virtual_host),
            schema.OpenResponse,
            f"virtual_host={settings.virtual_host!r}",
        )
        known = {one.key: one.value for one in opened.properties}
        return known.get("advertised_host", address[0]), int(known.get("advertised_port", address[1]))

    def _leader(self) -> tuple[str, int]:
        asked = schema.Metadata(next(self._numbers), streams=[self._stream])
        answer = self._request(asked, schema.MetadataResponse, f"stream {self._stream!r}")
        (found,) = answer.metadata
        if found.response_code != OK:
            raise StreamRefusedError(f"stream {self._stream!r}", found.response_code)
        brokers = {one.reference: (one.host, one.port) for one in answer.brokers}
        if found.leader_ref == _NO_LEADER or found.leader_ref not in brokers:
            raise StreamRefusedError(f"stream {self._stream!r}", NOT_AVAILABLE)
        return brokers[found.leader_ref]

    def _request(self, asked: schema.Frame, kind: type[Response], what: str) -> Response:
        self._send(asked)
        while True:
            frame = decode_frame(self._read())
            if isinstance(frame, kind) and frame.corr_id == asked.corr_id:
                code = getattr(frame, "response_code", OK)
                if code != OK:
                    raise StreamRefusedError(what, code)
                return frame
            self._take(frame, what)

    def _take(self, frame: Any, what: str) -> None:
        """Takes a frame that was not asked for: most end the connection."""
        if isinstance(frame, schema.PublishError):
            raise StreamRefusedError(what, frame.errors[0].response_code)
        if isinstance(frame, schema.Close):
            raise ConnectionError(f"The server closes the connection: {frame.reason}")
        if isinstance(frame, schema.MetadataUpdate):
            raise ConnectionError(f"The leader of stream {self._stream!r} went away.")

    def _send(self, frame: schema.Frame) -> None:
        self._socket.sendall(encode_frame(frame))

    def _read(self) -> bytes:
        length = int.from_bytes(self._exactly(4), "big")
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if data is None or len(data) < count:
            raise ConnectionError("The server closed the connection.")
        return data

"""A connection that reads a stream."""

from __future__ import annotations

import ssl
from collections import deque

from rstream import schema
from rstream.constants import OffsetType
from rstream.exceptions import ServerError

from sparkonce.errors import OutageError, PreflightError, SparkonceError
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.connection import NO_STREAM, Node, StreamConnection

_NO_LOGIN, _NO_VIRTUAL_HOST, _NO_RIGHT = 8, 12, 16
_SUBSCRIPTION = 0
"""The number of the only subscription of a connection."""


class ConsumerConnection(StreamConnection):
    """An open connection with at most one subscription.

    Raises:
        PreflightError: If the server rejects the login or the virtual host, or is not trusted.
        OSError, OutageError: If the server does not respond.
    """

    def __init__(self, server: RabbitMQ, address: Node | None = None) -> None:
        self._delivered: deque[schema.Deliver] = deque()
        try:
            super().__init__(server, address)
        except ssl.SSLCertVerificationError as error:
            raise PreflightError(
                f"{self.where} shows a certificate that is not trusted: {error.verify_message}.",
                next_step="Check ca_file, and that host is a name in the server's certificate.",
                setting="ca_file",
            ) from None

    def subscribe(self, stream: str, kind: OffsetType, offset: int | None = None, *, credit: int) -> None:
        """Requests chunks starting at this position.

        Raises:
            PreflightError: If there is no such stream, or this user may not read it.
            OutageError: If this node does not have the stream at the moment.
        """
        position = schema.OffsetSpec.from_params(kind, offset)
        frame = schema.Subscribe(
            next(self._numbers),
            subscription_id=_SUBSCRIPTION,
            stream=stream,
            offset_spec=position,
            credit=credit,
            properties=[],
        )
        self._delivered.clear()
        self._ask(frame, schema.SubscribeResponse, f"stream {stream!r}")

    def unsubscribe(self, stream: str) -> None:
        """Ends the subscription, and drops its chunks that are in flight."""
        frame = schema.Unsubscribe(next(self._numbers), subscription_id=_SUBSCRIPTION)
        self._ask(frame, schema.UnsubscribeResponse, f"stream {stream!r}")
        self._delivered.clear()

    def credit(self, chunks: int) -> None:
        """Allows the server to send this many more chunks."""
        self._send(schema.Credit(subscription_id=_SUBSCRIPTION, credit=chunks))

    def next_chunk(self) -> schema.Deliver:
        """Returns the subscription's next chunk; raises OSError if none arrives in time."""
        self._wait_for("a chunk")
        while not self._delivered:
            self._take()
        return self._delivered.popleft()

    def first_chunk(self, stream: str, kind: OffsetType, offset: int | None = None) -> schema.Deliver | None:
        """Returns the chunk at a position, or the first one after it; None if the server currently has no such chunk.

        The server handles a connection's requests in order, and sends a subscription's first chunk before it reads the
        next request. Once the server has answered a second request, no chunk can therefore be in flight.
        """
        self.subscribe(stream, kind, offset, credit=1)
        self.nodes_of(stream)
        found = self._delivered[0] if self._delivered else None
        self.unsubscribe(stream)
        return found

    def store_offset(self, stream: str, name: str, offset: int) -> None:
        """Stores an offset under a name, for tools that show lag. The server does not respond."""
        self._send(schema.StoreOffset(reference=name, stream=stream, offset=offset))

    def query_offset(self, stream: str, name: str) -> int:
        frame = schema.QueryOffset(next(self._numbers), reference=name, stream=stream)
        return int(self._ask(frame, schema.QueryOffsetResponse, f"stream {stream!r}").offset)

    def refusal(self, code: int, what: str) -> SparkonceError:
        kind = ServerError.from_code(code).__name__
        if code == NO_STREAM:
            return PreflightError(
                f"The {what}, which this query reads, does not exist at {self.where}.",
                next_step="Create it, or correct its name or virtual_host; nothing here creates streams.",
                setting="streams",
            )
        if code == _NO_RIGHT:
            return PreflightError(
                f"The {what} may not be read by this user at {self.where}.",
                next_step="Grant read on it: rabbitmqctl set_permissions.",
                setting="streams",
            )
        if code in (_NO_LOGIN, _NO_VIRTUAL_HOST):
            return PreflightError(
                f"{self.where} refused this user: {kind}.",
                next_step="Check user, password and virtual_host among the settings, and the user's rights there.",
                setting="user",
            )
        return OutageError(f"{self.where} answered with code {code} ({kind}).", next_step="Read the server's log.")

    def _handled(self, data: bytes) -> schema.Frame:
        frame = super()._handled(data)
        if isinstance(frame, schema.Deliver):
            self._delivered.append(frame)
        return frame

"""The segments of a stream and their creation times, which distinguish a stream from a later one with the same name.

Transaction ids do not distinguish streams: the ids are counters, and a new cluster starts counting again. Pravega's
public client does not return creation times. The request for creation times is the same as in
`SegmentMetadataClientImpl.fetchProperty`, but with a different attribute: ``Attributes.CREATION_TIME`` of Pravega's
segment store.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import Self

_CREATION_TIME = (-(2**63), 0)
"""The attribute's id, as the two halves of a UUID."""

_ANSWERS_WITHIN_S = 60


class StatusUnknownError(Exception):
    """Pravega did not report in time what happened to a transaction."""


class StreamSegments:
    """Queries a stream's segments. Use it as a context manager.

    Each method raises Py4JJavaError if there is no response, and StatusUnknownError if the response is inconclusive.
    """

    def __init__(self, jvm: Any, config: Any, scope: str, stream: str) -> None:
        self._jvm, self._scope, self._stream = jvm, scope, stream
        client = jvm.io.pravega.client
        self._segment = client.segment.impl.Segment
        self._raw = client.connection.impl.RawClient
        factory = client.connection.impl.SocketConnectionFactoryImpl(config)
        self._pool = client.connection.impl.ConnectionPoolImpl(config, factory)
        settings = client.control.impl.ControllerImplConfig.builder().clientConfig(config).build()
        self._controller = client.control.impl.ControllerImpl(settings, factory.getInternalExecutor())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.close()
        self._pool.close()

    def birth(self) -> str:
        """Returns a segment that currently accepts events, with its creation time.

        For example: ``scope/stream/0.#epoch.0@1795647840578``.
        """
        now = self._answer(self._controller.getCurrentSegments(self._scope, self._stream))
        name = min(str(one.getScopedName()) for one in now.getSegments())
        if not (created := self._created(name)):
            raise StatusUnknownError(f"Segment {name}, which is written to, does not exist.")
        return f"{name}@{created}"

    def has(self, birth: str) -> bool:
        """Returns True if the stream has the segment in ``birth``, with the same creation time.

        A segment that was truncated no longer exists.
        """
        name, _, created = birth.rpartition("@")
        return bool(created) and self._created(name) == created

    def _created(self, name: str) -> str:
        """Returns when a segment was created, in milliseconds since 1970; empty if it does not exist."""
        rights = self._jvm.io.pravega.shared.security.auth.AccessOperation.READ
        token = self._answer(self._controller.getOrRefreshDelegationTokenFor(self._scope, self._stream, rights))
        segment = self._segment.fromScopedName(name)
        raw = self._raw(self._controller, self._pool, segment)
        try:
            attribute = self._jvm.java.util.UUID(*_CREATION_TIME)
            number = raw.getFlow().getNextSequenceNumber()
            messages = self._jvm.io.pravega.shared.protocol.netty
            asked = getattr(messages, "WireCommands$GetSegmentAttribute")(number, name, attribute, token)
            answer = self._answer(raw.sendRequest(number, asked))
        finally:
            raw.close()
        kind = str(answer.getType().toString())
        if kind not in ("SEGMENT_ATTRIBUTE", "NO_SUCH_SEGMENT"):
            raise StatusUnknownError(f"Pravega does not report when segment {name} was created: {kind}.")
        return str(answer.getValue()) if kind == "SEGMENT_ATTRIBUTE" else ""

    def _answer(self, future: Any) -> Any:
        return future.get(_ANSWERS_WITHIN_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

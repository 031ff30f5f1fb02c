"""The segments of a stream, and the times at which Pravega made them, which tell it from a later one of its name.

Ids of transactions do not: they are counted, and a new cluster begins to count again. Pravega's public client does not
tell the times. The message that asks for them is that of `SegmentMetadataClientImpl.fetchProperty`, for another
attribute: ``Attributes.CREATION_TIME`` of Pravega's segment store.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import Self

_CREATION_TIME = (-(2**63), 0)
"""The attribute's id: the halves of a UUID."""

_ANSWERS_WITHIN_S = 60


class StatusUnknownError(Exception):
    """Raised if Pravega does not answer, or not in time, what became of a transaction."""


class StreamSegments:
    """Asks about a stream's segments. Use as a context manager.

    Without an answer, each method raises Py4JJavaError; after one that tells nothing, StatusUnknownError.

    Args:
        jvm: A JVM with Pravega's client.
        config: Its ``ClientConfig``.
        scope: The stream's scope.
        stream: Its name.
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
        """Returns a segment that is written to now, and when it was made: ``scope/stream/0.#epoch.0@1795647840578``."""
        now = self._answer(self._controller.getCurrentSegments(self._scope, self._stream))
        name = min(str(one.getScopedName()) for one in now.getSegments())
        if not (created := self._created(name)):
            raise StatusUnknownError(f"Segment {name}, which is written to, is not there.")
        return f"{name}@{created}"

    def has(self, birth: str) -> bool:
        """Tells whether the stream has the segment of `birth`, made at the same time. Not so once it is truncated."""
        name, _, created = birth.rpartition("@")
        return bool(created) and self._created(name) == created

    def _created(self, name: str) -> str:
        """Returns the milliseconds since 1970 at which a segment was made; empty if there is no such one."""
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
            raise StatusUnknownError(f"Pravega does not tell when segment {name} was made: {kind}.")
        return str(answer.getValue()) if kind == "SEGMENT_ATTRIBUTE" else ""

    def _answer(self, future: Any) -> Any:
        return future.get(_ANSWERS_WITHIN_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

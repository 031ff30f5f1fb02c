"""Asks a Pravega server by the Java client, apart from the sink: streams, and the events that a reader finds."""

from __future__ import annotations

from typing import Any

SCOPE = "tests"


class PravegaWitness:
    """Asks from a JVM with Pravega's client."""

    def __init__(self, jvm: Any, controller: str, *, login: tuple[str, str] | None = None, trusts: str = "") -> None:
        self._jvm, self.controller = jvm, controller
        self._pravega = jvm.io.pravega.client
        config = self._pravega.ClientConfig.builder().controllerURI(jvm.java.net.URI.create(controller))
        if trusts:
            config = config.trustStore(trusts)
        if login is not None:
            user, password = login
            config = config.credentials(jvm.io.pravega.shared.security.auth.DefaultCredentials(password, user))
        self.config = config.build()

    def create(self, stream: str, segments: int = 2) -> None:
        with_segments = self._pravega.stream.ScalingPolicy.fixed(segments)
        settings = self._pravega.stream.StreamConfiguration.builder().scalingPolicy(with_segments).build()
        manager = self._pravega.admin.StreamManager.create(self.config)
        try:
            manager.createScope(SCOPE)
            assert manager.createStream(SCOPE, stream, settings)
        finally:
            manager.close()

    def delete(self, stream: str) -> None:
        manager = self._pravega.admin.StreamManager.create(self.config)
        try:
            assert manager.sealStream(SCOPE, stream)
            assert manager.deleteStream(SCOPE, stream)
        finally:
            manager.close()

    def segments(self, stream: str) -> list[list[str]]:
        """The events of each segment, in order."""
        client = self._pravega.BatchClientFactory.withScope(SCOPE, self.config)
        cut = self._pravega.stream.StreamCut.UNBOUNDED
        text = self._jvm.java.nio.charset.StandardCharsets.UTF_8
        found = []
        try:
            ranges = client.getSegments(self._pravega.stream.Stream.of(SCOPE, stream), cut, cut).getIterator()
            while ranges.hasNext():
                events = client.readSegment(ranges.next(), self._pravega.stream.impl.ByteBufferSerializer())
                found.append([])
                while events.hasNext():
                    found[-1].append(str(text.decode(events.next()).toString()))
                events.close()
        finally:
            client.close()
        return found

    def events(self, stream: str) -> list[str]:
        return sorted(event for segment in self.segments(stream) for event in segment)

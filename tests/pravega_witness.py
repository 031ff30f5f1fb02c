"""Reads and changes streams of a Pravega server with the Java client, independently of the sink."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from jvm import bare_jvm, jars_beside_spark
from sparkonce.protocol.handles import Handle
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.proxy import Request
from sparkonce_lab.rig.servers.pravega import PravegaServer
from sparkonce_lab.systems.base import ServerSystem
from sparkonce_lab.systems.files import expire_rows, waiting_rows
from sparkonce_pravega import PravegaSink
from sparkonce_pravega.client import PravegaStream
from sparkonce_pravega.cluster import CLIENT_JAR

SCOPE = "tests"


class PravegaWitness:
    """Accesses Pravega through a JVM that has its client."""

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

    def _manager(self) -> closing[Any]:
        return closing(self._pravega.admin.StreamManager.create(self.config))

    @contextmanager
    def _controller(self) -> Iterator[Any]:
        impl = self._pravega.control.impl
        with closing(self._pravega.connection.impl.SocketConnectionFactoryImpl(self.config)) as pool:
            settings = impl.ControllerImplConfig.builder().clientConfig(self.config).build()
            with closing(impl.ControllerImpl(settings, pool.getInternalExecutor())) as controller:
                yield controller

    def create(self, stream: str, segments: int = 2) -> None:
        with_segments = self._pravega.stream.ScalingPolicy.fixed(segments)
        settings = self._pravega.stream.StreamConfiguration.builder().scalingPolicy(with_segments).build()
        with self._manager() as manager:
            manager.createScope(SCOPE)
            assert manager.createStream(SCOPE, stream, settings)

    def delete(self, stream: str) -> None:
        self.seal(stream)
        with self._manager() as manager:
            assert manager.deleteStream(SCOPE, stream)

    def write(self, stream: str, events: Sequence[str], key: Callable[[str], str] = lambda event: event[-1]) -> None:
        """Writes events. By default, the last character of an event is its routing key."""
        settings = self._pravega.stream.EventWriterConfig.builder().build()
        with closing(self._pravega.EventStreamClientFactory.withScope(SCOPE, self.config)) as client:
            writer = client.createEventWriter(stream, self._pravega.stream.impl.ByteBufferSerializer(), settings)
            for event in events:
                writer.writeEvent(key(event), self._jvm.java.nio.ByteBuffer.wrap(event.encode()))
            writer.flush()
            writer.close()

    def tail(self, stream: str) -> Any:
        """Returns the stream cut after the last event."""
        with self._manager() as manager:
            return manager.fetchStreamInfo(SCOPE, stream).get().getTailStreamCut()

    def truncate(self, stream: str, cut: Any) -> None:
        with self._manager() as manager:
            assert manager.truncateStream(SCOPE, stream, cut)

    def seal(self, stream: str) -> None:
        with self._manager() as manager:
            assert manager.sealStream(SCOPE, stream)

    def scale(self, stream: str, sealed: Sequence[int], into: Mapping[float, float]) -> None:
        """Seals segments and replaces them with new ones for the given key ranges."""
        java, lang = self._jvm.java.util, self._jvm.java.lang
        array, ranges = lang.reflect.Array.newInstance(lang.Long.TYPE, len(sealed)), java.TreeMap()
        for number, one in enumerate(sealed):
            array[number] = one  # py4j would convert the list to Integers
        ids = java.Arrays.stream(array).boxed().collect(java.stream.Collectors.toList())
        for low, high in into.items():
            ranges.put(low, high)
        threads = java.concurrent.Executors.newScheduledThreadPool(1)
        try:
            with self._controller() as controller:
                of = self._pravega.stream.Stream.of(SCOPE, stream)
                assert controller.scaleStream(of, ids, ranges, threads).getFuture().get()
        finally:
            threads.shutdownNow()

    def status(self, stream: str, transaction: str) -> str:
        """Returns the status of a transaction. Asking through a writer would renew the lease."""
        with self._controller() as controller:
            of = self._pravega.stream.impl.StreamImpl(SCOPE, stream)
            number = self._jvm.java.util.UUID.fromString(transaction)
            return str(controller.checkTransactionStatus(of, number).get().toString())

    def segments(self, stream: str, charset: str = "UTF_8") -> list[list[str]]:
        """Returns the events of each segment, in order."""
        cut, charsets = self._pravega.stream.StreamCut.UNBOUNDED, self._jvm.java.nio.charset.StandardCharsets
        text = getattr(charsets, charset)
        found: list[list[str]] = []
        with closing(self._pravega.BatchClientFactory.withScope(SCOPE, self.config)) as client:
            ranges = client.getSegments(self._pravega.stream.Stream.of(SCOPE, stream), cut, cut).getIterator()
            while ranges.hasNext():
                found.append([])
                serializer = self._pravega.stream.impl.ByteBufferSerializer()
                with closing(client.readSegment(ranges.next(), serializer)) as events:
                    while events.hasNext():
                        found[-1].append(str(text.decode(events.next()).toString()))
        return found

    def events(self, stream: str) -> list[str]:
        return sorted(event for segment in self.segments(stream) for event in segment)


class InOwnSession(PravegaSink):
    """The sink with a separate session, started when a run first accesses Pravega."""

    jars: tuple[str, ...] = ()
    jvm_flags = ""

    def _opened(self) -> PravegaStream:
        from pyspark.sql import SparkSession

        settings = {
            "spark.driver.extraClassPath": ":".join(self.jars),
            "spark.driver.extraJavaOptions": self.jvm_flags,
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
        }
        SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        return super()._opened()


class PravegaSystem(ServerSystem):
    """A Pravega server with its streams, and a proxy in front of its controller."""

    name = "pravega"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {"": {"commit": b"ControllerService/commitTransaction"}}

    def start(self, folder: Path) -> None:
        self._parent = folder
        server = PravegaServer(folder / "settings")
        self.start_own(server, None)
        self.start_proxy((HOST, server.port), self.REQUESTS[""])
        self._open = ExitStack()
        jvm = self._open.enter_context(bare_jvm(jars_beside_spark(CLIENT_JAR)))
        self.witness = PravegaWitness(jvm, server.url)

    def close(self) -> None:
        self._open.close()
        gc.collect()  # PySpark leaves open sockets in reference cycles

    def place(self, *columns: str) -> None:
        self.stream = f"stream-{secrets.token_hex(5)}"
        self.witness.create(self.stream)
        self.folder = self._parent / self.stream

    def drop_place(self) -> None:
        pass

    def arguments(self, **options: Any) -> dict[str, Any]:
        to = f"tcp://{HOST}:{self.proxy.port}"
        return {"controller": to, "scope": SCOPE, "stream": self.stream, "folder": self.folder, **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> InOwnSession:
        from startup import jvm_flags

        given = dict(arguments)
        sink = InOwnSession(given.pop("controller"), **given)
        sink.jars, sink.jvm_flags = tuple(map(str, jars_beside_spark(CLIENT_JAR))), jvm_flags()
        return sink

    def expire(self, handle: Handle) -> bool:
        return expire_rows(self.folder, handle)

    def visible(self, *columns: str) -> list[Any]:
        return [int(event) for event in self.witness.events(self.stream)]

    def left_open(self) -> Sequence[str]:
        return waiting_rows(self.folder)

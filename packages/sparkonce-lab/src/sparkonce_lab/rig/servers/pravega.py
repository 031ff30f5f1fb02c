"""Pravega for tests: controller, segment store and ZooKeeper in one Java process, with the data in memory.

A restarted server is empty. Parts that would listen on a fixed port (the REST servers and the gateway) are turned off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.jars import resolve
from sparkonce_lab.rig.process import HOST, Server, free_port

_LEFT_OUT = (
    "bc-fips",
    "hadoop-minicluster",
    "jsr311-api",
    "slf4j-reload4j",
    *(f"jersey-{part}" for part in ("core", "guice", "json", "servlet")),
)
_JARS = ("io.pravega:pravega-standalone:0.13.0", "com.google.protobuf:protobuf-java:3.21.12")

_CONTAINERS = 4  # the controller's default


class PravegaServer(Server):
    """A Pravega server, see `Server`. The address for clients is `url`."""

    up_within_s = 120.0

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self._settings = dict(settings or {})
        self._java = find_java()
        self._jars = resolve(_JARS, exclude=_LEFT_OUT)

    @property
    def url(self) -> str:
        return f"tcp://{HOST}:{self.port}"

    def initialise(self) -> None:
        settings = {
            "singlenode.zk.port": free_port(),
            "singlenode.segmentStore.port": free_port(),
            "singlenode.controller.rpc.port": self.port,
            "singlenode.controller.rest.port": free_port(),
            "singlenode.controller.rest.enable": "false",
            "singlenode.admin.gateway.enable": "false",
            **self._settings,
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "standalone.properties").write_text("".join(lines))
        (self.folder / "logback.xml").write_text(_LOGGING)

    def command(self) -> Sequence[str]:
        settings = {
            "singlenode.configurationFile": self.folder / "standalone.properties",
            "logback.configurationFile": self.folder / "logback.xml",
            "java.io.tmpdir": self.folder,
        }
        properties = [f"-D{name}={value}" for name, value in settings.items()]
        memory = ["-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        jars = ":".join(map(str, self._jars))
        return [self._java, *memory, *properties, "-cp", jars, "io.pravega.local.LocalPravegaEmulator"]

    def is_up(self) -> bool:
        """Returns True if the controller runs, and the segment store has started all containers.

        Until then, the store rejects writers, which may give up.
        """
        log = self.log.read_text() if self.pid is not None else ""
        return "Pravega Sandbox is running locally now" in log and log.count("has been registered.") >= _CONTAINERS


_LOGGING = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %level %logger{1} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
  <logger name="io.pravega.local" level="INFO"/>
  <logger name="io.pravega.segmentstore.server.host.ZKSegmentContainerMonitor" level="INFO"/>
</configuration>
"""

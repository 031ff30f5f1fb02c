"""One embedded Kafka node: a child process on loopback ports that can be stopped, killed, paused and started again."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Protocol

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.kafka.properties import HOST, PLAINTEXT, render, server_properties
from sparkonce_lab.rig.ports import is_free
from sparkonce_lab.rig.process import POLL_S, Restartable, ServerProcess, last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Surroundings(Protocol):
    """The cluster as a node of it needs it, see `sparkonce_lab.rig.kafka.cluster.Cluster`."""

    folder: Path
    listeners: dict[str, str]
    overrides: dict[str, str | int]
    dies_with_parent: bool

    @property
    def ports(self) -> Mapping[int, Mapping[str, int]]:
        """The ports of every node's listeners, by node id and name."""

    def java_command(self, main: str, *arguments: str) -> list[str]:
        """Returns the command that runs one of Kafka's main classes."""


class Broker(Restartable):
    """A node of a cluster, broker and controller at once. It keeps its ports and data when it starts again.

    Attributes:
        node_id: From 0.
        ports: The port of each listener, by name.
        folder: Holds ``server.properties``, ``server.log`` and ``data``.
        overrides: Broker properties of this node alone, applied when it starts the next time.
    """

    def __init__(self, cluster: Surroundings, node_id: int, ports: Mapping[str, int]) -> None:
        self.node_id = node_id
        self.ports = dict(ports)
        self.folder = cluster.folder / f"node-{node_id}"
        self.overrides: dict[str, str | int] = {}
        self._cluster = cluster

    @property
    def address(self) -> str:
        """``host:port`` of the plain listener."""
        return f"{HOST}:{self.ports[PLAINTEXT]}"

    @property
    def properties_file(self) -> Path:
        """The rendered settings. Its path is in the process's command line and identifies it."""
        return self.folder / "server.properties"

    @property
    def meta_file(self) -> Path:
        """The file that Kafka writes when it formats the data folder."""
        return self.folder / "data" / "meta.properties"

    @property
    def is_formatted(self) -> bool:
        """Tells whether there is a data folder to start with."""
        return self.meta_file.exists()

    @property
    def log(self) -> Path:
        """Everything that the broker prints."""
        return self.folder / "server.log"

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts it, and waits until it serves clients.

        Raises:
            ConfigurationError: if one of its ports is taken.
            PreflightError: if it ends or is not ready in time; the message has the end of its log.
        """
        self.launch()
        self.wait_ready({self.node_id}, time.monotonic() + timeout_s)

    def launch(self) -> None:
        """Starts it without waiting. Does nothing if it runs already."""
        if self.pid is not None:
            return
        for listener, port in self.ports.items():
            if not is_free(port):
                raise ConfigurationError(
                    f"Port {port} for the listener {listener} of node {self.node_id} is taken.",
                    next_step="End what listens there, or choose another port (0: any).",
                )
        self.write_properties()
        self._process = ServerProcess(
            self._cluster.java_command("kafka.Kafka", str(self.properties_file)),
            mark=str(self.properties_file),
            log=self.log,
            dies_with_parent=self._cluster.dies_with_parent,
        )

    def write_properties(self) -> None:
        """Renders the settings to `properties_file`."""
        settings = server_properties(
            self.node_id,
            self._cluster.ports,
            folder=self.folder,
            listeners=self._cluster.listeners,
            overrides={name: _text(value) for name, value in {**self._cluster.overrides, **self.overrides}.items()},
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.properties_file.touch(mode=0o600)  # listeners may have passwords
        self.properties_file.chmod(0o600)
        self.properties_file.write_text(render(settings))

    def wait_ready(self, nodes: set[int], give_up_at: float) -> None:
        """Waits until this broker answers a client and knows these nodes as alive.

        Args:
            nodes: Node ids.
            give_up_at: On the clock of ``time.monotonic``, in seconds.

        Raises:
            PreflightError: if it ends or is not ready by then; the message has the end of its log.
        """
        while not nodes <= self._known_nodes():
            ended = self._process is None or self._process.exit_code is not None
            if ended or time.monotonic() > give_up_at:
                what = "ended while it started" if ended else "was not ready in time"
                raise PreflightError(
                    f"Kafka node {self.node_id} {what}. The end of {self.log}:\n{self.log_tail()}\n",
                    next_step="Read the log; if it names a property, correct that override.",
                )
            time.sleep(POLL_S)

    def _known_nodes(self) -> set[int]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection((HOST, self.ports[PLAINTEXT]), timeout=1).close()
            # A new client each time knows no other broker that could answer instead.
            client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            return set(client.list_topics(timeout=2).brokers)
        except (OSError, KafkaException):
            return set()

    def restart(self, timeout_s: float = 60.0) -> None:
        """Stops it in order and starts it again. Raises what `start` raises."""
        self.stop()
        self.start(timeout_s)

    def log_tail(self, lines: int = 30) -> str:
        """Returns the last lines of its log."""
        return last_lines(self.log, lines)


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

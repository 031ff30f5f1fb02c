"""One embedded Kafka node: a child process on loopback ports that can be stopped, killed, paused and restarted."""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.process import HOST, POLL_S, Restartable, ServerProcess, is_free, last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkonce_lab.rig.kafka.cluster import Cluster


CONTROLLER = "CONTROLLER"
PLAINTEXT = "PLAINTEXT"
DEFAULTS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    # The first member of a consumer group need not wait for others.
    "group.initial.rebalance.delay.ms": "0",
    # Creating the broker's default of 50 partitions takes noticeable time, and tests do not need so many.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # Check often for transactions that exceed their timeout. The default of 10 s slows tests down.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # After a crash, a restarted broker is rejected until its previous session expires (default: 9 s).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Rows with old timestamps must not disappear from a trial.
    "log.retention.ms": "-1",
}


def server_properties(
    node: int,
    ports: Mapping[int, Mapping[str, int]],
    *,
    folder: Path,
    listeners: Mapping[str, str],
    overrides: Mapping[str, str],
) -> dict[str, str]:
    """Returns the settings of one node that is both broker and controller.

    Raises:
        ConfigurationError: If an override is not a valid property name.
    """
    for name in overrides:
        if not re.fullmatch(r"[\w.$-]+", name):
            raise ConfigurationError(
                f"{name!r} is not the name of a broker property.", next_step="Give properties as name=value."
            )
    served = [PLAINTEXT, *listeners]
    replicas = min(3, len(ports))
    in_sync = str(max(1, replicas - 1))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{id_}@{HOST}:{of[CONTROLLER]}" for id_, of in ports.items()),
        "controller.listener.names": CONTROLLER,
        "listeners": ",".join(f"{name}://{HOST}:{ports[node][name]}" for name in [*served, CONTROLLER]),
        "advertised.listeners": ",".join(f"{name}://{HOST}:{ports[node][name]}" for name in served),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}"
            for name, protocol in {PLAINTEXT: PLAINTEXT, CONTROLLER: PLAINTEXT, **listeners}.items()
        ),
        "inter.broker.listener.name": PLAINTEXT,
        "log.dirs": str(folder / "data"),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": in_sync,
        **DEFAULTS,
        **overrides,
    }


def render(properties: Mapping[str, str]) -> str:
    """Formats the properties as a file that Java can read."""
    return "".join(f"{name}={_escape(value)}\n" for name, value in properties.items())


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    # Java reads the file as Latin-1. Other characters need UTF-16 escapes.
    utf16 = escaped.encode("utf-16-be")
    units = (int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


class Broker(Restartable):
    """A node of a cluster, both broker and controller, that keeps its ports and data across restarts.

    Its folder contains ``server.properties``, ``server.log`` and ``data``. `overrides` has broker properties of only
    this node, applied at its next start.
    """

    def __init__(self, cluster: Cluster, node_id: int, ports: Mapping[str, int]) -> None:
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
        """The settings file. Its path in the command line identifies the broker's process."""
        return self.folder / "server.properties"

    @property
    def meta_file(self) -> Path:
        return self.folder / "data" / "meta.properties"

    @property
    def is_formatted(self) -> bool:
        return self.meta_file.exists()

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the broker, and waits until it serves clients.

        Raises:
            ConfigurationError: If one of its ports is taken.
            PreflightError: If it exits or is not ready in time. The message contains the end of its log.
        """
        self.launch()
        self.wait_ready({self.node_id}, time.monotonic() + timeout_s)

    def launch(self) -> None:
        """Starts the broker without waiting. Does nothing if it is already running."""
        if self.pid is not None:
            return
        for listener, port in self.ports.items():
            if not is_free(port):
                raise ConfigurationError(
                    f"Port {port} for the listener {listener} of node {self.node_id} is taken.",
                    next_step="Stop what listens there, or choose another port (0: any).",
                )
        self.write_properties()
        self._process = ServerProcess(
            self._cluster.java_command("kafka.Kafka", str(self.properties_file)),
            mark=str(self.properties_file),
            log=self.log,
            dies_with_parent=self._cluster.dies_with_parent,
        )

    def write_properties(self) -> None:
        settings = server_properties(
            self.node_id,
            self._cluster.ports,
            folder=self.folder,
            listeners=self._cluster.listeners,
            overrides={name: _text(value) for name, value in {**self._cluster.overrides, **self.overrides}.items()},
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.properties_file.touch(mode=0o600)  # Listeners may have passwords.
        self.properties_file.chmod(0o600)
        self.properties_file.write_text(render(settings))

    def wait_ready(self, nodes: set[int], give_up_at: float) -> None:
        """Waits until this broker responds to a client, and knows these other nodes. Raises the errors of `start`."""
        while not nodes <= self._known_nodes():
            ended = self._process is None or self._process.exit_code is not None
            if ended or time.monotonic() > give_up_at:
                what = "ended while it started" if ended else "was not ready in time"
                raise PreflightError(
                    f"Kafka node {self.node_id} {what}. The end of {self.log}:\n{last_lines(self.log, 30)}\n",
                    next_step="Read the log; if it names a property, correct that override.",
                )
            time.sleep(POLL_S)

    def _known_nodes(self) -> set[int]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection((HOST, self.ports[PLAINTEXT]), timeout=1).close()
            # Create a new client for each attempt: a client that knows other brokers could get the response from one of
            # them.
            client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            return set(client.list_topics(timeout=2).brokers)
        except (OSError, KafkaException):
            return set()

    def restart(self, timeout_s: float = 60.0) -> None:
        """Stops the broker normally, and starts it again. Raises the errors of `start`."""
        self.stop()
        self.start(timeout_s)


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

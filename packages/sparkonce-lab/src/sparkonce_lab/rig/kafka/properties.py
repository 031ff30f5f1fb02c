"""The settings of an embedded broker, as pure values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkonce.errors import ConfigurationError
from sparkonce_lab.rig.ports import HOST as HOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONTROLLER = "CONTROLLER"
PLAINTEXT = "PLAINTEXT"

DEFAULTS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    # A consumer group's first member need not wait for others.
    "group.initial.rebalance.delay.ms": "0",
    # The broker's own 50 take a noticeable time to make, and are for larger loads than this.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # How often the coordinator looks for transactions beyond their timeout; the broker's own 10 s make tests wait.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A broker that comes back after a crash is refused until its old session has expired (the broker's own: 9 s).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Rows with old timestamps must not vanish from a trial.
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
    """Makes the settings of one node that is broker and controller at once.

    Args:
        node: Which of the nodes in ``ports``.
        ports: Of every node of the cluster, the port of each listener, CONTROLLER and PLAINTEXT included.
        folder: Where the node keeps its data.
        listeners: Listeners beside those two, by name, with their security protocol.
        overrides: Broker properties that win over everything here.

    Raises:
        ConfigurationError: if an override is no property's name.
    """
    for name in overrides:
        if not re.fullmatch(r"[\w.$-]+", name):
            raise ConfigurationError(
                f"{name!r} is no name of a broker property.", next_step="Give properties as name=value."
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
    """Renders the properties as the text of a file that Java reads."""
    return "".join(f"{name}={_escape(value)}\n" for name, value in properties.items())


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    # Java reads the file as Latin-1 and has UTF-16 escapes for the rest.
    utf16 = escaped.encode("utf-16-be")
    units = (int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)

"""Kafka's MirrorMaker 2, a process of its own, which copies topics from one cluster to another."""

from __future__ import annotations

import secrets
from pathlib import Path

from typing_extensions import Self

from sparkonce.rig.kafka import FAST_START, Cluster, resolve
from sparkonce.rig.kafka.jars import find_java, kafka_jars
from sparkonce.rig.ports import HOST, free_port
from sparkonce.rig.process import Restartable, ServerProcess, last_lines

READ_COMMITTED = {"OLD.consumer.isolation.level": "read_committed"}
EXACTLY_ONCE = {
    "NEW.exactly.once.source.support": "enabled",
    "dedicated.mode.enable.internal.rest": "true",
}
SAME_NAMES = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
"""Settings as Kafka's own page on MirrorMaker gives them. OLD and NEW stand for the names of the clusters."""

_SOON = {
    "refresh.topics.interval.seconds": "1",
    "NEW.scheduled.rebalance.max.delay.ms": "0",
    "NEW.session.timeout.ms": "6000",
    "NEW.heartbeat.interval.ms": "1000",
}
"""What it waits for is not what is tested: new topics, and itself once it was killed."""

_REPLICAS = ("replication", "offset.storage.replication", "config.storage.replication", "status.storage.replication")


class MirrorMaker(Restartable):
    """MirrorMaker from one cluster to another, of the version of the second one. Use as a context manager.

    Args:
        folder: For its settings and its log.
        old: The cluster that it reads.
        new: The cluster that it writes to.
        topics: A pattern.
        settings: More of its properties, or others.

    Attributes:
        log: What it prints.
        alias: The name of the old cluster in its settings, its own for each: in the new cluster it keeps by this name
            what it has copied.
    """

    def __init__(self, folder: Path, old: Cluster, new: Cluster, topics: str, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "mirror.log"
        self.alias = f"old{secrets.token_hex(4)}"
        self._file = folder / "mirror.properties"
        self._version = new.version
        given = {
            "clusters": "OLD,NEW",
            "OLD.bootstrap.servers": old.bootstrap,
            "NEW.bootstrap.servers": new.bootstrap,
            "OLD->NEW.enabled": "true",
            "OLD->NEW.topics": topics,
            "listeners": f"http://{HOST}:{free_port()}",
            "emit.heartbeats.enabled": "false",
            "emit.checkpoints.enabled": "false",
            "sync.topic.acls.enabled": "false",
            "offset-syncs.topic.replication.factor": "1",
            **{f"{name}.factor": "1" for name in _REPLICAS},
            **_SOON,
            **settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in given.items())
        self._file.write_text(text.replace("OLD", self.alias).replace("NEW", "new"))

    def topic(self, name: str) -> str:
        """Returns the name of a topic's copy, by MirrorMaker's default."""
        return f"{self.alias}.{name}"

    def log_tail(self) -> str:
        return last_lines(self.log, 40)

    def start(self) -> None:
        """Starts it without waiting: what it has copied is asked of the cluster that it writes to."""
        jars = [*resolve([f"org.apache.kafka:connect-mirror:{self._version}"]), *kafka_jars(self._version)[-1:]]
        classes = ":".join(map(str, jars))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        self._process = ServerProcess(
            [find_java(), "-Xmx256m", *FAST_START, "-cp", classes, main, str(self._file)],
            mark=str(self._file),
            log=self.log,
            dies_with_parent=True,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

"""A query's topic is mirrored by MirrorMaker 2, and the query moves to the mirror. Both clusters are asked."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import Self

from eventually import eventually
from integration.kafka_witness import LIMIT_S, Witness, new_name
from small_job import SmallJob
from sparkonce.errors import PreflightError, UnknownOutcomeError
from sparkonce.operate.java import find_java
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.rig.kafka import FAST_START, Cluster, resolve
from sparkonce_lab.rig.kafka.jars import kafka_jars
from sparkonce_lab.rig.ports import HOST, free_port
from sparkonce_lab.rig.process import Restartable, ServerProcess, last_lines

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


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


COPIED_WITHIN_S = 180.0
"""MirrorMaker takes as long to start as a broker, and after a kill its group waits for what is gone."""


def values(*batches: int) -> list[str]:
    return sorted(f"{batch}.{slot}" for batch in batches for slot in range(2))


def test_a_query_whose_target_moves_goes_on_at_the_mirror(tmp_path: Path) -> None:
    topic, sink = new_name(), dict[str, Any]()
    with Cluster() as old, Cluster() as new:
        at_old, at_new = Witness(old.bootstrap), Witness(new.bootstrap)
        cluster = old
        at_old.create_topic(name=topic)
        job = SmallJob(
            tmp_path / "checkpoint",
            lambda: [KafkaSink({"bootstrap.servers": cluster.bootstrap}, topic=topic, **sink)],
            lambda batch, slot: pa.record_batch({"value": [f"{batch}.{slot}"]}),
            deadline_s=10.0,
        )
        job.run(0)
        job.kill(1, Phase.DECIDING)
        with MirrorMaker(
            tmp_path / "mirror", old, new, topic, **READ_COMMITTED, **EXACTLY_ONCE, **SAME_NAMES
        ) as mirror:

            def await_copy(expected: list[str]) -> None:
                eventually(
                    lambda: (
                        topic in at_new.admin.list_topics(timeout=LIMIT_S).topics
                        and at_new.committed(topic) == expected
                    ),
                    f"the mirror has {expected}",
                    limit_s=COPIED_WITHIN_S,
                )

            await_copy(values(0))
            mirror.kill()
            mirror.start()
            job.run(1)  # the transactions of its first attempt are aborted, and not copied
            job.kill(2, Phase.FINISHING)
            cluster, sink = new, {"former_cluster_id": old.cluster_id}
            with pytest.raises(UnknownOutcomeError, match="INVALID_PRODUCER_ID_MAPPING"):
                job.run(2)
            cluster, sink = old, {"former_cluster_id": new.cluster_id}
            job.run(2)  # the old cluster finishes what is decided
            await_copy(values(0, 1, 2))
            assert mirror.stop(), "in order"
        cluster, sink = new, {}
        with pytest.raises(PreflightError, match=f"leads to the cluster '{new.cluster_id}'") as refused:
            job.run(3)
        assert f"former_cluster_id={old.cluster_id!r}" in refused.value.next_step
        assert at_new.committed(topic) == values(0, 1, 2)
        sink = {"former_cluster_id": old.cluster_id}
        job.run(3)
        job.kill(4, Phase.FINISHING)
        job.run(4, 5)
        assert at_new.committed(topic) == values(0, 1, 2, 3, 4, 5)
        assert at_old.committed(topic) == values(0, 1, 2)

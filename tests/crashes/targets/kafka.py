"""Kafka: the embedded broker, which advertises the proxy to whom comes through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from crashes.target import Target, new_name
from kafka_transactions import await_markers
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.broker import Broker
from sparkonce.rig.proxy import FaultProxy
from sparkonce.rig.servers.process import HOST
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.testing.kafka import create_topic, read_committed
from sparkonce.testing.kafka_reader import KafkaReader
from sparkonce.testing.systems.kafka import KafkaWitness

THROUGH = "PROXY"
PARTITIONS = 2
_GLANCE_S = 0.03


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})


class KafkaTarget(Target):
    name = "kafka"
    preload = (
        "confluent_kafka.admin",
        "kafka.admin",
        "sparkonce.sinks.kafka.writer",
        "sparkonce.sinks.kafka.committer",
        "sparkonce.sinks.kafka.preflight",
    )
    requests = KafkaWitness.requests["two_phase"]
    changes_late = ("abort",)  # which gives the id a newer epoch
    marks = (pytest.mark.kafka,)
    can_restart = can_pause = True
    choice = "light"
    rows = staticmethod(rows)
    _reader: KafkaReader | None = None
    _seen: list[int]

    def start(self, folder: Path) -> None:
        self._cluster = Cluster(listeners={THROUGH: "PLAINTEXT"}, folder=folder)
        self.proxy = FaultProxy((HOST, self._broker.ports[THROUGH]), self.requests)
        self.proxy.start()
        self._broker.overrides["advertised.listeners"] = (
            f"PLAINTEXT://{self._broker.address},{THROUGH}://{self.proxy.address}"
        )
        self._cluster.start()
        self.witness = KafkaWitness(self._cluster.bootstrap)

    @property
    def _broker(self) -> Broker:
        return self._cluster.brokers[0]

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def stop(self) -> None:
        self._close_reader()
        self.proxy.close()
        self._broker.kill()
        self._cluster.close()

    def new_place(self) -> None:
        self.topic = new_name()
        create_topic(self._cluster.bootstrap, self.topic, PARTITIONS)
        self._close_reader()
        self._reader, self._seen = KafkaReader(self._cluster.bootstrap, self.topic, PARTITIONS, wait_ms=10), []

    def make_sink(self) -> TwoPhaseCommitSink:
        settings = {"bootstrap.servers": self.proxy.address, "message.timeout.ms": 10_000, "socket.timeout.ms": 2_000}
        return KafkaSink(settings, topic=self.topic)

    def visible(self) -> Sequence[int]:
        return [int(record.value or b"-1") for record in read_committed(self._cluster.bootstrap, self.topic)]

    def glance(self) -> Sequence[int]:
        if self._reader is not None:
            self._seen += [int(message.value() or b"-1") for message in self._reader.read(_GLANCE_S)]
        return list(self._seen)

    def lingering(self) -> Sequence[str]:
        return [one.transactional_id for one in self.witness.transactions("Ongoing")]

    def state(self) -> object:
        """With the producers that the broker knows: to initialise an id makes a newer one."""
        known = self.witness.transactions()
        producers = sorted((one.transactional_id, one.producer_id, one.producer_epoch) for one in known)
        return super().state(), producers

    def kill(self) -> None:
        await_markers(self._cluster.bootstrap)
        self._broker.kill()

    def revive(self) -> None:
        self._broker.start()

    def pause(self) -> None:
        self._broker.pause()

    def resume(self) -> None:
        self._broker.resume()

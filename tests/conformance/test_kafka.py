from __future__ import annotations

import secrets
from collections.abc import Sequence

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.rig.kafka import Cluster
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.testing.conformance import SinkConformance
from sparkonce.testing.kafka import create_topic, read_committed

pytestmark = pytest.mark.kafka


class KafkaSuite(SinkConformance):
    def settle(self, cluster: Cluster) -> None:
        """Gives the check a topic of its own."""
        self.cluster = cluster
        self.settings = {"bootstrap.servers": cluster.bootstrap}
        self.topic = f"conformance-{secrets.token_hex(6)}"
        create_topic(cluster.bootstrap, self.topic)

    def make_sink(self) -> KafkaSink:
        return KafkaSink(self.settings, topic=self.topic)

    def make_second_sink(self) -> KafkaSink:
        return KafkaSink(self.settings, topic=self.topic, name="beside")

    def make_direct_sink(self) -> KafkaSink:
        return KafkaSink(self.settings, topic=self.topic, guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [f"{number}".zfill(1_100_000)]})

    def visible(self) -> Sequence[int]:
        return [int(record.value or b"-1") for record in read_committed(self.cluster.bootstrap, self.topic)]

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def expire(self, handle: Handle) -> bool:
        # The broker's own timeout comes after 10 s at the earliest; a newer initialisation ends it the same way.
        newer = Producer({**self.settings, "transactional.id": str(handle["transactional_id"])})
        newer.init_transactions(60.0)
        return True


class TestKafkaSink(KafkaSuite):
    @pytest.fixture(autouse=True)
    def _topic(self, broker: Cluster) -> None:
        self.settle(broker)


class CrashingSuite(KafkaSuite):
    def restart_server(self) -> bool:
        (node,) = self.cluster.brokers
        node.kill()
        node.start()
        return True


@KILLS_BROKER
def test_what_is_prepared_survives_a_crash_of_the_broker() -> None:
    suite = CrashingSuite()
    suite.settle(broker_to_kill())
    suite.test_what_is_prepared_survives_a_restart_of_the_system()

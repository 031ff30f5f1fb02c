"""The Kafka sink on the oldest broker that is promised, which aborts in the first protocol of transactions.

Its other versions, and kills on each, are run by ``python3 dev.py versions``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from versions.table import BROKERS

from conformance.test_kafka import KafkaSuite
from sparkonce.rig.kafka import Cluster

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def oldest() -> Iterator[Cluster]:
    with Cluster(version=BROKERS[0].kafka, overrides={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.mark.drawn(5, "conformance of Kafka's oldest broker")
class TestOldestBroker(KafkaSuite):
    @pytest.fixture(autouse=True)
    def _topic(self, oldest: Cluster) -> None:
        self.settle(oldest)

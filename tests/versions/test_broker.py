"""The brokers under test have the version, and the level of transactions, that were asked for.

``python3 dev.py versions`` runs this with each version, before the sink's tests.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka import KafkaAdminClient

from sparkonce.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.versions, pytest.mark.slow]


def test_the_brokers_are_those_that_were_asked_for(request: pytest.FixtureRequest, broker: Cluster) -> None:
    version, level = (request.config.getoption(name, default=None) for name in ("--kafka", "--transactions"))
    if version is None:
        pytest.skip("no version is asked for: see versions.plugin")
    assert broker.version == version
    assert f"Kafka version: {version}" in broker.brokers[0].log.read_text()
    if level is not None:
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            features = admin.describe_features()
        assert features["transaction.version"]["finalized"] == (level, level)

from __future__ import annotations

import pytest

from sparkonce.sinks.kafka import transaction_client
from unit.driver_world import World
from unit.kafka_world import Brokers


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.fixture
def brokers(monkeypatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(transaction_client, "KafkaConnection", lambda _: made)
    return made

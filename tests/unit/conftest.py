from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.sinks.kafka import transaction_client
from unit.driver_world import World
from unit.kafka_world import Brokers


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(transaction_client, "KafkaConnection", lambda _: made)
    return made

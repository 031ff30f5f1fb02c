"""What is known about a producer's transaction: its first identity, and the batch that its lane was last used for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from sparkonce.protocol.ownership import LanePool
from sparkonce.sinks.kafka.pooled_producer import Reports
from sparkonce.sinks.kafka.producer_pool import ProducerPool


def test_a_producer_keeps_the_first_identity_whatever_the_brokers_say_later() -> None:
    reports = Reports()
    reports.on_identity(7, 0)
    reports.on_identity(7, 1)  # librdkafka bumps the epoch itself after an error
    reports.on_stats(json.dumps({"eos": {"txn_state": "Ready", "producer_id": 8, "producer_epoch": 0}}))
    assert reports.identity == (7, 0)
    assert not reports.is_by_statistics


def test_statistics_that_come_just_before_the_log_do_not_stand_for_a_log_in_other_words() -> None:
    reports = Reports()
    reports.on_stats(json.dumps({"eos": {"txn_state": "Ready", "producer_id": 7, "producer_epoch": 0}}))
    assert (reports.identity, reports.is_by_statistics) == ((7, 0), True)
    reports.on_identity(7, 0)
    assert (reports.identity, reports.is_by_statistics) == ((7, 0), False)


def test_a_lane_that_carried_a_transaction_is_lent_again_two_batches_later() -> None:
    pool: Any = ProducerPool(lambda number: None, lambda pooled: None, 8, lambda work: None)  # type: ignore[arg-type,return-value]
    pool._lanes, lane = LanePool().lend(5)
    pool._lanes, younger = pool._lanes.lend(5)
    pool.retire(SimpleNamespace(lane=lane), 5)
    pool.retire(SimpleNamespace(lane=younger), 6)
    assert pool._lanes.lend(6)[1] not in (lane, younger), "the next batch may begin before the last one is decided"
    assert pool._lanes.lend(7)[1] == lane

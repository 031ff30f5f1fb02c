from __future__ import annotations

import ctypes
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from eventually import eventually
from sparkonce.protocol.ownership import LanePool
from sparkonce.sinks.kafka.batch_producer import OncePerBroker
from sparkonce.sinks.kafka.pooled_producer import PooledProducer, Reports
from sparkonce.sinks.kafka.producer_pool import ProducerPool

FENCED = KafkaError(KafkaError._FENCED, "an old epoch", fatal=True)


def raise_bare_error() -> None:
    """Raises a bare KafkaError, which a Python ``raise`` does not allow."""
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes, restore.restype = [ctypes.py_object, ctypes.py_object, ctypes.c_void_p], None
    for kept in (KafkaError, FENCED):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    restore(KafkaError, FENCED, None)


def raise_exception() -> None:
    raise KafkaException(FENCED)


def raise_without_a_cause() -> None:
    raise SystemError("returned NULL without setting an exception")


@pytest.mark.parametrize("failing", [raise_bare_error, raise_exception, raise_without_a_cause])
def test_a_fatal_error_is_kept_however_it_comes(failing):
    """confluent-kafka 2.16.1 raises a bare error if a producer is fenced while two threads use it."""
    pooled = SimpleNamespace(
        producer=SimpleNamespace(flush=lambda _: failing()),
        reports=SimpleNamespace(fatal=""),
        transactional_id="id",
        abort_reason=lambda: "an old epoch",
    )
    PooledProducer._serve(pooled, "flush", 0.0)
    assert pooled.reports.fatal == "an old epoch"


def test_a_producer_keeps_the_first_identity_whatever_the_brokers_say_later():
    reports = Reports()
    reports.on_identity(7, 0)
    reports.on_identity(7, 1)  # librdkafka bumps the epoch itself after an error
    reports.on_stats(json.dumps({"eos": {"txn_state": "Ready", "producer_id": 8, "producer_epoch": 0}}))
    assert reports.identity == (7, 0)
    assert not reports.is_by_statistics


def test_statistics_that_come_just_before_the_log_do_not_stand_for_a_log_in_other_words():
    reports = Reports()
    reports.on_stats(json.dumps({"eos": {"txn_state": "Ready", "producer_id": 7, "producer_epoch": 0}}))
    assert (reports.identity, reports.is_by_statistics) == ((7, 0), True)
    reports.on_identity(7, 0)
    assert (reports.identity, reports.is_by_statistics) == ((7, 0), False)


def test_a_lane_that_carried_a_transaction_is_lent_again_two_batches_later():
    pool: Any = ProducerPool(lambda number: None, lambda pooled: None, 8, lambda work: None)
    pool._lanes, lane = LanePool().lend(5)
    pool._lanes, younger = pool._lanes.lend(5)
    pool.retire(SimpleNamespace(lane=lane), 5)
    pool.retire(SimpleNamespace(lane=younger), 6)
    assert pool._lanes.lend(6)[1] not in (lane, younger), "the next batch may begin before the last one is decided"
    assert pool._lanes.lend(7)[1] == lane


def shown(each: OncePerBroker, text: str) -> str:
    record = logging.LogRecord("librdkafka", logging.ERROR, "", 0, text, (), None)
    return record.getMessage() if each.filter(record) else ""


def test_a_line_a_second_for_each_broker_and_kind_whichever_producer_says_it():
    refused_line = "FAIL [rdkafka#producer-%d] [thrd:%s/bootstrap]: %s: Connect failed: Connection refused (after %dms)"
    now = [0.0]
    each = OncePerBroker(lambda: now[0])
    for step in range(300):
        now[0] = step / 100
        lines = [shown(each, refused_line % (step % 7, broker, broker, step)) for broker in ("a:1", "b:2")]
        assert all(lines) is any(lines) is (step % 100 == 0)
        if step == 100:
            assert lines[0].endswith("(after 100ms) (99 like it left out)")
    assert shown(each, "GETPID [rdkafka#producer-1] [thrd:a:1/bootstrap]: retrying")
    assert not shown(each, "TXNERR [rdkafka#producer-1] [thrd:main]: Current transaction failed in state InTransaction")


def test_producers_write_there_and_not_to_standard_error(caplog, capfd):
    pooled = PooledProducer({"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.ms": 1})
    eventually(lambda: pooled.poll(0.1) or caplog.records, "a line")
    pooled.destroy()
    assert {record.name for record in caplog.records} == {"sparkonce.librdkafka"}
    assert "Connection refused" in caplog.text
    assert "rdkafka#" not in capfd.readouterr().err

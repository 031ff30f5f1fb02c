from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from eventually import eventually
from integration.kafka_witness import Prepared
from small_job import SmallJob
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sinks.kafka import blocking as blocking_module
from sparkonce.sinks.kafka.blocking import KafkaMonitor
from sparkonce.sinks.kafka.outcomes import Description
from sparkonce.sinks.kafka.sink import KafkaSink

pytestmark = pytest.mark.kafka

QUERY = "0123456789ab"


@pytest.fixture(autouse=True)
def no_patience(monkeypatch) -> None:
    monkeypatch.setattr(blocking_module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(blocking_module, "SAY_EVERY_S", 0.0)


@pytest.fixture
def topic(witness) -> str:
    return witness.create_topic(partitions=3)


@pytest.fixture
def monitor(broker, topic) -> Iterator[KafkaMonitor]:
    with closing(KafkaMonitor({"bootstrap.servers": broker.bootstrap}, topic, QUERY)) as opened:
        yield opened


@pytest.fixture
def poll(monitor, caplog) -> Callable[..., list[str]]:
    caplog.set_level(logging.DEBUG, "sparkonce")

    def ask(batch_s: float = 0.0) -> list[str]:
        caplog.clear()
        monitor.poll(batch_s)
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    return ask


def own(query: str = QUERY) -> str:
    return str(TransactionalId(prefix="p", query=query, token=Token(0, "0" * 8), worker="0" * 12, lane=0))


def end(prepared: Prepared) -> None:
    prepared.producer.abort_transaction(60.0)


def test_who_hides_a_committed_batch_is_named_once(witness, topic, poll, tmp_path):
    used_to_more_s = 3600.0

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [f"{batch}.{slot}"], "partition": pa.array([0], pa.int32())})

    job = SmallJob(tmp_path, lambda: [KafkaSink({"bootstrap.servers": witness.bootstrap}, topic=topic)], rows)
    assert poll() == []
    other = witness.prepare(topic, "theirs")
    job.run(0)
    assert witness.committed(topic) == []
    assert poll(used_to_more_s) == []
    (said,) = poll()
    name, number = other.handle["transactional_id"], other.handle["producer_id"]
    assert f"Transaction {name!r} of another application (producer id {number}) has been open since 2" in said
    assert f"no rows of topic={topic!r} partition=0 from offset 0 on, including this query's rows" in said
    assert "transaction.timeout.ms=60000 (1 min)" in said
    assert poll() == []
    end(other)
    eventually(lambda: witness.committed(topic), until=lambda values: values == ["0.0", "0.1"])
    again = witness.prepare(topic, "theirs", transactional_id=str(name))
    (said,) = poll()
    assert f"Transaction {name!r}" in said
    end(again)


def test_a_start_believes_the_brokers_clock_and_later_polls_their_own(witness, topic, poll, monkeypatch):
    later_s = [0.0]
    clock = SimpleNamespace(time=lambda: 0.0, monotonic=lambda: time.monotonic() + later_s[0])
    monkeypatch.setattr(blocking_module, "time", clock)
    monkeypatch.setattr(blocking_module, "PATIENCE_S", 3600.0)
    other = witness.prepare(topic)
    assert poll() == []
    assert poll() == []
    later_s[0] = 3600.0
    assert len(poll()) == 1
    end(other)


def test_a_transaction_on_many_partitions_is_said_once_and_of_many_some_are_named(witness, poll, topic, monkeypatch):
    wide = witness.prepare(topic)
    for place in (1, 2):
        wide.write("row", place)
    assert wide.producer.flush(60.0) == 0
    (said,) = poll()
    assert "nor of 2 more partitions" in said
    end(wide)
    monkeypatch.setattr(blocking_module, "_NAMED_AT_ONCE", 1)
    others = [witness.prepare(topic, "first") for _ in range(2)]
    others[1].write("row", 1)
    assert others[1].producer.flush(60.0) == 0
    named, more = poll()
    assert "Transaction 'id-" in named
    assert more == f"1 more transactions hold back readers of topic={topic!r}."
    for one in others:
        end(one)


def test_what_is_the_querys_own_is_not_named(witness, topic, poll):
    mine = witness.prepare(topic, transactional_id=own())
    assert poll() == []
    other = witness.prepare(topic, "behind", transactional_id=own("ba9876543210"))
    assert poll() == []
    end(mine)
    (said,) = eventually(poll)
    assert repr(own("ba9876543210")) in said
    end(other)


def test_a_marker_that_is_missing_is_said_when_it_stays_so(witness, topic, monitor, poll, monkeypatch):
    """No test broker loses transactions, so the test makes its coordinator report the transaction as committed."""
    ask = monitor._client.describe_transactions
    mine = witness.prepare(topic, transactional_id=own())

    def says(*given: Any, **named: Any) -> list[Any]:
        return [
            replace(view, state="CompleteCommit") if isinstance(view, Description) else view
            for view in ask(*given, **named)
        ]

    monkeypatch.setattr(monitor._client, "describe_transactions", says)
    assert poll() == []
    (said,) = poll()
    assert f"Transaction {own()!r}" in said
    assert "has ended, according to its coordinator (CompleteCommit)" in said
    end(mine)


def test_brokers_that_are_away_are_found_again(witness, topic, monitor, poll, monkeypatch):
    other = witness.prepare(topic)
    with monkeypatch.context() as patch:
        patch.setattr(blocking_module, "LIMIT_S", 0.0)
        assert poll() == []
    assert len(poll()) == 1
    end(other)


def test_only_a_topic_that_is_known_is_polled():
    settings, facts = {"bootstrap.servers": "h:1"}, {"prefix": "p"}
    assert KafkaSink(settings).monitor(QUERY, facts) is None
    assert KafkaSink(settings, topic="t").monitor(QUERY, {}) is None
    made = KafkaSink(settings, topic="t").monitor(QUERY, facts)
    assert isinstance(made, KafkaMonitor)
    made.close()

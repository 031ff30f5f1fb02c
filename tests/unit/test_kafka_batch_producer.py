from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st

from eventually import LIMIT_S, eventually
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.kafka import batch_producer, librdkafka, producer_pool
from sparkonce.sinks.kafka.batch_producer import BatchProducer, BorrowedBuffers, _point, client_log, takes_batches
from sparkonce.sinks.kafka.pooled_producer import PooledProducer, ProducerSpec
from sparkonce.sinks.kafka.sink import KafkaSink
from unit.kafka_world import Told

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.ms": 1}
ROWS = pa.record_batch({"value": ["a", "bc"]})


Make = Callable[..., BatchProducer]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def make(told) -> Iterator[Make]:
    made: list[BatchProducer] = []

    def one(**settings: Any) -> BatchProducer:
        named = {name if name == "log_level" else name.replace("_", "."): value for name, value in settings.items()}
        made.append(BatchProducer({**NOWHERE, **named}, told))
        return made[-1]

    yield one
    for producer in made:
        if producer._producer is not None:
            producer.destroy()


def poll_until(producer: BatchProducer, good: Callable[[], object], what: str) -> None:
    eventually(lambda: producer.poll(0.05) or good(), what)


@given(
    st.lists(st.none() | st.binary(max_size=4)),
    st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_messages_point_to_the_bytes_of_a_slice(texts, kind, before, after):
    whole = [b"before"] * before + texts + [b"after"] * after
    wide = pa.large_binary() if kind in (pa.large_binary(), pa.large_string()) else pa.binary()
    # A string need not be UTF-8, since Spark allows others and Arrow does not check.
    column = pa.array(whole, wide).view(kind).slice(before, len(texts))
    messages = np.zeros(len(texts), librdkafka.MESSAGE)
    _point(messages, "payload", "len", column)
    found = [
        ctypes.string_at(int(message["payload"]), int(message["len"])) if message["payload"] else None
        for message in messages
    ]
    assert found == texts
    assert [int(size) for size in messages["len"]] == [len(text or b"") for text in texts]


@pytest.mark.parametrize("column", ["headers", "timestamp"])
def test_rows_with_columns_of_single_rows_are_not_taken(make, column):
    with pytest.raises(ValueError, match=column):
        make().produce("t", pa.record_batch({"value": ["a"], column: pa.nulls(1)}))


@pytest.mark.parametrize("topic", ["t" * 513, "a\0b"], ids=["long", "with NUL"])
def test_a_name_that_librdkafka_does_not_take_whole_is_refused(make, topic):
    producer = make()
    for call in (lambda: producer.produce(topic, ROWS), lambda: producer.list_topics(topic, 0.1)):
        with pytest.raises(KafkaException) as raised:
            call()
        assert raised.value.args[0].code() == KafkaError._INVALID_ARG


def test_no_memory_is_lent_once_librdkafka_has_chosen_a_partition(make):
    """Such rows may be sent before or after others of the partition, so reports no longer show whose memory is free."""
    producer = make(enable_idempotence=True)
    assert producer._borrowed.in_order
    producer.produce("t", ROWS)
    assert not producer._borrowed.in_order


def test_a_short_flush_sends_rows_whose_request_is_not_full_although_they_hold_much_memory(make, told, monkeypatch):
    producer = make(test_mock_num_brokers=1, enable_idempotence=True, linger_ms=60_000)
    rows = pa.record_batch({"value": ["a" * 3_000_000, "b"], "partition": pa.array([0, 0], pa.int32())}).slice(1)
    producer.produce("t", rows)
    producer.flush(LIMIT_S)  # the producer is connected from here on
    assert told.acknowledged == 1
    monkeypatch.setattr(batch_producer, "_QUIET_S", 1.0)
    producer.produce("t", rows)
    producer.flush(1.0)
    assert told.acknowledged == 2


def test_metadata_without_brokers_is_an_error(make):
    with pytest.raises(KafkaException) as raised:
        make().list_topics("t", 0.1)
    assert raised.value.args[0].code() == KafkaError._TRANSPORT


def test_errors_of_the_client_and_statistics_are_told(make, told):
    producer = make(statistics_interval_ms=20)
    poll_until(producer, lambda: told.errors and told.stats, "there is an error, and statistics")
    assert KafkaError._TRANSPORT in told.errors
    assert json.loads(told.stats)["type"] == "producer"


@pytest.mark.parametrize(
    "call",
    [
        len,
        lambda producer: producer.produce("t", ROWS),
        lambda producer: producer.poll(0),
        lambda producer: producer.flush(0),
        lambda producer: producer.init_transactions(0),
        lambda producer: producer.begin_transaction(),
        lambda producer: producer.abort_transaction(0),
        lambda producer: producer.list_topics("t", 0),
        lambda producer: producer.purge(),
        lambda producer: producer.destroy(),
    ],
    ids=["len", "produce", "poll", "flush", "init", "begin", "abort", "list", "purge", "destroy"],
)
def test_nothing_works_after_the_end(make, call):
    producer = make()
    producer.produce("t", ROWS)
    producer.destroy()
    with pytest.raises(RuntimeError, match="has ended"):
        call(producer)


@pytest.mark.parametrize(
    ("settings", "shown"), [({}, logging.ERROR), ({"debug": "broker"}, logging.DEBUG), ({"log_level": 0}, None)]
)
def test_the_log_shows_what_is_asked_for(make, told, caplog, monkeypatch, settings, shown):
    monkeypatch.setattr(client_log, "filters", [])
    caplog.set_level(logging.DEBUG, "sparkonce.librdkafka")
    producer = make(transactional_id="t", **settings)
    poll_until(producer, lambda: told.errors, "an error is told")
    assert min((record.levelno for record in caplog.records), default=None) == shown


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"bogus": 1}, "bogus"),
        ({"queue.buffering.max.messages": "many"}, "queue.buffering.max.messages"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"}, "ssl.ca.location"),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_named(settings, named):
    with pytest.raises(KafkaException) as raised:
        BatchProducer({**NOWHERE, **settings}, Told())
    assert raised.value.args[0].code() == KafkaError._INVALID_ARG
    assert named in raised.value.args[0].str()


def test_without_the_library_rows_go_one_by_one(monkeypatch):
    monkeypatch.setattr(batch_producer, "librdkafka", lambda: None)
    assert not takes_batches(NOWHERE)
    with pytest.raises(RuntimeError, match="cannot be found"):
        BatchProducer(NOWHERE, Told())
    pooled = PooledProducer(NOWHERE)
    assert isinstance(pooled.producer, Producer)
    pooled.destroy()


def fail_to_load(_: str) -> Any:
    raise OSError("no such library")


@pytest.mark.parametrize("load", [fail_to_load, lambda _: SimpleNamespace()], ids=["no library", "no names"])
def test_a_library_whose_names_are_hidden_is_none(monkeypatch, load):
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert librdkafka.librdkafka.__wrapped__() is None


@pytest.mark.parametrize("by_row", [False, True])
def test_a_specification_chooses_the_producer(by_row):
    pooled = PooledProducer.open(
        ProducerSpec(sink="s", query="q", token=Token(1, "t"), by_row=by_row, settings=NOWHERE), "w", 0
    )
    assert isinstance(pooled.producer, Producer if by_row else BatchProducer)
    pooled.destroy()


@pytest.mark.parametrize(
    ("columns", "by_row"),
    [
        (("key", "value", "topic", "partition"), False),
        (("value", "timestamp"), True),
        (("headers", "value"), True),
        (None, True),
    ],
)
def test_the_columns_say_if_rows_go_one_by_one(monkeypatch, columns, by_row):
    specs: list[ProducerSpec] = []

    def pool(spec: ProducerSpec, **_: Any) -> Any:
        specs.append(spec)
        return SimpleNamespace(take=lambda batch: None)

    monkeypatch.setattr(producer_pool, "this_worker", lambda: SimpleNamespace(pool=pool))
    owner = Owner(query="q", token=Token(1, "t"), facts={"prefix": "p", "transaction_timeout_ms": "60000"})
    KafkaSink(NOWHERE, topic="t").writer(WriterContext(owner=owner, batch=0, slot=0, copy="0.0.0", columns=columns))
    assert [spec.by_row for spec in specs] == [by_row]


def test_a_broker_that_tells_of_single_rows_is_heard_for_each(told):
    """KIP-467: a request with a bad row is rejected, and its other rows get a different error."""
    codes = [KafkaError.INVALID_RECORD, 0, KafkaError._INVALID_DIFFERENT_RECORD]
    rows = [librdkafka.Message(err=code, partition=2, len=5, key_len=size) for size, code in enumerate(codes)]
    waiting = iter([ctypes.pointer(row) for row in rows])
    library = SimpleNamespace(
        event_error=lambda _: KafkaError.INVALID_RECORD,
        event_message_next=lambda _: next(waiting, None),
        topic_name=lambda _: b"t",
    )
    producer: Any = SimpleNamespace(_library=library, _listener=told, _borrowed=BorrowedBuffers(1))
    BatchProducer._tell_deliveries(producer, 1)
    assert told.acknowledged == 1
    assert told.refused == [(KafkaError.INVALID_RECORD, "t", 2, 5), (KafkaError._INVALID_DIFFERENT_RECORD, "t", 2, 7)]

from __future__ import annotations

import json
import pickle
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from eventually import LIMIT_S, eventually
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.errors import OutageError, PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.kafka import batch_producer
from sparkonce.sinks.kafka import pooled_producer as producer_module
from sparkonce.sinks.kafka import producer_pool as producers_module
from sparkonce.sinks.kafka import writer as writer_module
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.pooled_producer import PooledProducer
from sparkonce.sinks.kafka.producer_pool import this_worker
from sparkonce.sinks.kafka.rows import TopicRules
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.kafka.writer import KafkaWriter, TopicLimits, limits_of_process
from sparkonce_lab.kafka import (
    Record,
    create_topic,
    describe_transactions,
    list_transactions,
    read_committed,
    read_uncommitted,
)

pytestmark = pytest.mark.kafka

Fields = Mapping[str, str | int]


class Kafka:
    """A broker and the tests' queries to it. Only the commit uses the code under test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.settings = {"bootstrap.servers": bootstrap}

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        name = f"t-{secrets.token_hex(6)}"
        create_topic(self.bootstrap, name, partitions, {key.replace("_", "."): text for key, text in config.items()})
        return name

    def read(self, topic: str) -> list[Record]:
        return read_committed(self.bootstrap, topic)

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in self.read(topic)]

    def state(self, fields: Fields) -> str:
        name = str(fields["transactional_id"])
        return describe_transactions(self.bootstrap, [name])[name].state

    def commit(self, *prepared: Fields) -> None:
        committer = KafkaCommitter(self.settings, "kafka")
        handles = [Handle(sink="kafka", slot=0, rows=1, transaction=transaction_fields(fields)) for fields in prepared]
        try:
            eventually(
                lambda: {done.outcome for done in committer.commit(handles)} == {Outcome.COMMITTED}, "all commit"
            )
        finally:
            committer.close()
        # The reply arrives before the markers that make rows visible are written.
        eventually(lambda: {self.state(fields) for fields in prepared} == {"CompleteCommit"}, "all are committed")


@pytest.fixture
def kafka(broker) -> Iterator[Kafka]:
    yield Kafka(broker.bootstrap)
    this_worker().stop()


@pytest.fixture
def owner() -> Owner:
    return Owner(
        query="0123456789ab",
        token=Token(1, secrets.token_hex(4)),
        facts={"prefix": "tests", "transaction_timeout_ms": "60000", "cluster_id": "any"},
    )


@pytest.fixture(params=["by batch", "by row"])
def way(request, monkeypatch) -> str:
    """Sends rows to librdkafka in batches, or one by one, as on platforms where batches are impossible."""
    monkeypatch.setattr(producer_module, "takes_batches", lambda _: request.param == "by batch")
    return str(request.param)


def open_writer(
    sink: KafkaSink, owner: Owner, batch: int = 0, slot: int = 0, columns: Sequence[str] = ("value",)
) -> KafkaWriter:
    return sink.writer(WriterContext(owner=owner, batch=batch, slot=slot, copy="0.0.0", columns=columns))


both_ways = pytest.mark.usefixtures("way")


def prepare(sink: KafkaSink, owner: Owner, *batches: pa.RecordBatch, batch: int = 0) -> Fields:
    """Runs one task, from its first row to its handle, after which its producer is closed."""
    columns = {name for rows in batches for name in rows.schema.names}
    writer = open_writer(sink, owner, batch, columns=sorted(columns))
    writer.begin()
    fields = finish(writer, *batches)
    writer.close()
    return fields


def finish(writer: KafkaWriter, *batches: pa.RecordBatch) -> Fields:
    for rows in batches:
        writer.write(rows)
    return writer.prepare()


@both_ways
def test_rows_keep_keys_values_headers_timestamps_and_partitions(kafka, owner):
    topic = kafka.create_topic(partitions=3)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    plain = pa.record_batch({"key": ["a", None, "", "d"], "value": pa.array([b"1", b"2", b"", None])})
    rich = pa.record_batch(
        {
            "key": pa.array(["k", None], pa.large_string()),
            "value": pa.array([b"v", None], pa.large_binary()),
            "partition": pa.array([2, 1], pa.int32()),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "é", "value": b""}], None], headers
            ),
            "timestamp": pa.array([1_600_000_000_123_456, None], pa.timestamp("us", "UTC")),
        }
    )
    before_ms = int(time.time() * 1000)
    kafka.commit(prepare(KafkaSink(kafka.settings, topic=topic), owner, plain, rich))
    found = {(record.key, record.value): record for record in kafka.read(topic)}
    assert found.keys() == {(b"a", b"1"), (None, b"2"), (b"", b""), (b"d", None), (b"k", b"v"), (None, None)}
    first, second = found[b"k", b"v"], found[None, None]
    assert (first.partition, first.timestamp_ms) == (2, 1_600_000_000_123)
    assert first.headers == (("h", b"1"), ("h", None), ("é", b""))
    assert (second.partition, second.headers) == (1, ())
    assert before_ms <= second.timestamp_ms <= int(time.time() * 1000)


@both_ways
def test_the_topic_column_sends_each_row_to_its_topic_in_order(kafka, owner):
    topics = [kafka.create_topic() for _ in range(3)]
    rows = pa.record_batch({"topic": [topics[n % 3] for n in range(3_000)], "value": [str(n) for n in range(3_000)]})
    kafka.commit(prepare(KafkaSink(kafka.settings), owner, rows))
    for number, topic in enumerate(topics):
        assert [int(value or b"") for value in kafka.values(topic)] == list(range(number, 3_000, 3))


@pytest.mark.parametrize("timestamp", [None, 10**15], ids=["by batch", "by row"])
def test_keys_go_to_the_partitions_that_java_clients_give_them(kafka, owner, timestamp):
    java_murmur2 = {
        # From org.apache.kafka.common.utils.UtilsTest.testMurmur2.
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    topic = kafka.create_topic(partitions=13)
    keys = pa.array(list(java_murmur2), pa.binary())
    timestamps = pa.array([timestamp] * 6, pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"key": keys, "value": keys, "timestamp": timestamps})
    kafka.commit(prepare(KafkaSink(kafka.settings, topic=topic), owner, rows))
    found = {record.key: record.partition for record in kafka.read(topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 13 for key, value in java_murmur2.items()}


@pytest.mark.parametrize(
    "queue",
    [
        {"queue.buffering.max.messages": 700},
        {"queue.buffering.max.messages": 0},
        {"queue.buffering.max.kbytes": 16, "linger.ms": 30_000},
    ],
    ids=["rows", "no limit", "bytes, where no request is ever full"],
)
def test_a_full_local_queue_slows_down_and_keeps_the_order_of_each_key(kafka, owner, queue):
    topic = kafka.create_topic(partitions=4)
    rows = pa.record_batch(
        {"key": [f"k{n % 50}" for n in range(20_000)], "value": [f"{n}".ljust(1 + n % 30, " ") for n in range(20_000)]}
    )
    kafka.commit(prepare(KafkaSink({**kafka.settings, **queue}, topic=topic), owner, rows))
    found = defaultdict(list)
    for record in kafka.read(topic):
        found[record.key].append(int(record.value or b""))
    assert found == {f"k{key}".encode(): list(range(key, 20_000, 50)) for key in range(50)}


@both_ways
def test_one_row_too_large_for_the_topic_fails_the_whole_transaction(kafka, owner):
    topic = kafka.create_topic(partitions=2, max_message_bytes="5000")
    writer = open_writer(KafkaSink(kafka.settings, topic=topic), owner)
    writer.begin()
    rows = [pa.record_batch({"value": [value]}) for value in ("fits", "x" * 10_000, "fits too")]
    named = rf"{topic}', partition \d: .*too large, with a key and value of 10000 bytes.* Next: .*max\.message\.bytes"
    with pytest.raises(PrepareError, match=named):
        finish(writer, *rows)
    writer.abort()
    assert kafka.read(topic) == []


@both_ways
def test_a_row_that_the_topics_settings_refuse_is_named_with_them(kafka, owner):
    compacted = kafka.create_topic(cleanup_policy="compact")
    near = kafka.create_topic(message_timestamp_after_max_ms="3600000")
    far = pa.array([1_700_000_000_000_000_000]).cast(pa.timestamp("us", "UTC"))
    cases = (
        (compacted, pa.record_batch({"value": ["v"]}), "column 'key' is null.*give each row a key", "cleanup.policy"),
        (near, pa.record_batch({"value": ["v"], "timestamp": far}), "Column 'timestamp'.*after.max.ms", "after.max.ms"),
    )
    for topic, rows, words, setting in cases:
        sink = KafkaSink(kafka.settings, topic=topic)
        writer = open_writer(sink, owner, columns=rows.schema.names)
        writer.begin()
        with pytest.raises(PrepareError, match=words):
            finish(writer, rows)
        writer.abort()
        offering = open_writer(sink, owner, columns=rows.schema.names)
        offering.begin()
        refused = offering.offer(rows)
        assert (list(refused.rows), setting in refused.reasons[0]) == ([0], True)
        offering.abort()


@both_ways
def test_a_row_that_is_refused_while_others_are_handed_over_is_told_too(kafka, owner, monkeypatch):
    """librdkafka then rejects more rows with "Erroneous state", before it reports which row was rejected."""
    topic = kafka.create_topic(partitions=2, max_message_bytes="5000")
    writer = open_writer(KafkaSink(kafka.settings, topic=topic), owner)
    writer.begin()
    poll = PooledProducer.poll
    # Errors of the call for the first partition are only reported after the call for the second one.
    monkeypatch.setattr(PooledProducer, "poll", lambda self, timeout_s: timeout_s and poll(self, timeout_s))
    writer.write(pa.record_batch({"value": ["x" * 10_000], "partition": pa.array([0], pa.int32())}))
    fits = pa.record_batch({"value": ["fits"], "partition": pa.array([1], pa.int32())})
    with pytest.raises(PrepareError, match=rf"{topic}', partition 0: .*too large"):
        eventually(lambda: writer.write(fits), "the large row is refused")
    writer.abort()
    assert kafka.read(topic) == []


@both_ways
@KILLS_BROKER
@pytest.mark.parametrize("is_known", [True, False], ids=["at once", "reported later"])
def test_a_partition_that_is_not_there_is_named_whenever_librdkafka_finds_out(owner, is_known):
    cluster = broker_to_kill()
    kafka = Kafka(cluster.bootstrap)
    topic = kafka.create_topic(partitions=2)
    rows = pa.record_batch({"topic": [topic] * 3, "value": ["a"] * 3, "partition": pa.array([1, 3, 7], pa.int32())})
    writer = open_writer(KafkaSink(kafka.settings), owner)
    writer.begin()
    if is_known:
        writer._pooled.producer.list_topics(topic, LIMIT_S)
    else:
        with cluster.brokers[0].paused():  # nothing reports the missing topic before the rows are passed on
            writer.write(rows)
    with pytest.raises(PrepareError) as told:
        writer.write(rows) if is_known else writer.prepare()
    assert (
        told.value.message == f"Kafka did not accept a row for topic '{topic}', partition 7: Local: Unknown partition."
    )
    assert "column 'partition'" in told.value.next_step
    writer.abort()
    this_worker().stop()
    assert kafka.read(topic) == []


@both_ways
def test_one_row_too_large_for_the_client_fails_at_once(kafka, owner):
    topic = kafka.create_topic()
    writer = open_writer(KafkaSink({**kafka.settings, "message.max.bytes": 2_000}, topic=topic), owner)
    writer.begin()
    with pytest.raises(PrepareError, match=rf"{topic}.*too large: it has 10000 bytes, and message.max.bytes is 2000"):
        writer.write(pa.record_batch({"value": ["fits", "x" * 10_000, "fits too"]}))
    writer.abort()
    assert kafka.read(topic) == []


@pytest.mark.parametrize(
    ("limit", "size", "count"),
    [
        pytest.param(1_048_588, 1_048_500, 1, id="as large as a topic takes by default"),
        pytest.param(3_000_000, 2_900_000, 2, id="larger"),
        pytest.param(100_000, 10_000, 50, id="smaller, so that batches are smaller too"),
    ],
)
def test_rows_may_be_as_large_as_the_topic_takes(kafka, owner, limit, size, count):
    topic = kafka.create_topic(max_message_bytes=str(limit))
    known = replace(owner, facts={**owner.facts, "max_message_bytes": str(limit)})
    fields = prepare(KafkaSink(kafka.settings, topic=topic), known, pa.record_batch({"value": ["x" * size] * count}))
    kafka.commit(fields)
    assert [len(record.value or b"") for record in kafka.read(topic)] == [size] * count


@both_ways
def test_a_refusal_that_no_callback_tells_still_fails_prepare(kafka, owner, monkeypatch):
    monkeypatch.setattr(producer_module.Reports, "on_refused", lambda *_: None)
    topic = kafka.create_topic(max_message_bytes="5000")
    writer = open_writer(KafkaSink(kafka.settings, topic=topic), owner)
    writer.begin()
    writer.write(pa.record_batch({"value": ["x" * 10_000]}))
    with pytest.raises(PrepareError):
        writer.prepare()
    writer.abort()


def test_statistics_tell_the_producer_id_where_the_log_does_not(kafka, owner, way, monkeypatch, caplog):
    # Earlier tests may still be creating producers, which would log warnings in this test.
    names = lambda: {thread.name for thread in threading.enumerate()}  # noqa: E731
    eventually(lambda: "sparkonce-kafka-initialise" not in names(), "no producer is being made")
    monkeypatch.setattr(batch_producer, "_ACQUIRED", re.compile("other words"))
    producer_module._warn_of_other_words.cache_clear()
    topic = kafka.create_topic()
    kafka.commit(prepare(KafkaSink(kafka.settings, topic=topic), owner, pa.record_batch({"value": ["a"]})))
    assert [record.value for record in kafka.read(topic)] == [b"a"]
    assert ("each producer waits for its statistics" in caplog.text) == (way == "by batch")


@pytest.mark.parametrize("guarantee", Guarantee)
@both_ways
def test_a_row_that_never_reached_librdkafka_fails_prepare(kafka, owner, monkeypatch, guarantee):
    produce = writer_module._produce
    monkeypatch.setattr(
        writer_module,
        "_produce",
        lambda to, chunk: produce(to, replace(chunk, rows=chunk.rows - 1, columns=chunk.columns.slice(1))),
    )
    writer = open_writer(KafkaSink(kafka.settings, topic=kafka.create_topic(), guarantee=guarantee), owner)
    writer.begin()
    writer.write(pa.record_batch({"value": ["a", "b", "c"]}))
    with pytest.raises(PrepareError, match="2 of 3 rows"):
        writer.prepare()
    writer.abort()


@both_ways
def test_a_transaction_that_is_open_no_more_cannot_be_prepared(kafka, owner):
    writer = open_writer(KafkaSink(kafka.settings, topic=kafka.create_topic()), owner)
    writer.begin()
    writer.write(pa.record_batch({"value": ["a"]}))
    writer.prepare()
    writer._pooled.producer.abort_transaction(LIMIT_S)
    with pytest.raises(PrepareError, match="no transaction was open"):
        writer.prepare()
    writer.abort()


@both_ways
def test_a_transaction_that_someone_fenced_cannot_be_prepared(kafka, owner):
    writer = open_writer(KafkaSink(kafka.settings, topic=kafka.create_topic()), owner)
    writer.begin()
    writer.write(pa.record_batch({"value": ["a"]}))
    fields = writer.prepare()
    fencer = Producer({**kafka.settings, "transactional.id": fields["transactional_id"]})
    fencer.init_transactions(LIMIT_S)
    del fencer
    with pytest.raises(PrepareError, match=r"(?i)fenced|newer instance|invalid.*epoch"):
        finish(writer, pa.record_batch({"value": ["b"]}))
    writer.abort()


@both_ways
def test_a_fatal_error_that_another_thread_was_told_of_is_named(kafka, owner, monkeypatch):
    class ToldElsewhere:
        """A producer whose fatal error was reported to another thread's call while this one was running."""

        def __init__(self, producer: Producer) -> None:
            self._producer = producer

        def __len__(self) -> int:
            return 1

        def flush(self, timeout: float) -> None:
            raise SystemError("<built-in method flush> returned NULL without setting an exception")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

    # otherwise the background thread would get the error
    monkeypatch.setattr(producers_module, "POLL_EVERY_S", 30.0)
    topic = kafka.create_topic()
    writer = open_writer(KafkaSink(kafka.settings, topic=topic), owner)
    writer.begin()
    pooled = writer._pooled
    fencer = Producer({**kafka.settings, "transactional.id": pooled.transactional_id})
    fencer.init_transactions(LIMIT_S)
    del fencer
    writer.write(pa.record_batch({"value": ["a"]}))

    def is_told_of_the_fence() -> bool:
        try:
            pooled.producer.flush(0.1)
        # KafkaError does not derive from Exception, which `pytest.raises` requires
        except (KafkaException, KafkaError, SystemError):
            return True
        return False

    eventually(is_told_of_the_fence, "a call is told of the fence")
    pooled.producer = ToldElsewhere(pooled.producer)
    with pytest.raises(PrepareError, match="fenced by a newer instance"):
        writer.prepare()
    writer.abort()


@both_ways
def test_a_missing_topic_is_named_in_bounded_time(kafka, owner):
    sink = KafkaSink({**kafka.settings, "topic.metadata.propagation.max.ms": 500})
    writer = open_writer(sink, owner)
    writer.begin()
    with pytest.raises(PrepareError, match="no-such-topic"):
        finish(writer, pa.record_batch({"topic": ["no-such-topic"], "value": ["a"]}))
    writer.abort()


def test_brokers_that_do_not_answer_fail_begin_in_bounded_time(owner, monkeypatch):
    monkeypatch.setattr(producer_module, "INITIALISE_LIMIT_S", 1.0)
    writer = open_writer(KafkaSink({"bootstrap.servers": "127.0.0.1:9", "log_level": 0}, topic="t"), owner)
    with pytest.raises(PrepareError, match=r"127\.0\.0\.1:9"):
        writer.begin()
    writer.abort()
    this_worker().stop()


def test_settings_that_do_not_work_on_the_worker_fail_begin_with_librdkafkas_reason(kafka, owner):
    settings = {**kafka.settings, "security.protocol": "SSL", "ssl.ca.location": "/no/such/file"}
    writer = open_writer(KafkaSink(settings, topic="t"), owner)
    with pytest.raises(PrepareError, match=r"ssl\.ca\.location"):
        writer.begin()
    writer.abort()


def test_a_cluster_that_does_not_allow_the_transaction_fails_begin_with_its_reason(kafka, owner):
    beyond_the_brokers_limit = replace(owner, facts={**owner.facts, "transaction_timeout_ms": str(16 * 60_000)})
    writer = open_writer(KafkaSink(kafka.settings, topic=kafka.create_topic()), beyond_the_brokers_limit)
    with pytest.raises(PreflightError, match=r"(?i)transaction timeout"):
        writer.begin()
    writer.abort()


def test_a_producer_that_fails_while_its_id_is_told_says_why(kafka, monkeypatch):
    def fail(pooled: producer_module.PooledProducer, _: float) -> None:
        pooled.reports.fatal = "fenced by another"

    monkeypatch.setattr(producer_module.PooledProducer, "_try_to_initialise", fail)
    with pytest.raises(PrepareError, match="fenced by another"):
        producer_module.PooledProducer(kafka.settings, transactional_id="t").initialise(LIMIT_S)


def test_a_prepared_transaction_stays_open_when_the_worker_process_ends(kafka, owner):
    program = """
import json, pickle, sys
import pyarrow as pa

sink, context = pickle.loads(bytes.fromhex(sys.argv[1]))
writer = sink.writer(context)
writer.begin()
writer.write(pa.record_batch({"value": ["a", "b"]}))
print(json.dumps(dict(writer.prepare())), flush=True)
"""
    topic = kafka.create_topic()
    context = WriterContext(owner=owner, batch=0, slot=0, copy="0.0.0")
    work = pickle.dumps((KafkaSink(kafka.settings, topic=topic), context)).hex()
    run = subprocess.run([sys.executable, "-c", program, work], capture_output=True, text=True, check=True, timeout=60)
    fields = json.loads(run.stdout)
    name = str(fields["transactional_id"])
    found = describe_transactions(kafka.bootstrap, [name])[name]
    assert (found.state, found.producer_id, found.producer_epoch) == ("Ongoing", fields["producer_id"], fields["epoch"])
    assert (found.timeout_ms, found.partitions) == (60_000, ((topic, 0),))
    assert kafka.read(topic) == []
    kafka.commit(fields)
    assert kafka.values(topic) == [b"a", b"b"]


@both_ways
def test_an_abort_right_after_the_first_rows_leaves_nothing_open(kafka, owner):
    """librdkafka alone leaves every fourth transaction open that is aborted 2 ms after its first row."""
    topic = kafka.create_topic()
    sink = KafkaSink(kafka.settings, topic=topic)
    for batch in range(20):
        writer = open_writer(sink, owner, batch)
        writer.begin()
        writer.write(pa.record_batch({"value": ["a", "b"]}))
        writer.abort()
    of_run = f"tests.{owner.query}.{owner.token.position}-{owner.token.nonce}."
    assert list(list_transactions(kafka.bootstrap, states=["Ongoing"], prefix=of_run)) == []
    assert len(read_uncommitted(kafka.bootstrap, topic)) >= 20, "an abort comes after the rows are answered"


def test_ids_are_this_workers_and_carry_one_transaction_an_epoch(kafka, owner):
    topic = kafka.create_topic()
    sink = KafkaSink(kafka.settings, topic=topic)
    found: list[Fields] = []
    for batch in range(6):
        tasks = [prepare(sink, owner, pa.record_batch({"value": [str(batch)]}), batch=batch) for _ in range(2)]
        kafka.commit(*tasks)
        found += tasks
    assert len({(fields["transactional_id"], fields["producer_id"], fields["epoch"]) for fields in found}) == 12
    ids = [TransactionalId.parse(str(fields["transactional_id"])) for fields in found]
    lanes = [identity.lane for identity in ids if identity is not None]
    workers = {identity.worker for identity in ids if identity is not None}
    assert len(workers) == 1
    assert all(
        identity == TransactionalId(prefix="tests", query=owner.query, token=owner.token, worker=worker, lane=lane)
        for worker in workers
        for identity, lane in zip(ids, lanes, strict=True)
    )
    assert len(set(lanes)) < 12, "lanes are used again"
    for batch in range(5):
        assert not set(lanes[2 * batch : 2 * batch + 2]) & set(lanes[2 * batch + 2 : 2 * batch + 4])
    assert len(kafka.read(topic)) == 12


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
@both_ways
def test_below_exactly_once_rows_are_visible_after_prepare_and_the_producer_is_used_again(kafka, owner, guarantee):
    topic = kafka.create_topic()
    sink = KafkaSink(kafka.settings, topic=topic, guarantee=guarantee)
    used = set()
    for batch in range(3):
        writer = open_writer(sink, owner, batch)
        writer.begin()
        used.add(writer._pooled)
        writer.write(pa.record_batch({"value": [str(batch)]}))
        assert writer.prepare() == {}
        writer.close()
    assert len(used) == 1
    assert kafka.values(topic) == [b"0", b"1", b"2"]


@both_ways
def test_below_exactly_once_a_refused_row_fails_prepare_and_its_producer_is_not_used_again(kafka, owner):
    topic = kafka.create_topic(max_message_bytes="5000")
    sink = KafkaSink(kafka.settings, topic=topic, guarantee=Guarantee.AT_LEAST_ONCE)
    writer = open_writer(sink, owner)
    writer.begin()
    writer.write(pa.record_batch({"value": ["x" * 10_000]}))
    with pytest.raises(PrepareError, match=r"[Tt]oo large"):
        writer.prepare()
    writer.abort()
    assert prepare(sink, owner, pa.record_batch({"value": ["fits"]})) == {}


@pytest.mark.slow
def test_large_rows_need_little_memory(kafka, owner):
    program = """
import pickle, resource, sys
import pyarrow as pa

sink, context = pickle.loads(bytes.fromhex(sys.argv[1]))
writer = sink.writer(context)
writer.begin()
rows = pa.record_batch({"value": pa.array([b"x" * 900_000] * 100, pa.binary())})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(8):
    writer.write(rows)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
writer.abort()
"""
    context = WriterContext(owner=owner, batch=0, slot=0, copy="0.0.0")
    work = pickle.dumps((KafkaSink(kafka.settings, topic=kafka.create_topic()), context)).hex()
    run = subprocess.run([sys.executable, "-c", program, work], capture_output=True, text=True, check=True, timeout=120)
    assert int(run.stdout) < 300


def test_a_topic_that_is_not_there_has_no_limit(kafka, monkeypatch):
    limits = TopicLimits(kafka.settings)
    assert limits.of(["nowhere"]) == {}
    there = kafka.create_topic(max_message_bytes="2000")
    assert limits.of([there, "nowhere"]) == {there: TopicRules(most_bytes=2000, takes_far=False)}
    monkeypatch.setattr("sparkonce.sinks.kafka.writer._RULES_WITHIN_S", 1.0)
    for spare_s, words in ((10.0, "The brokers do not report"), (-0.9, "no answer in 1 s")):
        # librdkafka's own deadline may pass later than that of the code that waits for librdkafka.
        monkeypatch.setattr("sparkonce.sinks.kafka.writer._RULES_LATE_S", spare_s)
        with pytest.raises(OutageError, match=words):
            TopicLimits({"bootstrap.servers": "127.0.0.1:1"}).of(["any"])


def test_each_login_asks_for_itself():
    settings = {"bootstrap.servers": "127.0.0.1:1", "sasl.username": "one"}
    assert limits_of_process(settings) is limits_of_process(dict(settings))
    assert limits_of_process(settings) is not limits_of_process({**settings, "sasl.username": "two"})

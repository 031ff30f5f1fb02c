from __future__ import annotations

import logging
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import TopicCollection

import one_run
from eventually import LIMIT_S
from integration.kafka_witness import Witness, new_name, until_final
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Facts, Owner
from sparkonce.sinks.kafka import preflight as preflight_module
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.preflight import preflight
from sparkonce.sinks.kafka.settings import NEVER_MS
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.clock import FakeClock, find_faketime
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

QUERY = "0123456789ab"
FIFTEEN_MINUTES_MS = 900_000

Check = Callable[..., Facts]


@pytest.fixture
def check(broker) -> Check:
    def run(settings: dict[str, object] | None = None, **more: Any) -> Facts:
        asked = {"topic": None, "guarantee": Guarantee.EXACTLY_ONCE, "prefix": None, "timeout_ms": None, **more}
        whole = {"bootstrap.servers": broker.bootstrap, **(settings or {})}
        return preflight(whole, query=QUERY, **{"recorded": None, **asked})

    return run


def test_the_facts_are_the_cluster_the_prefix_and_the_longest_timeout(broker, witness, check):
    topic = witness.create_topic()
    topic_id = witness.admin.describe_topics(TopicCollection([topic]))[topic].result(LIMIT_S).topic_id
    facts = dict(check(topic=topic))
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    assert UUID(facts.pop("topic_id")).bytes == struct.pack(">qq", *halves)
    assert facts == {
        "cluster_id": broker.cluster_id,
        "topic": topic,
        "max_message_bytes": "1048588",
        "prefix": f"sparkonce-{QUERY}",
        "transaction_timeout_ms": str(FIFTEEN_MINUTES_MS),
        "longest_timeout_ms": str(FIFTEEN_MINUTES_MS),
    }


@pytest.mark.parametrize("guarantee", Guarantee)
def test_what_readers_must_set_is_said_once(broker, witness, caplog, guarantee):
    caplog.set_level(logging.INFO, "sparkonce")
    topic = witness.create_topic()
    sink = KafkaSink({"bootstrap.servers": broker.bootstrap}, topic=topic, guarantee=guarantee)
    for _ in range(2):
        sink.preflight(QUERY, None)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("sparkonce")]
    if guarantee is not Guarantee.EXACTLY_ONCE:
        assert said == []
        return
    (told,) = said
    assert told.startswith(f"Readers of {topic} must set isolation.level=read_committed, which is not Kafka's default.")
    assert told.endswith("transaction.timeout.ms=900000 (15 min).")


def test_a_prefix_and_a_timeout_of_ones_own(check):
    recorded = check(prefix="old")
    facts = check({"transaction.timeout.ms": 60_000}, prefix="orders", timeout_ms=60_000, recorded=recorded)
    assert (facts["prefix"], facts["transaction_timeout_ms"]) == ("orders", "60000")
    assert check(timeout_ms=FIFTEEN_MINUTES_MS)["transaction_timeout_ms"] == str(FIFTEEN_MINUTES_MS)


def test_a_timeout_beyond_the_brokers_names_both_settings_and_values(check):
    with pytest.raises(PreflightError, match=r"transaction.timeout.ms=3600000 .* transaction.max.timeout.ms=900000"):
        check(timeout_ms=3_600_000)
    with pytest.raises(PreflightError, match=r"transaction.timeout.ms=900001 "):
        check({"transaction.timeout.ms": FIFTEEN_MINUTES_MS + 1})


@pytest.mark.parametrize(
    ("settings", "timeout_ms", "words"),
    [
        ({"transaction.timeout.ms": "5000"}, 6000, r"'5000' .* 6000 ms"),
        ({"message.timeout.ms": 61_000}, 60_000, r"message\.timeout\.ms"),
        ({"linger.msec": 5, "bootstrap.servers": "127.0.0.1:1"}, None, r"linger\.msec"),
        ({"linger.ms": "soon"}, None, r"queue\.buffering\.max\.ms"),
    ],
)
def test_settings_that_do_not_work_are_refused_before_anything_is_asked(check, settings, timeout_ms, words):
    with pytest.raises(ConfigurationError, match=words):
        check(settings, timeout_ms=timeout_ms)


def test_a_broker_that_cannot_be_reached(check, monkeypatch):
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", 0.3)
    with pytest.raises(PreflightError, match=r"bootstrap\.servers='127\.0\.0\.1:1' did not answer"):
        check({"bootstrap.servers": "127.0.0.1:1"})


def test_another_cluster_than_before(broker, check):
    with pytest.raises(PreflightError, match=f"leads to the cluster '{broker.cluster_id}'.*'another'"):
        check(recorded={"cluster_id": "another"})
    for guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE):
        with pytest.raises(PreflightError, match="'another'"):
            check(guarantee=guarantee, recorded={"cluster_id": "another"})


def test_weaker_guarantees_ask_nothing_about_transactions(broker, check):
    for guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE):
        assert check(guarantee=guarantee, timeout_ms=3_600_000) == {"cluster_id": broker.cluster_id}


def test_a_topic_that_is_not_there(check):
    name = new_name("missing")
    with pytest.raises(PreflightError, match=f"topic='{name}' does not exist"):
        check(topic=name, guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(PreflightError, match="topic='no/topic' is no valid name"):
        check(topic="no/topic")


@pytest.mark.parametrize(
    ("configured", "words"),
    [
        ({"retention_ms": "899999"}, "retention.ms=899999, and transaction.timeout.ms=900000 (15 min)"),
        ({"retention_bytes": "1000000"}, "retention.bytes=1000000"),
        ({"retention_ms": "900000", "retention_bytes": str(1 << 30)}, ""),
        ({"retention_ms": "1000", "cleanup_policy": "compact"}, ""),
    ],
)
def test_a_retention_that_open_transactions_may_outlive_is_told(witness, check, caplog, configured, words):
    topic = witness.create_topic(**configured)
    check(topic=topic)
    told = [record.getMessage() for record in caplog.records if topic in record.getMessage()]
    assert bool(told) is bool(words)
    assert words in "".join(told)


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes"])
def test_a_topic_that_keeps_nothing_is_refused(witness, check, name):
    topic = witness.create_topic(**{name: "0"})
    with pytest.raises(PreflightError, match=rf"topic='{topic}' has {name.replace('_', '.')}=0"):
        check(topic=topic)
    check(topic=topic, guarantee=Guarantee.AT_LEAST_ONCE)


def test_a_topic_that_no_row_could_be_written_to(witness, check):
    topic = witness.create_topic(min_insync_replicas="2")
    with pytest.raises(PreflightError, match=rf"topic='{topic}' has 1 replicas but min\.insync\.replicas=2"):
        check(topic=topic)


# --- transactions without a timeout, on a broker that allows it -------------------------------------------------------


@pytest.fixture(scope="module")
def patient() -> Iterator[Cluster]:
    overrides = {
        "transaction.max.timeout.ms": NEVER_MS,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
        "log.retention.ms": -1,
    }
    with Cluster(overrides=overrides) as made:
        yield made


def sink_on(cluster: Cluster, topic: str, timeout: object = None) -> tuple[KafkaSink, Facts]:
    chosen = {} if timeout is None else {"transaction.timeout.ms": timeout}
    sink = KafkaSink({"bootstrap.servers": cluster.bootstrap, **chosen}, topic=topic)
    return sink, sink.preflight(QUERY, None)


def test_never_is_said_to_users_and_readers(patient, caplog):
    witness = Witness(patient.bootstrap)
    sink, facts = sink_on(patient, witness.create_topic())
    assert (facts["transaction_timeout_ms"], sink.transaction_timeout_s(facts)) == ("3600000", 3600.0)
    assert sink.conditions() == ()
    caplog.set_level("INFO", "sparkonce")
    sink, facts = sink_on(patient, witness.create_topic(retention_ms="604800000"), "never")
    assert facts["transaction_timeout_ms"] == str(NEVER_MS)
    assert sink.transaction_timeout_s(facts) is None
    assert f"transaction.timeout.ms={NEVER_MS} (never times out)" in caplog.text
    assert "retention.ms=604800000" in caplog.text
    (condition,) = sink.conditions()
    assert "never time out" in condition


@pytest.mark.slow
@pytest.mark.skipif(find_faketime() is None, reason="libfaketime is not installed")
def test_a_month_later_it_can_still_be_committed(patient, tmp_path, monkeypatch):
    def prepare(topic: str, timeout: object) -> Handle:
        sink, facts = sink_on(patient, topic, timeout)
        run = Owner(query=QUERY, token=Token(1, secrets.token_hex(4)), facts=facts)
        return one_run.prepare(sink, pa.record_batch({"value": [str(timeout)]}), run=run)

    witness = Witness(patient.bootstrap)
    a_month_s = 30 * 86_400  # longer than 2**31 ms, the longest that older brokers wait
    library = find_faketime()
    assert library is not None
    never, hour = witness.create_topic(), witness.create_topic()
    lasting, bounded = prepare(never, "never"), prepare(hour, 3_600_000)
    witness.await_state("Ongoing", lasting, bounded)
    (node,) = patient.brokers
    node.stop()
    # Only the new process gets a clock that is ahead: this one has already loaded its libraries.
    for name, value in FakeClock(library, tmp_path / "clock", a_month_s).env().items():
        if name != "FAKETIME_DONT_FAKE_MONOTONIC":  # see `let_java_start`
            monkeypatch.setenv(name, value)
    node.start()
    witness.await_state("CompleteAbort", bounded)
    witness.await_state("Ongoing", lasting)
    with closing(KafkaCommitter({"bootstrap.servers": patient.bootstrap}, "kafka")) as committer:
        assert until_final(committer.commit, [lasting, bounded]) == [Outcome.COMMITTED, Outcome.LOST]
    assert witness.committed(never) == ["never"]
    assert witness.committed(hour) == []

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection

from integration.kafka_witness import LIMIT_S, Witness, new_name
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Facts
from sparkonce.sinks.kafka import preflight as preflight_module
from sparkonce.sinks.kafka.preflight import preflight
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

QUERY = "0123456789ab"
FIFTEEN_MINUTES_MS = 900_000

Check = Callable[..., Facts]


@pytest.fixture
def check(broker: Cluster) -> Check:
    """Runs preflight with defaults for what a test does not care about."""

    def run(
        settings: dict[str, object] | None = None,
        *,
        topic: str | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        prefix: str | None = None,
        timeout_ms: int | None = None,
        recorded: Facts | None = None,
    ) -> Facts:
        return preflight(
            {"bootstrap.servers": broker.bootstrap, **(settings or {})},
            topic=topic,
            guarantee=guarantee,
            prefix=prefix,
            timeout_ms=timeout_ms,
            query=QUERY,
            recorded=recorded,
        )

    return run


def test_the_facts_are_the_cluster_the_prefix_and_the_longest_timeout(
    broker: Cluster, witness: Witness, check: Check
) -> None:
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
def test_what_readers_must_set_is_said_once(
    broker: Cluster, witness: Witness, caplog: pytest.LogCaptureFixture, guarantee: Guarantee
) -> None:
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


def test_a_prefix_and_a_timeout_of_ones_own(check: Check) -> None:
    recorded = check(prefix="old")
    facts = check({"transaction.timeout.ms": 60_000}, prefix="orders", timeout_ms=60_000, recorded=recorded)
    assert (facts["prefix"], facts["transaction_timeout_ms"]) == ("orders", "60000")
    assert check(timeout_ms=FIFTEEN_MINUTES_MS)["transaction_timeout_ms"] == str(FIFTEEN_MINUTES_MS)


def test_a_timeout_beyond_the_brokers_names_both_settings_and_values(check: Check) -> None:
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
def test_settings_that_do_not_work_are_refused_before_anything_is_asked(
    check: Check, settings: dict[str, object], timeout_ms: int | None, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check(settings, timeout_ms=timeout_ms)


def test_a_broker_that_cannot_be_reached(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", 0.3)
    with pytest.raises(PreflightError, match=r"bootstrap\.servers='127\.0\.0\.1:1' did not answer"):
        check({"bootstrap.servers": "127.0.0.1:1"})


def test_another_cluster_than_before(broker: Cluster, check: Check) -> None:
    with pytest.raises(PreflightError, match=f"leads to the cluster '{broker.cluster_id}'.*'another'"):
        check(recorded={"cluster_id": "another"})
    for guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE):
        with pytest.raises(PreflightError, match="'another'"):
            check(guarantee=guarantee, recorded={"cluster_id": "another"})


def test_weaker_guarantees_ask_nothing_about_transactions(broker: Cluster, check: Check) -> None:
    for guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE):
        assert check(guarantee=guarantee, timeout_ms=3_600_000) == {"cluster_id": broker.cluster_id}


def test_a_topic_that_is_not_there(check: Check) -> None:
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
def test_a_retention_that_open_transactions_may_outlive_is_told(
    witness: Witness, check: Check, caplog: pytest.LogCaptureFixture, configured: dict[str, str], words: str
) -> None:
    topic = witness.create_topic(**configured)
    check(topic=topic)
    told = [record.getMessage() for record in caplog.records if topic in record.getMessage()]
    assert bool(told) is bool(words)
    assert words in "".join(told)


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes"])
def test_a_topic_that_keeps_nothing_is_refused(witness: Witness, check: Check, name: str) -> None:
    topic = witness.create_topic(**{name: "0"})
    with pytest.raises(PreflightError, match=rf"topic='{topic}' has {name.replace('_', '.')}=0"):
        check(topic=topic)
    check(topic=topic, guarantee=Guarantee.AT_LEAST_ONCE)


def test_a_topic_that_no_row_could_be_written_to(witness: Witness, check: Check) -> None:
    topic = witness.create_topic(min_insync_replicas="2")
    with pytest.raises(PreflightError, match=rf"topic='{topic}' has 1 replicas but min\.insync\.replicas=2"):
        check(topic=topic)

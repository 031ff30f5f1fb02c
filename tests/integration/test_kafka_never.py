"""Transactions without a timeout, on a broker whose clock is set ahead."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import one_run
from integration.kafka_witness import Witness, until_final
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Facts, Owner
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.settings import NEVER_MS
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.clock import FakeClock, find_faketime
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

QUERY = "0123456789ab"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    overrides = {
        "transaction.max.timeout.ms": NEVER_MS,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
        "log.retention.ms": -1,
    }
    with Cluster(overrides=overrides) as made:
        yield made


@pytest.fixture(scope="module")
def witness(cluster: Cluster) -> Witness:
    return Witness(cluster.bootstrap)


def sink_on(cluster: Cluster, topic: str, timeout: object = None) -> tuple[KafkaSink, Facts]:
    chosen = {} if timeout is None else {"transaction.timeout.ms": timeout}
    sink = KafkaSink({"bootstrap.servers": cluster.bootstrap, **chosen}, topic=topic)
    return sink, sink.preflight(QUERY, None)


def test_never_is_said_to_users_and_readers(
    cluster: Cluster, witness: Witness, caplog: pytest.LogCaptureFixture
) -> None:
    sink, facts = sink_on(cluster, witness.create_topic())
    assert (facts["transaction_timeout_ms"], sink.transaction_timeout_s(facts)) == ("3600000", 3600.0)
    assert sink.conditions() == ()
    caplog.set_level("INFO", "sparkonce")
    sink, facts = sink_on(cluster, witness.create_topic(retention_ms="604800000"), "never")
    assert facts["transaction_timeout_ms"] == str(NEVER_MS)
    assert sink.transaction_timeout_s(facts) is None
    assert f"transaction.timeout.ms={NEVER_MS} (never times out)" in caplog.text
    assert "retention.ms=604800000" in caplog.text
    (condition,) = sink.conditions()
    assert "never time out" in condition


@pytest.mark.slow
@pytest.mark.skipif(find_faketime() is None, reason="libfaketime is not installed")
def test_a_month_later_it_can_still_be_committed(
    cluster: Cluster, witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(topic: str, timeout: object) -> Handle:
        sink, facts = sink_on(cluster, topic, timeout)
        run = Owner(query=QUERY, token=Token(1, secrets.token_hex(4)), facts=facts)
        return one_run.prepare(sink, pa.record_batch({"value": [str(timeout)]}), run=run)

    a_month_s = 30 * 86_400  # more than 2**31 ms, which is how long older brokers wait
    library = find_faketime()
    assert library is not None
    never, hour = witness.create_topic(), witness.create_topic()
    lasting, bounded = prepare(never, "never"), prepare(hour, 3_600_000)
    witness.await_state("Ongoing", lasting, bounded)
    (node,) = cluster.brokers
    node.stop()
    # Its clock is ahead from then on, and this process's, whose libraries are loaded already, is not.
    for name, value in FakeClock(library, tmp_path / "clock", a_month_s).env().items():
        if name != "FAKETIME_DONT_FAKE_MONOTONIC":  # see `let_java_start`
            monkeypatch.setenv(name, value)
    node.start()
    witness.await_state("CompleteAbort", bounded)
    witness.await_state("Ongoing", lasting)
    with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as committer:
        assert until_final(committer.commit, [lasting, bounded]) == [Outcome.COMMITTED, Outcome.LOST]
    assert witness.committed(never) == ["never"]
    assert witness.committed(hour) == []

"""Commits and aborts on a real broker, also while it crashes or hangs. Every answer is either RETRY or correct."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from eventually import eventually
from integration.kafka_witness import Witness, new_name, until_final
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sink import Owner
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.outcomes import INVALID_PRODUCER_ID_MAPPING, BrokerAnswer, KafkaTransaction
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

NOBODY = "127.0.0.1:1"
QUERY = "0123456789ab"


@pytest.fixture
def topic(witness) -> str:
    return witness.create_topic()


@pytest.fixture
def committer(broker) -> Iterator[KafkaCommitter]:
    with closing(KafkaCommitter({"bootstrap.servers": broker.bootstrap}, "kafka")) as opened:
        yield opened


def replaced(handle: Handle, **fields: str | int) -> Handle:
    return Handle(sink="kafka", slot=0, transaction=transaction_fields({**dict(handle.transaction), **fields}))


def test_a_commit_after_the_broker_timed_it_out_is_lost(witness, topic, committer):
    prepared = witness.prepare(topic, "a", timeout_ms=1000)
    witness.await_state("CompleteAbort", prepared.handle)
    (lost,) = committer.commit([prepared.handle])
    assert lost.outcome is Outcome.LOST
    assert "CompleteAbort" in lost.reason
    assert committer.abort([prepared.handle])[0].outcome is Outcome.ABORTED
    assert witness.committed(topic) == []


def test_only_what_is_open_at_exactly_this_epoch_is_begun(witness, topic, committer):
    """The broker's time counts, no matter what the executor's clock said or how old the id is."""
    before_ms = time.time_ns() // 1_000_000
    handles = witness.prepare_all(topic, ["open", "aborted", "committed"])
    opened, aborted, committed = (replace(one.handle, opened_ms=1) for one in handles)
    committer.abort([aborted])
    committer.commit([committed])
    others = [replaced(opened, epoch=int(opened["epoch"]) + 1), replaced(opened, transactional_id=new_name())]
    begun, *rest = committer.begun_ms([opened, aborted, committed, *others])
    assert rest == [None] * 4
    assert begun is not None
    assert before_ms <= begun <= time.time_ns() // 1_000_000


def test_what_the_broker_does_not_know_is_unknown_to_a_commit_and_gone_to_an_abort(witness, topic, committer):
    prepared = witness.prepare(topic)
    never = replaced(prepared.handle, transactional_id=new_name("never"))
    other_producer = replaced(prepared.handle, producer_id=int(prepared.handle["producer_id"]) + 1)
    later_epoch = replaced(prepared.handle, epoch=int(prepared.handle["epoch"]) + 1)
    assert until_final(committer.commit, [never, other_producer, later_epoch]) == [Outcome.UNKNOWN] * 3
    assert until_final(committer.abort, [never, other_producer, later_epoch]) == [
        Outcome.ABORTED,
        Outcome.ABORTED,
        Outcome.UNKNOWN,
    ]
    assert witness.state(prepared.handle) == {"Ongoing"}


def test_an_unreachable_broker_is_no_answer():
    committer = KafkaCommitter({"bootstrap.servers": NOBODY}, "kafka", attempt_timeout_s=0.3)
    handle = Handle(
        sink="kafka", slot=0, transaction=transaction_fields({"transactional_id": "a", "producer_id": 1, "epoch": 0})
    )
    for finished in (*committer.commit([handle, handle]), *committer.abort([handle])):
        assert finished.outcome is Outcome.RETRY
        assert NOBODY in finished.reason
    owner = Owner(query=QUERY, token=Token(1, "0" * 8), facts={"prefix": "p"})
    for ask in (lambda: committer.list_lingering([owner]), lambda: committer.list_traces(QUERY, owner.facts)):
        with pytest.raises(UnknownOutcomeError, match="did not report which transactions there are"):
            ask()
    committer.close()


def test_traces_are_the_commits_of_exactly_this_query(witness, topic, committer):
    prefix = new_name("traced")
    newest, older = Token(12, "0" * 8), Token(3, "1" * 8)

    def name(token: Token, lane: int, *, prefix: str = prefix, query: str = QUERY) -> str:
        return str(TransactionalId(prefix=prefix, query=query, token=token, worker="a" * 12, lane=lane))

    names = {
        "committed": name(newest, 0),
        "committed, used again": name(newest, 1),
        "aborted": name(newest, 2),
        "open": name(newest, 3),
        "older": name(older, 0),
        "another query's": name(newest, 0, query=QUERY[:-1] + "f"),
        "a longer prefix": name(newest, 0, prefix=f"{prefix}-old"),
        "not ours": f"{prefix}.spark",
    }
    prepared = {what: witness.prepare(topic, what, transactional_id=each) for what, each in names.items()}
    finished = [one.handle for what, one in prepared.items() if what not in ("aborted", "open")]
    assert set(until_final(committer.commit, finished)) == {Outcome.COMMITTED}
    assert until_final(committer.abort, [prepared["aborted"].handle]) == [Outcome.ABORTED]
    again = witness.prepare(topic, "again", transactional_id=names["committed, used again"])
    facts = {"prefix": prefix}

    wanted = {prepared[what].handle.transaction: token for what, token in (("committed", newest), ("older", older))}
    found = committer.list_traces(QUERY, facts)
    assert {trace.committed: trace.token for trace in found} == wanted
    for trace in found:
        assert (trace.lane, trace.batch) == (("transactional_id", dict(trace.committed)["transactional_id"]), None)

    assert until_final(committer.commit, [again.handle]) == [Outcome.COMMITTED]
    assert {trace.committed for trace in committer.list_traces(QUERY, facts)} == {*wanted, again.handle.transaction}
    assert committer.list_traces(QUERY, {}) == ()


def test_a_network_thread_that_has_died_is_replaced(witness, topic, committer, monkeypatch):
    prepared = witness.prepare(topic, "a")
    assert committer.list_traces(QUERY, {"prefix": "nobody's"}) == []
    net = committer._client._connection._net
    thread = net._io_thread

    def fail() -> None:
        raise RuntimeError("killed by the test")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(net, "_poll_once", fail)
    net.wakeup()
    thread.join()
    assert committer.commit([prepared.handle])[0].outcome is Outcome.COMMITTED
    assert committer._client._connection._net is not net
    assert witness.committed(topic) == ["a"]


# --- a broker restarts, hangs or is killed ----------------------------------------------------------------------------


@pytest.fixture
def fragile() -> Iterator[tuple[Cluster, Witness, KafkaCommitter]]:
    cluster = broker_to_kill()
    with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka", attempt_timeout_s=2.0)) as committer:
        yield cluster, Witness(cluster.bootstrap), committer


@pytest.mark.slow
@KILLS_BROKER
def test_an_abort_and_a_sweep_after_an_orderly_restart(fragile, caplog):
    cluster, witness, committer = fragile
    caplog.set_level(logging.DEBUG, "kafka")
    topic = witness.create_topic()
    name = TransactionalId(prefix="swept", query="0" * 12, token=Token(0, "0" * 8), worker="0" * 12, lane=0)
    prepared = witness.prepare(topic, "a", transactional_id=str(name))
    owner = Owner(query=name.query, token=name.token, facts={"prefix": "swept"})
    before = committer.list_lingering([owner])
    cluster.brokers[0].restart()
    eventually(lambda: "socket disconnected" in caplog.text)
    # A closed connection is not worth a warning: if it matters, the next request reports the failure.
    assert [one for one in caplog.records if one.name.startswith("kafka.") and one.levelno >= logging.WARNING] == []
    assert [handle.transaction for handle in before] == [prepared.handle.transaction]
    assert until_final(committer.abort, before) == [Outcome.ABORTED]
    assert committer.list_lingering([owner]) == []
    assert until_final(committer.commit, [prepared.handle]) == [Outcome.LOST]
    witness.await_state("CompleteAbort", prepared.handle)
    assert witness.committed(topic) == []


@KILLS_BROKER
def test_a_broker_that_hangs_is_no_answer(fragile):
    cluster, witness, _ = fragile
    settings = {"bootstrap.servers": cluster.bootstrap}
    topic = witness.create_topic()
    prepared = witness.prepare_all(topic, ["a", "b"])
    handles = [one.handle for one in prepared]
    with (
        closing(KafkaCommitter(settings, "kafka")) as patient,
        closing(KafkaCommitter(settings, "kafka", attempt_timeout_s=0.3)) as hasty,
    ):
        assert until_final(hasty.commit, handles[:1]) == [Outcome.COMMITTED]
        with cluster.brokers[0].paused():
            # Once over open connections, and once without any.
            for _ in range(2):
                assert {one.outcome for one in hasty.commit(handles)} == {Outcome.RETRY}
        assert until_final(patient.commit, handles) == [Outcome.COMMITTED] * 2
    witness.await_state("CompleteCommit", *handles)
    assert witness.committed(topic) == ["a", "b"]


@pytest.mark.slow
@KILLS_BROKER
def test_only_what_has_left_may_arrive_late(fragile):
    """An abort that was sent but not answered may arrive late. One whose connection was refused cannot."""
    cluster, _, committer = fragile
    client = committer._client
    nobodys = KafkaTransaction("nobody's", 0, 0)

    def end(within_s: float) -> BrokerAnswer:
        return client.end_transactions([nobodys], commit=False, deadline_s=time.monotonic() + within_s)[0]

    eventually(lambda: end(60.0).code, until=lambda code: code == INVALID_PRODUCER_ID_MAPPING)
    with cluster.brokers[0].paused():
        hung = end(0.5)
    assert (hung.code, hung.never_sent) == (None, False)
    eventually(lambda: end(60.0).code, until=lambda code: code == INVALID_PRODUCER_ID_MAPPING)
    cluster.brokers[0].kill()
    client.close()  # a connection that was closed unnoticed still accepts writes
    try:
        refused = end(0.5)
    finally:
        cluster.brokers[0].start()
    assert (refused.code, refused.never_sent) == (None, True)
    eventually(lambda: end(60.0).code, until=lambda code: code == INVALID_PRODUCER_ID_MAPPING)

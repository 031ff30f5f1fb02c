"""Which requests to Kafka the driver repeats, to which brokers, and which answers it keeps.

The brokers are fakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparkonce.errors import PreflightError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka import connection as waiting_module
from sparkonce.sinks.kafka import preflight
from sparkonce.sinks.kafka import transaction_client as client_module
from sparkonce.sinks.kafka.committer import KafkaCommitter, fields_of
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, Description, KafkaTransaction
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from unit.driver_world import Clock
from unit.kafka_world import NOT_COORDINATOR, SILENT, UNSENT, Brokers

ONE, OTHER = KafkaTransaction("p.q.one", 7, 3), KafkaTransaction("p.q.other", 7, 3)
LOADING, NOT_AVAILABLE, CONCURRENT, TIMED_OUT = 14, 15, 51, 7
QUERY = "0123456789ab"


@pytest.fixture
def brokers(brokers) -> Brokers:
    brokers.holds = {1: [ONE.transactional_id], 2: [OTHER.transactional_id]}
    return brokers


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    for module in (client_module, committer_module, waiting_module):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def client(brokers, clock) -> TransactionClient:
    return TransactionClient({})


@pytest.fixture
def committer(brokers, clock) -> KafkaCommitter:
    return KafkaCommitter({"bootstrap.servers": "h:1"}, "kafka")


def listed(client: TransactionClient, deadline_s: float = 10.0) -> list[str] | BrokerAnswer:
    found = client.list_transactions(["Ongoing"], ["p.q."], deadline_s=deadline_s)
    return found if isinstance(found, BrokerAnswer) else sorted(found)


BOTH = sorted([ONE.transactional_id, OTHER.transactional_id])


@pytest.mark.parametrize("refusal", [LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT, TIMED_OUT, SILENT, UNSENT])
@pytest.mark.parametrize("kind", ["EndTxn", "DescribeTransactions"])
def test_only_what_was_refused_is_asked_again(brokers, client, kind, refusal):
    brokers.refuse[1] = [refusal] * 3
    if kind == "EndTxn":
        answers = client.end_transactions([ONE, OTHER], commit=True, deadline_s=10.0)
        assert [one.code for one in answers] == [0, 0]
    else:
        views = client.describe_transactions([ONE, OTHER], deadline_s=10.0)
        assert [view.transaction for view in views if isinstance(view, Description)] == [ONE, OTHER]
    assert brokers.count(kind) == [1, 2, 1, 1, 1]


def test_a_broker_that_stays_away_is_named_and_leaves_the_views_of_the_others(brokers, client, clock):
    brokers.refuse[2] = [SILENT] * 1000
    assert listed(client) == SILENT
    assert clock.monotonic() < 10.0
    assert brokers.count("ListTransactions").count(1) == 1

    brokers.refuse[2] = [SILENT] * 1000
    assert survey(client) == ([ONE.transactional_id], SILENT)


def test_a_look_up_is_asked_again_too(brokers, client):
    brokers.refuse["FindCoordinator"] = [NOT_AVAILABLE, SILENT]
    brokers.leaves_out = {OTHER.transactional_id}
    one, other = client.end_transactions([ONE, OTHER], commit=True, deadline_s=1.0)
    assert (one.code, other.code, other.reason) == (0, None, "FindCoordinator did not mention it")
    assert other.never_sent


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("refusals", "times", "outcome"),
    [
        pytest.param([CONCURRENT], 2, Outcome.ABORTED, id="what is refused is asked again"),
        pytest.param([UNSENT], 2, Outcome.ABORTED, id="what was never sent is sent"),
        pytest.param([UNSENT] * 1000, None, Outcome.RETRY, id="until the deadline"),
        pytest.param([CONCURRENT] * 1000, None, Outcome.RETRY, id="until the deadline, too"),
        pytest.param(
            [SILENT], 1, Outcome.RETRY, id="what may still arrive is left to the driver, which has to know of it"
        ),
    ],
)
def test_an_abort_is_sent_again_only_after_an_answer(
    brokers, committer, monkeypatch, version, refusals, times, outcome
):
    monkeypatch.setattr(TransactionClient, "transaction_version", lambda *_, **__: version)
    request = "EndTxn" if version == 2 else "InitProducerId"
    brokers.refuse[request] = list(refusals)
    handle = Handle(sink="kafka", slot=0, rows=1, transaction=transaction_fields(fields_of(ONE)))
    (finished,) = committer.abort([handle])
    assert finished.outcome is outcome
    assert finished.in_flight is (refusals == [SILENT] and version == 1), "EndTxn compares the epoch, however late"
    if times is not None:
        assert brokers.count(request) == [1] * times
    if refusals == [CONCURRENT]:
        # While a transaction is open, version 1 compares only the producer id, so the epoch is checked first.
        kinds = [kind for _, kind in brokers.asked if kind in (request, "DescribeTransactions")]
        assert kinds == ["DescribeTransactions", request] * 2


@pytest.mark.parametrize(
    ("refusals", "asked"),
    [([LOADING, -1, NOT_AVAILABLE], [1, 2, 2, 2, 2]), ([SILENT, SILENT], [1, 2, 2, 2, 1])],
    ids=["loading: no other is asked", "silent: another may have taken over"],
)
def test_who_is_asked_again_for_a_list(brokers, client, refusals, asked):
    brokers.refuse[2] = refusals
    assert listed(client) == BOTH
    assert brokers.count("ListTransactions") == asked
    brokers.holds[1] = [ONE.transactional_id, "p.other.x", "p+q.x", "x.p.q.one"]
    assert listed(client) == BOTH
    assert brokers.patterns == {r"p\.q\..*"}


def test_a_broker_that_is_gone_is_not_waited_for_and_what_it_had_is_found_elsewhere(brokers, client, monkeypatch):
    brokers.refuse[2] = [SILENT] * 1000
    gather = brokers.gather

    async def then_it_leaves(requests: Sequence[tuple[Any, Any]], deadline_s: float) -> list[Any]:
        found = await gather(requests, deadline_s)
        if brokers.count("ListTransactions") == [1, 2, 2]:
            brokers.holds = {1: BOTH}
        return found

    monkeypatch.setattr(brokers, "gather", then_it_leaves)
    assert listed(client) == BOTH
    assert brokers.count("ListTransactions") == [1, 2, 2, 1]


def survey(client: TransactionClient) -> tuple[list[str], BrokerAnswer | None]:
    views, missing = client.survey(["Ongoing"], "p.q.", attempt_s=10.0, deadline_s=100.0)
    return sorted(view.transaction.transactional_id for view in views), missing


@pytest.mark.parametrize("refusal", [LOADING, NOT_COORDINATOR, SILENT])
def test_a_view_that_was_refused_is_asked_for_again_and_no_other(brokers, client, refusal):
    brokers.refuse[2] = [0, refusal]
    assert survey(client) == (BOTH, None)
    assert brokers.count("DescribeTransactions") == [1, 2, 2]


def committed_ids(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = [
        str(TransactionalId(prefix="p", query=QUERY, token=Token(1, "0" * 8), worker=f"{one:012x}", lane=0))
        for one in range(2)
    ]
    brokers.holds = {1: names[:1], 2: names[1:]}
    describe = client_module._description

    def committed(state: Any) -> Description | BrokerAnswer:
        view = describe(state)
        return view if isinstance(view, BrokerAnswer) else Description(view.transaction, "CompleteCommit", 60_000, 5)

    monkeypatch.setattr(client_module, "_description", committed)
    return names


def test_a_start_goes_on_with_what_there_is_where_the_list_cannot_be_had(brokers, committer, monkeypatch, caplog):
    names = committed_ids(brokers, monkeypatch)
    monkeypatch.setattr(TransactionClient, "transaction_version", lambda *_, **__: 2)
    brokers.refuse[2] = [SILENT] * 1000
    traces = committer.list_traces(QUERY, {"prefix": "p"})
    assert [dict(trace.committed)["transactional_id"] for trace in traces] == names[:1]
    assert "reset by peer. The run starts without knowing whether its checkpoint is an old copy" in caplog.text


def test_a_start_waits_for_a_cluster_that_answers_nothing(brokers, committer, monkeypatch):
    committed_ids(brokers, monkeypatch)
    monkeypatch.setattr(TransactionClient, "transaction_version", lambda *_, **__: SILENT)
    brokers.refuse[2] = [NOT_AVAILABLE] * 1000
    with pytest.raises(UnknownOutcomeError, match="COORDINATOR_NOT_AVAILABLE"):
        committer.list_traces(QUERY, {"prefix": "p"})


@pytest.mark.parametrize("refusal", [TIMED_OUT, NOT_AVAILABLE, SILENT])
def test_the_preflights_probe_is_asked_again(brokers, client, refusal):
    brokers.refuse["EndTxn"] = [refusal, refusal, preflight._NOBODY_HAS_THE_ID]
    preflight._check_permission(preflight._Cluster(client, 10.0, "h:1"), "p", QUERY)
    assert len(brokers.count("EndTxn")) == 3


def test_a_coordinator_that_never_works_is_named_by_its_answer(brokers, client):
    brokers.refuse["EndTxn"] = [TIMED_OUT] * 1000
    with pytest.raises(PreflightError, match=r"coordinator within 15 s: REQUEST_TIMED_OUT\."):
        preflight._check_permission(preflight._Cluster(client, 10.0, "h:1"), "p", QUERY)


def test_coordinators_are_remembered_of_a_bounded_number_of_ids(brokers, client, monkeypatch):
    monkeypatch.setattr(client_module, "REMEMBERED", 20)
    for batch in range(50):
        some = [KafkaTransaction(f"p.q.{batch}-{slot}", 7, 3) for slot in range(3)]
        assert [one.code for one in client.end_transactions(some, commit=True, deadline_s=1.0)] == [0] * 3
    assert len(client._coordinators) <= 20 + 3
    assert len(brokers.count("FindCoordinator")) == 50

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.metadata import MetadataRequest

from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.sinks.kafka.committer import KafkaCommitter, LeaderCheck, RetentionCheck
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, Description, KafkaTransaction

NOT_LEADER, NOT_ALLOWED, GONE = 6, 29, 3
MINUTE_MS = 60_000


class Cluster:
    """A topic "t". Each transaction has written to the partition with its own number.

    Attributes:
        starts: The start offsets of the partitions.
        stable: The last stable offsets of the partitions.
        begins: The start offset of each transaction, by number.
        leaderless: The partitions without a leader.
        ended: The transactions that were committed.
        codes: Error codes by partition, returned for all requests except metadata.
        silent: Leaders that do not answer.
        described: The transactions that were described, one list per request.
        metadata_requests: The number of requests for the topic's leaders.
    """

    def __init__(self, *numbers: int) -> None:
        self.transactions = [KafkaTransaction(f"id-{number}", number, 0) for number in numbers]
        self.starts, self.stable = dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 5)
        self.begins = dict.fromkeys(numbers, 5)
        self.codes: dict[int, int] = {}
        self.silent: set[int] = set()
        self.described: list[list[int]] = []
        self.leaderless: set[int] = set()
        self.ended: list[int] = []
        self.metadata_requests = 0

    def describe_transactions(
        self, asked: Sequence[KafkaTransaction], *, deadline_s: float
    ) -> list[Description | BrokerAnswer]:
        self.described.append([one.producer_id for one in asked])
        return [Description(one, "Ongoing", 60_000, 0, (("t", one.producer_id),)) for one in asked]

    def request(self, request: Any, *, deadline_s: float) -> Any:
        assert isinstance(request, MetadataRequest)
        self.metadata_requests += 1
        found = [
            SimpleNamespace(partition_index=one, error_code=0, leader_id=-1 if one in self.leaderless else one)
            for one in {*self.starts, *self.leaderless}
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", error_code=0, partitions=found)])

    def end_transactions(
        self, asked: Sequence[KafkaTransaction], *, commit: bool, deadline_s: float
    ) -> list[BrokerAnswer]:
        self.ended += [one.producer_id for one in asked]
        return [BrokerAnswer(0) for _ in asked]

    def gather(self, requests: Sequence[tuple[Any, int]], *, deadline_s: float) -> list[Any]:
        return [
            BrokerAnswer(None, "silence") if to in self.silent else self._told(request, to) for request, to in requests
        ]

    def _told(self, request: Any, partition: int) -> Any:
        told = SimpleNamespace(partition_index=partition, error_code=self.codes.get(partition, 0))
        if isinstance(request, DescribeProducersRequest):
            begin = self.begins[partition]
            producer = SimpleNamespace(producer_id=partition, producer_epoch=0, current_txn_start_offset=begin)
            told.active_producers = [producer]
        else:
            told.offset = (self.stable if request.isolation_level else self.starts)[partition]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[told])])

    def held(self, check: RetentionCheck, **ages_ms: int) -> Mapping[int, Outcome]:
        now_ms = time.time_ns() // 1_000_000
        begun = {one: now_ms - ages_ms.get(f"of_{one.producer_id}", 10 * MINUTE_MS) for one in self.transactions}
        found = check.held_back(begun, time.monotonic() + 60.0)
        return {one.producer_id: finished.outcome for one, finished in found.items()}


def check_on(cluster: Cluster) -> RetentionCheck:
    return RetentionCheck(cluster)


@pytest.mark.parametrize(
    ("start", "stable", "begin", "is_damaged"),
    [(0, 0, 0, False), (4, 5, 5, False), (5, 5, 5, False), (6, 6, 5, True), (6, 6, -1, True)],
    ids=["nothing was deleted", "older rows alone", "up to its first row", "its first row", "all of it"],
)
def test_what_begins_before_its_partition_has_lost_rows(start, stable, begin, is_damaged):
    cluster = Cluster(1)
    cluster.starts[1], cluster.stable[1], cluster.begins[1] = start, stable, begin
    assert cluster.held(check_on(cluster)) == ({1: Outcome.DAMAGED} if is_damaged else {})


@pytest.mark.parametrize("code", [NOT_LEADER, None])
def test_only_what_has_written_to_a_partition_that_says_nothing_is_held_back(code):
    cluster = Cluster(1, 2, 3)
    cluster.codes, cluster.silent = ({2: code}, set()) if code else ({}, {2})
    cluster.starts[3] = cluster.stable[3] = 9
    check = check_on(cluster)
    assert cluster.held(check) == {2: Outcome.RETRY, 3: Outcome.DAMAGED}
    cluster.codes, cluster.silent = {}, set()
    assert cluster.held(check) == {3: Outcome.DAMAGED}


@pytest.mark.parametrize("code", [NOT_ALLOWED, GONE])
def test_what_may_not_be_asked_and_what_is_gone_holds_nothing_back(code):
    cluster = Cluster(1)
    cluster.codes[1] = code
    assert cluster.held(check_on(cluster)) == {}


def test_a_young_one_is_looked_at_once_a_run_and_not_held_back_by_silence():
    cluster = Cluster(1, 2)
    cluster.silent = {1, 2}
    check = check_on(cluster)
    assert cluster.held(check, of_1=1_000) == {2: Outcome.RETRY}
    cluster.silent = set()
    assert cluster.held(check, of_1=1_000, of_2=1_000) == {}
    cluster.described.clear()
    assert cluster.held(check, of_1=1_000, of_2=-1_000) == {}
    assert cluster.described == []
    cluster.held(check, of_1=1_000, of_2=-2 * MINUTE_MS)
    assert cluster.described == [[2]], "a clock that is far ahead hides how old it is"

    cluster = Cluster(1)
    cluster.starts[1] = cluster.stable[1] = 9
    check = check_on(cluster)
    for _ in range(2):
        assert cluster.held(check, of_1=1_000) == {1: Outcome.DAMAGED}


def committer_on(cluster: Cluster, topic: str | None) -> KafkaCommitter:
    committer = KafkaCommitter.__new__(KafkaCommitter)
    committer._client = cluster
    committer._name, committer._attempt_timeout_s, committer._described = "kafka", 10.0, None
    committer._retention = SimpleNamespace(held_back=lambda *_: {})
    committer._leaders = LeaderCheck(cluster, topic)
    return committer


@pytest.mark.parametrize("topic", ["t", None])
def test_what_has_written_to_a_partition_without_a_leader_is_committed_once_it_has_one(topic):
    """Kafka 4.3 and 4.4 may forget the marker there, and the rows stay hidden (KAFKA-20734)."""
    cluster = Cluster(1, 2)
    committer = committer_on(cluster, topic)
    wanted = {one: Handle(sink="kafka", slot=0, rows=1, transaction={}) for one in cluster.transactions}

    def outcomes() -> dict[int, Outcome]:
        return {one.producer_id: finished.outcome for one, finished in committer.commit_all(wanted).items()}

    cluster.leaderless = {2, 3}
    assert outcomes() == {1: Outcome.COMMITTED, 2: Outcome.RETRY}
    assert cluster.ended == [1]
    cluster.leaderless, cluster.ended, cluster.described = {3}, [], []
    assert outcomes() == dict.fromkeys((1, 2), Outcome.COMMITTED)
    assert cluster.ended == [1, 2]
    assert cluster.described == [[1, 2]]
    cluster.leaderless, cluster.described = set(), []
    assert outcomes() == dict.fromkeys((1, 2), Outcome.COMMITTED)
    assert cluster.described == ([] if topic else [[1, 2]])


def test_a_commit_takes_the_leaders_from_the_question_before_its_decision(monkeypatch):
    monkeypatch.setattr("sparkonce.sinks.kafka.committer._METADATA_VALID_S", 60.0)  # this machine may be slow
    cluster = Cluster(1)
    committer = committer_on(cluster, "t")
    wanted = {one: Handle(sink="kafka", slot=0, rows=1, transaction={}) for one in cluster.transactions}

    def outcome() -> Outcome:
        (finished,) = committer.commit_all(wanted).values()
        return finished.outcome

    assert committer.before_decision({"topic": "t"}) == ""
    assert (outcome(), cluster.metadata_requests) == (Outcome.COMMITTED, 1)
    assert (outcome(), cluster.metadata_requests) == (Outcome.COMMITTED, 2), "a second attempt asks again"

    cluster.leaderless = {1}
    assert committer.before_decision({"topic": "t"}) == ""
    cluster.leaderless = set()
    assert [outcome(), outcome()] == [Outcome.RETRY, Outcome.COMMITTED]

    assert committer.before_decision({"topic": "t"}) == ""
    monkeypatch.setattr("sparkonce.sinks.kafka.committer._METADATA_VALID_S", 0.0)
    cluster.leaderless = {1}
    assert outcome() is Outcome.RETRY, "the decision took too long"

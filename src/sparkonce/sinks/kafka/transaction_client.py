"""Requests to coordinators and partition leaders that librdkafka does not offer, sent with kafka-python.

`TransactionClient` describes and ends transactions through their coordinators. `sparkonce.sources.groups` uses it
to commit the offsets of groups. `ask_leaders` queries the leaders of a topic's partitions for offsets and producers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer.offsets import IsolationLevel, ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from sparkonce.errors import one_line
from sparkonce.sinks.kafka.connection import KafkaConnection, Request, Response, Waiting
from sparkonce.sinks.kafka.outcomes import (
    MOVED,
    NONE,
    TRANSACTIONAL_ID_NOT_FOUND,
    BrokerAnswer,
    Description,
    KafkaTransaction,
    is_unanswered,
)

CONNECTIONS = 4
"""The number of connections to each coordinator.

A broker handles one request per connection at a time: 50 commits on an idle broker take 18 ms over one connection and 8
ms over four (measured, Kafka 4.3).
"""
REMEMBERED = 10_000
"""The number of ids whose coordinators are cached.

Beyond this number, the whole cache is cleared, and the ids are looked up again in one round trip.
"""
_DESCRIBED_AT_ONCE = 1000

_SOME = -1
"""Stands for all brokers until their ids are known."""

_TRANSACTION = CoordinatorType.TRANSACTION
_DOING = {
    _TRANSACTION: "find out about or end transactions",
    CoordinatorType.GROUP: "find out about a group or commit its offsets",
}

_EPOCH_KEPT = {"max_version": 4}
_EPOCH_RAISED = {"min_version": 5, "max_version": 5}
"""The version of EndTxn that makes the broker raise the producer's epoch (KIP-890)."""

Partition = tuple[str, int]

MakeRequest = Callable[[Mapping[str, list[int]]], Request]
"""Creates a request for one leader's partitions, grouped by topic."""

LEADER_NOT_AVAILABLE = 5

_FIRST_PAUSE_S = 0.25


class TransactionClient:
    """Sends requests to coordinators. The requests of one call are sent in parallel. Deadlines use `time.monotonic`.

    A request is repeated until the deadline if it gets no answer, or an answer that asks for a retry. Aborts are the
    exception: they are sent once, because the transaction must be described again before another abort.

    A coordinator's address is looked up once, and cached until the coordinator moves or does not answer.
    """

    def __init__(self, settings: Mapping[str, Any], connections: int = CONNECTIONS) -> None:
        self._connection = KafkaConnection(settings)
        self._connections = connections
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}
        self._looked_up_by: object = None
        self.waiting = Waiting()

    def end_transactions(
        self, transactions: Sequence[KafkaTransaction], *, commit: bool, deadline_s: float
    ) -> list[BrokerAnswer]:
        """Commits or aborts each transaction, and returns the answers in the same order.

        A commit leaves the epoch unchanged (EndTxn up to v4), so the commit can be repeated. An abort raises the epoch
        (EndTxn v5, KIP-890), so the writer cannot reopen the transaction. Aborts need `transaction_version` 2.
        """
        versions = _EPOCH_KEPT if commit else _EPOCH_RAISED
        is_open = is_unanswered if commit else _is_never_sent
        requests = [(one.transactional_id, _end_txn(one, commit, **versions)) for one in transactions]
        return self.ask_coordinators(requests, deadline_s, is_open=is_open)

    def fence(self, transactions: Mapping[KafkaTransaction, int], *, deadline_s: float) -> list[BrokerAnswer]:
        """Aborts by initializing the ids again (InitProducerId v3+), for clusters below transaction version 2.

        The broker raises the epoch, aborts the open transaction, and answers CONCURRENT_TRANSACTIONS until the abort is
        done. For an open transaction, the broker compares the producer id but not the epoch, so describe the
        transaction first.

        The mapping has, for each transaction, the timeout in milliseconds to keep for its id.
        """
        requests = [
            (
                transaction.transactional_id,
                InitProducerIdRequest(
                    transactional_id=transaction.transactional_id,
                    transaction_timeout_ms=timeout_ms,
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.epoch,
                    min_version=3,
                    max_version=5,
                ),
            )
            for transaction, timeout_ms in transactions.items()
        ]
        return self.ask_coordinators(requests, deadline_s, is_open=_is_never_sent)

    def describe_transactions(
        self, transactions: Sequence[KafkaTransaction], *, deadline_s: float
    ) -> list[Description | BrokerAnswer]:
        """Returns the coordinators' views of the transactional ids. A `BrokerAnswer` replaces a missing view."""
        names = [one.transactional_id for one in transactions]
        views = self.ask_coordinators(
            [(name, DescribeTransactionsRequest(transactional_ids=[name])) for name in names],
            deadline_s,
            read=lambda response: _description(response.transaction_states[0]),
        )
        found = [_of_this_id(view, one) for view, one in zip(views, transactions, strict=True)]
        return [
            replace(view, coordinator=self._coordinators.get((_TRANSACTION, one.transactional_id), -1))
            if isinstance(view, Description)
            else view
            for view, one in zip(found, transactions, strict=True)
        ]

    def list_transactions(
        self, states: Sequence[str], begins: Sequence[str], *, deadline_s: float
    ) -> list[str] | BrokerAnswer:
        """Lists the ids with one of these prefixes and states on all brokers; a `BrokerAnswer` if any broker fails."""
        listed, missing = self._list(states, begins, deadline_s - time.monotonic(), deadline_s)
        return list(listed) if missing is None else missing

    def survey(
        self, states: Sequence[str], begins: str, *, attempt_s: float, deadline_s: float
    ) -> tuple[list[Description], BrokerAnswer | None]:
        """Describes all ids with this prefix and these states; there may be many.

        Each broker describes the ids that it lists, so no coordinator has to be looked up. Ids that a broker forgets
        between the two requests are left out.

        Args:
            states: The states, by the broker's names.
            begins: The prefix of the ids.
            attempt_s: The time limit for a broker's first list. It doubles after each timeout, because a large cluster
                takes long to list its transactions.
            deadline_s: When to stop retrying.

        Returns:
            The views, and the reason why some are missing; None if they are complete.
        """
        views: dict[str, Description] = {}
        again = self.waiting.until(deadline_s, "describe transactions")
        while True:
            listed, missing = self._list(states, [begins], attempt_s, deadline_s)
            unseen = {name: broker for name, broker in listed.items() if name not in views}
            missing = self._describe_at(unseen, views, deadline_s) or missing
            if missing is None or not again(missing):
                return list(views.values()), missing

    def _describe_at(
        self, brokers: Mapping[str, int], views: dict[str, Description], deadline_s: float
    ) -> BrokerAnswer | None:
        """Adds the views of these ids. Returns the reason why some are missing; None if they are complete."""
        chosen: dict[int, list[str]] = {}
        for name, broker in brokers.items():
            chosen.setdefault(broker, []).append(name)
        requests = [
            (DescribeTransactionsRequest(transactional_ids=names[start : start + _DESCRIBED_AT_ONCE]), broker)
            for broker, names in chosen.items()
            for start in range(0, len(names), _DESCRIBED_AT_ONCE)
        ]
        missing = None
        for (_, broker), response in zip(requests, self.gather(requests, deadline_s=deadline_s), strict=True):
            if isinstance(response, BrokerAnswer):
                missing = response
                continue
            for state in response.transaction_states:
                view = _description(state)
                if isinstance(view, Description):
                    views[view.transaction.transactional_id] = replace(view, coordinator=broker)
                elif view.code != TRANSACTIONAL_ID_NOT_FOUND:
                    missing = view
        return missing

    def _list(
        self, states: Sequence[str], begins: Sequence[str], attempt_s: float, deadline_s: float
    ) -> tuple[dict[str, int], BrokerAnswer | None]:
        """Returns the broker of each id with one of these prefixes and states, and the reason why some may be missing.

        Since Kafka 4.1 (KIP-1152), brokers filter the ids by a pattern. Older brokers are not sent the pattern, and
        list all ids.
        """
        pattern = "|".join(f"{re.escape(begin)}.*" for begin in begins)
        request = ListTransactionsRequest(state_filters=list(states), transactional_id_pattern=pattern)
        start = tuple(begins)
        found: dict[str, int] = {}
        answered: set[int] = set()
        silent: set[int] = set()
        again = self.waiting.until(deadline_s, "list transactions")
        while True:
            until_s = min(deadline_s, time.monotonic() + attempt_s)
            told = self._connection.call(partial(self._ask_brokers, request, answered, until_s), until_s)
            brokers: set[int] = {_SOME}
            replies: dict[int, Response] = {_SOME: told}
            if not isinstance(told, BrokerAnswer):
                brokers, replies = told
            refused = {broker: answer for broker, reply in replies.items() if (answer := _answer(reply)).code != NONE}
            for broker in replies.keys() - refused:
                names = (one.transactional_id for one in replies[broker].transaction_states)
                found.update((name, broker) for name in names if name.startswith(start))
            still_silent = {broker for broker, answer in refused.items() if answer.code is None}
            if silent - still_silent:
                # The set of brokers has changed: a broker that did not answer is back or has been removed. Its ids may
                # now have other coordinators, so query all brokers again.
                answered.clear()
            answered.update(replies.keys() - refused)
            silent = still_silent
            if answered >= brokers:
                return found, None
            missing = next(iter(refused.values()), BrokerAnswer(None, "brokers joined or left during the requests"))
            if not again(missing):
                return found, missing
            if silent:
                attempt_s *= 2

    async def _ask_brokers(
        self, request: Request, answered: set[int], deadline_s: float
    ) -> tuple[set[int], dict[int, Response]] | BrokerAnswer:
        """Returns the current brokers, and the replies of brokers that are not in ``answered``."""
        metadata_request = MetadataRequest(topics=[], min_version=2, max_version=9)
        (metadata,) = await self._connection.gather([(metadata_request, None)], deadline_s)
        if isinstance(metadata, BrokerAnswer):
            return metadata
        self._connection.manager.cluster.update_metadata(metadata)
        brokers = {broker.node_id for broker in metadata.brokers}
        asked = sorted(brokers - answered)
        replies = await self._connection.gather([(request, broker) for broker in asked], deadline_s)
        return brokers, dict(zip(asked, replies, strict=True))

    def transaction_version(self, *, deadline_s: float) -> int | BrokerAnswer:
        """Returns the cluster's finalized feature ``transaction.version``; 0 if it has none (KIP-584, KIP-890)."""
        response = self.request(versions_request(), deadline_s=deadline_s)
        answer = _answer(response)
        if answer.code != NONE:
            return answer
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}
        return int(levels.get("transaction.version", 0))

    def probe(self, transaction: KafkaTransaction, *, deadline_s: float) -> BrokerAnswer:
        """Checks the permission to abort, by sending EndTxn v4 for an id that does not exist."""
        request = _end_txn(transaction, False, **_EPOCH_KEPT)
        (answer,) = self.ask_coordinators([(transaction.transactional_id, request)], deadline_s)
        return BrokerAnswer(answer.code, answer.reason)

    def request(self, request: Request, *, deadline_s: float, node_id: int | None = None) -> Response:
        """Sends a request to one broker, or to any. Returns the response, or a `BrokerAnswer` without a code."""
        return self.gather([(request, node_id)], deadline_s=deadline_s)[0]

    def insist(
        self,
        request: Request,
        *,
        deadline_s: float,
        node_id: int | None = None,
        is_final: Callable[[BrokerAnswer], bool] = lambda _: False,
    ) -> Response:
        """Repeats a request until a broker answers, but only a few times, since servers may lock out frequent logins.

        ``node_id`` None means any broker. There is no retry after a failure that ``is_final``. If there is no response,
        returns a `BrokerAnswer` with the reasons of all attempts.
        """
        reasons: dict[str, None] = {}
        pause_s = _FIRST_PAUSE_S
        while True:
            response = self.request(request, deadline_s=deadline_s, node_id=node_id)
            if not isinstance(response, BrokerAnswer):
                return response
            reasons[response.reason] = None
            if time.monotonic() + pause_s >= deadline_s or is_final(response):
                return BrokerAnswer(None, "; ".join(reasons))
            time.sleep(pause_s)
            pause_s *= 2

    def gather(self, requests: Sequence[tuple[Request, int | None]], *, deadline_s: float) -> list[Response]:
        """Sends each request to its broker, all at the same time. Returns the same as `request` for each."""
        responses = self._connection.call(partial(self._connection.gather, requests, deadline_s), deadline_s)
        return [responses] * len(requests) if isinstance(responses, BrokerAnswer) else responses

    def close(self) -> None:
        self._connection.close()

    def ask_coordinators(
        self,
        requests: Sequence[tuple[str, Request]],
        deadline_s: float,
        *,
        kind: CoordinatorType = _TRANSACTION,
        read: Callable[[Response], Any] | None = None,
        is_open: Callable[[BrokerAnswer], bool] = is_unanswered,
    ) -> list[Any]:
        """Sends each request to the coordinator of its transactional id or group, until no answer `is_open`.

        ``read`` converts a response without an error into a result.
        """
        results: list[Any] = [None] * len(requests)
        waiting: Sequence[int] = range(len(requests))
        again = self.waiting.until(deadline_s, _DOING[kind])
        while True:
            asked = [requests[index] for index in waiting]
            found = self._connection.call(partial(self._ask_once, asked, deadline_s, kind, read), deadline_s)
            for turn, index in enumerate(waiting):
                results[index] = found if isinstance(found, BrokerAnswer) else found[turn]
            waiting = [
                index for index in waiting if isinstance(results[index], BrokerAnswer) and is_open(results[index])
            ]
            if not waiting or not again(results[waiting[0]]):
                return results

    async def _ask_once(
        self,
        requests: Sequence[tuple[str, Request]],
        deadline_s: float,
        kind: CoordinatorType,
        read: Callable[[Response], Any] | None,
    ) -> list[Any]:
        nodes = await self._find_coordinators(kind, [name for name, _ in requests], deadline_s)
        results: list[Any] = [nodes[name] for name, _ in requests]
        known = [index for index, node in enumerate(results) if not isinstance(node, BrokerAnswer)]
        sent = [
            (requests[index][1], f"coordinator-{results[index]}.{turn % self._connections}")
            for turn, index in enumerate(known)
        ]
        for index, response in zip(known, await self._connection.gather(sent, deadline_s), strict=True):
            result = _answer(response) if read is None or isinstance(response, BrokerAnswer) else read(response)
            results[index] = result
            if isinstance(result, BrokerAnswer) and (result.code is None or result.code in MOVED):
                self._coordinators.pop((kind, requests[index][0]), None)
        return results

    async def _find_coordinators(
        self, kind: CoordinatorType, names: Sequence[str], deadline_s: float
    ) -> dict[str, int | BrokerAnswer]:
        """Returns the coordinator of each name, cached or looked up in one round trip for all (KIP-699)."""
        if self._looked_up_by is not self._connection.manager or len(self._coordinators) > REMEMBERED:
            self._coordinators.clear()
            self._looked_up_by = self._connection.manager
        unknown = [name for name in dict.fromkeys(names) if (kind, name) not in self._coordinators]
        failed: dict[str, BrokerAnswer] = {}
        if unknown:
            request = FindCoordinatorRequest(key_type=kind.value, coordinator_keys=unknown, min_version=4)
            response = (await self._connection.gather([(request, None)], deadline_s))[0]
            if isinstance(response, BrokerAnswer):
                # The lookup got no response, so the request itself was never sent.
                failed = dict.fromkeys(unknown, replace(response, never_sent=True))
            else:
                found = response.coordinators
                failed = {one.key: _answer(one) for one in found if not self._remember(kind, one)}
        unmentioned = BrokerAnswer(None, "FindCoordinator did not mention it", never_sent=True)
        return {
            name: failed[name] if name in failed else self._coordinators.get((kind, name), unmentioned)
            for name in names
        }

    def _remember(self, kind: CoordinatorType, found: Any) -> bool:
        if found.error_code != NONE:
            return False
        self._coordinators[kind, found.key] = found.node_id
        for number in range(self._connections):
            # kafka-python keeps one connection per node id, and names the connection for this node id
            # "coordinator-<id>".
            own_id = f"{found.node_id}.{number}"
            node = SimpleNamespace(error_code=NONE, node_id=own_id, host=found.host, port=found.port)
            self._connection.manager.cluster.add_coordinator(node, kind, f"connection {number}")
        return True


def versions_request() -> Request:
    """Requests the versions of requests that a broker supports, and the cluster's features."""
    return ApiVersionsRequest(client_software_name="sparkonce", client_software_version="1", min_version=3)


def _end_txn(transaction: KafkaTransaction, commit: bool, **versions: int) -> Request:
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        committed=commit,
        **versions,
    )


def _is_never_sent(answer: BrokerAnswer) -> bool:
    return answer.never_sent


def _answer(response: Response) -> BrokerAnswer:
    if isinstance(response, BrokerAnswer):
        return response
    return BrokerAnswer(response.error_code, one_line(getattr(response, "error_message", None) or ""))


def _description(state: Any) -> Description | BrokerAnswer:
    if state.error_code != NONE:
        return _answer(state)
    return Description(
        transaction=KafkaTransaction(state.transactional_id, state.producer_id, state.producer_epoch),
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms,
        partitions=tuple((topic.topic, number) for topic in state.topics for number in topic.partitions),
    )


def _of_this_id(view: Description | BrokerAnswer, asked: KafkaTransaction) -> Description | BrokerAnswer:
    """Returns the description, or an error if it describes a different id than the requested one."""
    if isinstance(view, BrokerAnswer) or view.transaction.transactional_id == asked.transactional_id:
        return view
    said, wanted = view.transaction.transactional_id, asked.transactional_id
    return BrokerAnswer(None, f"asked for the transactional id {wanted!r}, and the broker describes {said!r}")


def metadata_request(*topics: str, rights: bool = False, every: bool = False) -> Request:
    """Requests metadata of these topics or, with ``every``, of all topics, without creating any.

    ``rights`` also requests the user's permissions.
    """
    named = None if every else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=rights)


def leaders_of(metadata: Response) -> dict[Partition, int | BrokerAnswer]:
    """Returns the leader of each partition in the response to a `metadata_request`, or why it has none."""
    found: dict[Partition, int | BrokerAnswer] = {}
    for topic in metadata.topics:
        for one in topic.partitions:
            code = topic.error_code or one.error_code or (LEADER_NOT_AVAILABLE if one.leader_id < 0 else NONE)
            partition = (topic.name, one.partition_index)
            found[partition] = one.leader_id if code == NONE else _refused(partition, code)
    return found


def ask_leaders(
    client: TransactionClient, leaders: Mapping[Partition, int], *requests: MakeRequest, deadline_s: float
) -> list[dict[Partition, Any]]:
    """Sends each leader one request of each kind for all of its partitions, all at the same time.

    Returns for each kind of request the leaders' replies by partition. A `BrokerAnswer` replaces a missing reply.
    """
    asked: dict[int, dict[str, list[int]]] = {}
    for (topic, number), leader in sorted(leaders.items()):
        asked.setdefault(leader, {}).setdefault(topic, []).append(number)
    sent = [(request(topics), leader) for request in requests for leader, topics in asked.items()]
    responses = iter(client.gather(sent, deadline_s=deadline_s) if sent else ())
    return [
        {partition: reply for topics in asked.values() for partition, reply in _by_partition(topics, next(responses))}
        for _ in requests
    ]


def answered(replies: Mapping[Partition, Any]) -> dict[Partition, Any]:
    """Returns the replies that are not a `BrokerAnswer`."""
    return {partition: reply for partition, reply in replies.items() if not isinstance(reply, BrokerAnswer)}


def _by_partition(topics: Mapping[str, list[int]], response: Response) -> Iterator[tuple[Partition, Any]]:
    if isinstance(response, BrokerAnswer):
        yield from (((name, number), response) for name, numbers in topics.items() for number in numbers)
        return
    for topic in response.topics:
        for one in topic.partitions:
            partition = (topic.name, one.partition_index)
            yield partition, one if one.error_code == NONE else _refused(partition, one.error_code)


def _refused(partition: Partition, code: int) -> BrokerAnswer:
    return BrokerAnswer(code, f"partition {partition[1]} of topic {partition[0]!r}")


def list_offsets(topics: Mapping[str, list[int]], *, when: int | Mapping[Partition, int], level: int) -> Request:
    """Requests an offset of each partition: of its first row, its end, or its first row at or after a timestamp.

    ``when`` is one of `OffsetSpec` or a timestamp, for all partitions or for each; ``level`` is one of
    `IsolationLevel`.
    """
    kind = ListOffsetsRequest.ListOffsetsTopic
    times = when if isinstance(when, Mapping) else {(name, one): when for name in topics for one in topics[name]}
    asked = [
        kind(
            name=name,
            partitions=[
                kind.ListOffsetsPartition(partition_index=number, timestamp=times[name, number])
                for number in numbers
                if (name, number) in times
            ],
        )
        for name, numbers in topics.items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=asked, min_version=2, max_version=7)


start_offsets = partial(list_offsets, when=OffsetSpec.EARLIEST, level=IsolationLevel.READ_UNCOMMITTED)

end_offsets = partial(list_offsets, when=OffsetSpec.LATEST, level=IsolationLevel.READ_UNCOMMITTED)

last_stable_offsets = partial(list_offsets, when=OffsetSpec.LATEST, level=IsolationLevel.READ_COMMITTED)
"""Requests the last stable offset of each partition, up to which read_committed readers see rows."""


def producers(topics: Mapping[str, list[int]]) -> Request:
    """Requests the producers known to the leaders, with the start of their open transactions (KIP-664)."""
    kind = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[kind(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
    )

"""Commits a consumer group's offsets from outside the group, alone or inside another process's transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.errors import for_code
from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from sparkonce.errors import one_line
from sparkonce.sinks.kafka.connection import KafkaConnection, Request, Response
from sparkonce.sinks.kafka.outcomes import MOVED, NONE, BrokerAnswer, KafkaTransaction
from sparkonce.sinks.kafka.transaction_client import REMEMBERED
from sparkonce.sources.offsets import Offsets

_ASK_AGAIN_S = 0.05
_AGAIN = frozenset({None, 14, 51, *MOVED})
"""No answer, COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT_TRANSACTIONS, or the coordinator has moved."""

_UNKNOWN_MEMBER = 25
_MEMBERS = "the group has members: consumers that subscribe with this group id; name another group"
_ADVICE: Mapping[int, str] = {
    22: _MEMBERS,
    _UNKNOWN_MEMBER: _MEMBERS,
    29: "this user needs READ on the topics",
    30: "this user needs READ on the group",
    53: "this user needs WRITE on the transactional ids",
}

_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})
"""The states of a group without members (DescribeGroups); a group that has never existed is Dead too."""

_GROUP = CoordinatorType.GROUP
_TRANSACTION = CoordinatorType.TRANSACTION


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a request.

    Attributes:
        reason: The reason why it failed, as far as it is known; empty if it succeeded.
        may_arrive: True if it was sent and not answered, so that it may still be carried out at any time.
    """

    reason: str = ""
    may_arrive: bool = False


class GroupClient:
    """Sends requests to coordinators. Deadlines are by `time.monotonic`.

    Args:
        settings: kafka-python's settings, see `sparkonce.sinks.kafka.settings.admin_settings`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._connection = KafkaConnection(settings)
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}

    def commit(self, group: str, offsets: Offsets, *, deadline_s: float) -> str:
        """Commits offsets. Returns the reason if that fails, else an empty string."""
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,  # with no member's id: like kafka-consumer-groups --reset-offsets
            member_id="",
            topics=_topics(OffsetCommitRequest.OffsetCommitRequestTopic, offsets),
            max_version=9,  # from 10 on topics have ids instead of names
        )
        return self._ask(_GROUP, group, request, _first_error, deadline_s).reason

    def commit_in(self, transaction: KafkaTransaction, group: str, offsets: Offsets, *, deadline_s: float) -> Reply:
        """Adds offsets to an open transaction, which commits or aborts them.

        Any process that knows the transaction's producer id and epoch may do that. A request without an answer is not
        sent again, and the transaction must not be committed. The request may arrive after the commit, and would then
        open the transaction again, under the same epoch.
        """
        if members := self._members(group, deadline_s):
            return members  # Kafka itself would accept the offsets: in a transaction it does not check the sender
        owner = {
            "transactional_id": transaction.transactional_id,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.epoch,
            "group_id": group,
        }
        # Clients below transaction version 2 send version 4 of this and the next request, which every broker accepts.
        enter = AddOffsetsToTxnRequest(**owner, max_version=4)
        key = transaction.transactional_id
        reply = self._ask(_TRANSACTION, key, enter, lambda one: int(one.error_code), deadline_s, once=True)
        if reply.reason:
            return reply
        request = TxnOffsetCommitRequest(
            **owner,
            generation_id=-1,
            member_id="",
            topics=_topics(TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, offsets),
            min_version=3,
            max_version=4,
        )
        return self._ask(_GROUP, group, request, _first_error, deadline_s, once=True)

    def _members(self, group: str, deadline_s: float) -> Reply | None:
        """Returns the reply to give if the group has members, or if that is not known; None otherwise."""
        states: list[str] = []

        def read(response: Response) -> int:
            (described,) = response.groups
            states.append(described.group_state)
            return int(described.error_code)

        request = DescribeGroupsRequest(groups=[group], max_version=5)
        reply = self._ask(_GROUP, group, request, read, deadline_s)
        if reply.reason:
            return Reply(reply.reason)
        if states[-1] not in _WITHOUT_MEMBERS:
            return Reply(f"its state is {states[-1]}: {_ADVICE[_UNKNOWN_MEMBER]}")
        return None

    def cluster_id(self, *, deadline_s: float) -> str | BrokerAnswer:
        """Returns the cluster's id, or the reason why it is not known."""
        response = self._send(MetadataRequest(topics=[], min_version=2, max_version=9), None, deadline_s)
        return response if isinstance(response, BrokerAnswer) else str(response.cluster_id)

    def close(self) -> None:
        """Closes every connection."""
        self._connection.close()

    def _ask(
        self,
        kind: CoordinatorType,
        key: str,
        request: Request,
        read: Callable[[Response], int],
        deadline_s: float,
        *,
        once: bool = False,
    ) -> Reply:
        """Asks the coordinator until it answers, or the deadline; with ``once`` a silent request is not repeated."""
        while True:
            node = self._coordinator(kind, key, deadline_s)
            sent = not isinstance(node, BrokerAnswer)
            answer = node if isinstance(node, BrokerAnswer) else self._answer(request, node, read, deadline_s)
            if answer.code == NONE:
                return Reply()
            self._coordinators.pop((kind, key), None)
            silent = sent and answer.code is None and not answer.never_sent
            late = time.monotonic() + _ASK_AGAIN_S >= deadline_s
            if answer.code not in _AGAIN or late or (once and silent):
                return Reply(_words(answer), may_arrive=silent)
            time.sleep(_ASK_AGAIN_S)

    def _coordinator(self, kind: CoordinatorType, key: str, deadline_s: float) -> int | BrokerAnswer:
        if len(self._coordinators) > REMEMBERED:
            self._coordinators.clear()
        if (kind, key) not in self._coordinators:
            look_up = FindCoordinatorRequest(key_type=kind.value, coordinator_keys=[key], min_version=4, max_version=5)
            response = self._send(look_up, None, deadline_s)
            if isinstance(response, BrokerAnswer):
                return response
            (found,) = response.coordinators
            if found.error_code != NONE:
                return BrokerAnswer(found.error_code, one_line(found.error_message or ""))
            self._coordinators[kind, key] = found.node_id
        return self._coordinators[kind, key]

    def _answer(self, request: Request, node: int, read: Callable[[Response], int], deadline_s: float) -> BrokerAnswer:
        response = self._send(request, node, deadline_s)
        return response if isinstance(response, BrokerAnswer) else BrokerAnswer(read(response))

    def _send(self, request: Request, node: int | None, deadline_s: float) -> Response:
        async def ask() -> Response:
            return (await self._connection.gather([(request, node)], deadline_s))[0]

        return self._connection.call(ask, deadline_s)


def _topics(kind: Any, offsets: Offsets) -> list[Any]:
    partition = next(value for name, value in vars(kind).items() if name.endswith("RequestPartition"))
    return [
        kind(
            name=topic,
            partitions=[
                partition(partition_index=number, committed_offset=offset, committed_metadata="")
                for number, offset in sorted(partitions.items())
            ],
        )
        for topic, partitions in sorted(offsets.items())
    ]


def _first_error(response: Response) -> int:
    codes = (partition.error_code for topic in response.topics for partition in topic.partitions)
    return next((int(code) for code in codes if code != NONE), NONE)


def _words(answer: BrokerAnswer) -> str:
    if answer.code is None:
        return f"no answer ({answer.reason})"
    name = for_code(answer.code).__name__.removesuffix("Error")
    more = _ADVICE.get(answer.code, answer.reason)
    return f"{name}: {more}" if more else name

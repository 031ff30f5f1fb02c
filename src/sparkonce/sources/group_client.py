"""Commits a consumer group's offsets from outside the group, alone or inside another process's transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.errors import for_code
from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from sparkonce.sinks.kafka.connection import Response
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, KafkaTransaction, is_retriable, is_unanswered
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sources.offsets import Offsets

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
"""The states of a group without members (DescribeGroups). A group that has never existed is Dead, too."""

_GROUP = CoordinatorType.GROUP


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a request.

    Attributes:
        reason: Why the request failed, if known; empty if it succeeded.
        may_arrive: True if the request was sent and not answered, and may therefore still be carried out at any time.
    """

    reason: str = ""
    may_arrive: bool = False


def commit_offsets(client: TransactionClient, group: str, offsets: Offsets, *, deadline_s: float) -> str:
    """Commits offsets. Returns the reason if that fails, otherwise an empty string."""
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,  # without a member id, like kafka-consumer-groups --reset-offsets
        member_id="",
        topics=_topics(OffsetCommitRequest.OffsetCommitRequestTopic, offsets),
        max_version=9,  # since version 10, topics have ids instead of names
    )
    return _ask(client, _GROUP, group, request, deadline_s, _first_error, is_unanswered).reason


def commit_offsets_in(
    client: TransactionClient, transaction: KafkaTransaction, group: str, offsets: Offsets, *, deadline_s: float
) -> Reply:
    """Adds offsets to an open transaction, which commits or aborts them.

    Any process that knows the transaction's producer id and epoch can do that. If a request gets no answer, it is not
    repeated, and the transaction must not be committed: the request may arrive after the commit, and would then reopen
    the transaction under the same epoch.
    """
    if members := _members(client, group, deadline_s):
        return members  # Kafka would accept the offsets anyway: in a transaction it does not check who sends them.
    owner = {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "group_id": group,
    }
    # Clients below transaction version 2 use version 4 of this request and of the next one. Every broker accepts it.
    enter = AddOffsetsToTxnRequest(**owner, max_version=4)
    name = transaction.transactional_id
    reply = _ask(client, CoordinatorType.TRANSACTION, name, enter, deadline_s, None, _is_refused_or_never_sent)
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
    return _ask(client, _GROUP, group, request, deadline_s, _first_error, _is_refused_or_never_sent)


def _members(client: TransactionClient, group: str, deadline_s: float) -> Reply | None:
    """Returns an error reply if the group has members, or if that is unknown; otherwise None."""
    states: list[str] = []

    def read(response: Response) -> BrokerAnswer:
        (described,) = response.groups
        states.append(described.group_state)
        return BrokerAnswer(int(described.error_code))

    request = DescribeGroupsRequest(groups=[group], max_version=5)
    reply = _ask(client, _GROUP, group, request, deadline_s, read, is_unanswered)
    if reply.reason:
        return Reply(reply.reason)
    if states[-1] not in _WITHOUT_MEMBERS:
        return Reply(f"its state is {states[-1]}: {_ADVICE[_UNKNOWN_MEMBER]}")
    return None


def _is_refused_or_never_sent(answer: BrokerAnswer) -> bool:
    """Returns True if the request cannot arrive late and may be repeated."""
    return answer.never_sent or is_retriable(answer)


def _ask(
    client: TransactionClient,
    kind: CoordinatorType,
    name: str,
    request: Any,
    deadline_s: float,
    read: Callable[[Response], BrokerAnswer] | None,
    is_open: Callable[[BrokerAnswer], bool],
) -> Reply:
    (answer,) = client.ask_coordinators([(name, request)], deadline_s, kind=kind, read=read, is_open=is_open)
    if answer.code == NONE:
        return Reply()
    return Reply(_words(answer), may_arrive=answer.code is None and not answer.never_sent)


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


def _first_error(response: Response) -> BrokerAnswer:
    codes = (partition.error_code for topic in response.topics for partition in topic.partitions)
    return BrokerAnswer(next((int(code) for code in codes if code != NONE), NONE))


def _words(answer: BrokerAnswer) -> str:
    if answer.code is None:
        return f"no answer ({answer.reason})"
    name = for_code(answer.code).__name__.removesuffix("Error")
    more = _ADVICE.get(answer.code, answer.reason)
    return f"{name}: {more}" if more else name

"""Commits a query's offsets to a consumer group, so that lag monitoring tools see its progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka.errors import for_code
from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from sparkonce.arguments import number, texts
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.connection import Response
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, KafkaTransaction, is_retriable, is_unanswered
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sources.offsets import Offsets, kafka_offsets

if TYPE_CHECKING:
    from sparkonce.sinks.kafka.transaction_client import TransactionClient


logger = logging.getLogger("sparkonce")

_LEAST_S = 0.1
"""The minimum time that must be left for another request."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Commits each batch's end offsets to a consumer group after the batch is decided and finished.

    The offsets are for monitoring, like those of Flink's ``setCommitOffsetsOnCheckpoints``. The query itself resumes
    from its checkpoint. If a commit fails, a warning is logged, and the next batch commits newer offsets. There is one
    exception: if a broker does not answer after offsets were sent into a transaction, they may still arrive. The batch
    is then not decided, the query stops, and the restarted query runs the batch again.

    Example:
        ```python
        from sparkonce import ExactlyOnce, GroupOffsets

        offsets = GroupOffsets("totals", {"bootstrap.servers": "broker:9092"})
        ExactlyOnce(sink, "/data/checkpoints/totals", group_offsets=offsets).start(totals)
        ```

    Args:
        group: The group's id. The group must have no members.
        settings: The settings of the cluster that the query reads, under librdkafka's names, as for `KafkaSink`.
        topics: The topics whose offsets are committed; None for all that the query reads. Required if a query reads
            from two clusters.
        in_transaction_of: The name of a `KafkaSink` on the same cluster. A batch's offsets are then part of one of its
            slots' transactions, so that offsets and rows become visible together. The offsets of a batch without rows,
            and of a recovered batch, are committed afterwards.
        deadline_s: How long a batch waits for coordinators in total, in seconds.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it.
    """

    group: str
    settings: Mapping[str, Any] = field(repr=False)
    topics: Sequence[str] | None = None
    in_transaction_of: str | None = None
    deadline_s: float = 5.0

    def __post_init__(self) -> None:
        from sparkonce.sinks.kafka.settings import admin_settings

        if not isinstance(self.group, str) or not self.group.strip():
            raise ConfigurationError(
                f"group={self.group!r} is not a group id.",
                next_step="Give a text, such as 'orders-job'.",
                setting="group",
            )
        if self.topics is not None:
            texts("topics", self.topics, example="a list of topics: ['orders']")
        number("deadline_s", self.deadline_s, above=0)
        admin_settings(self.settings)


class GroupReporter:
    """The driver's side of a `GroupOffsets`, for one run."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets
        self._opened: TransactionClient | None = None
        self._joined = False
        self._left_s = offsets.deadline_s

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Checks that offsets and rows can share a transaction."""
        sink = self._offsets.in_transaction_of
        if sink is None:
            return
        from sparkonce.sinks.kafka.outcomes import BrokerAnswer
        from sparkonce.sinks.kafka.transaction_client import metadata_request

        deadline_s = time.monotonic() + self._offsets.deadline_s
        metadata = self._client().insist(metadata_request(), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            logger.warning("The cluster of the group %r cannot be queried: %s.", self._offsets.group, metadata.reason)
        elif (found := metadata.cluster_id) != facts[sink].get("cluster_id"):
            raise ConfigurationError(
                f"in_transaction_of={sink!r}: the group {self._offsets.group!r} is on cluster {found!r}, and the sink "
                f"on {facts[sink].get('cluster_id')!r}. A transaction cannot span two.",
                next_step="Leave in_transaction_of out: offsets are then committed after each batch.",
                setting="in_transaction_of",
            )

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """Adds the offsets to one of the sink's prepared transactions, if ``in_transaction_of`` names a sink.

        Returns:
            The reason why the batch must not be decided; empty if there is none.
        """
        self._joined = False
        sink, offsets = self._offsets.in_transaction_of, kafka_offsets(sources, self._offsets.topics)
        chosen = next((handle for handle in handles if handle.sink == sink and handle.transaction), None)
        if chosen is None or not offsets:
            return ""
        from sparkonce.sinks.kafka.committer import transaction_of
        from sparkonce.sources.groups import commit_offsets_in

        with self._time() as deadline_s:
            transaction = transaction_of(chosen)
            reply = commit_offsets_in(self._client(), transaction, self._offsets.group, offsets, deadline_s=deadline_s)
        if reply.may_arrive:
            return f"offsets of the group {self._offsets.group!r} may be in its transaction or not: {reply.reason}"
        self._joined = not reply.reason
        if reply.reason:
            self._warn("are not in the batch's transaction, and are committed after it", reply.reason)
        return ""

    def after_finish(self, sources: Sequence[str]) -> None:
        """Commits the offsets, unless a transaction has already committed them."""
        joined, self._joined = self._joined, False
        offsets = kafka_offsets(sources, self._offsets.topics)
        if not joined and offsets:
            from sparkonce.sources.groups import commit_offsets

            with self._time() as deadline_s:
                reason = commit_offsets(self._client(), self._offsets.group, offsets, deadline_s=deadline_s)
            if reason:
                self._warn("could not be committed; the next batch's include them", reason)
        self._left_s = self._offsets.deadline_s

    @contextmanager
    def _time(self) -> Iterator[float]:
        """Yields the deadline for a request. Afterwards, deducts its duration from the time that the batch has left."""
        began = time.monotonic()
        yield began + self._left_s
        self._left_s = max(_LEAST_S, self._left_s - (time.monotonic() - began))

    def close(self) -> None:
        """Closes the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _client(self) -> TransactionClient:
        if self._opened is None:
            from sparkonce.sinks.kafka.settings import admin_settings
            from sparkonce.sinks.kafka.transaction_client import TransactionClient

            self._opened = TransactionClient(admin_settings(self._offsets.settings), connections=1)
        return self._opened

    def _warn(self, what: str, reason: str) -> None:
        logger.warning("Offsets of the group %r %s: %s.", self._offsets.group, what, reason)


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
        return members  # Kafka would accept the offsets anyway: in a transaction, it does not check the sender.
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

"""Whether brokers still have the rows of transactions that have been open for long.

``retention.ms`` and ``retention.bytes`` delete rows of open transactions, too, and so does DeleteRecords. The broker
answers the late commit with success, over what is left (tried on Kafka 4.3: three rows, `log.retention.ms=5000`, EndTxn
answers 0, no reader sees a row).

A partition has lost nothing of an open transaction if it starts before its last stable offset, which no open
transaction lies below. Only of other partitions is each producer asked for (KIP-664), which needs READ on the topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sinks.kafka.client import TransactionClient
from sparkonce.sinks.kafka.outcomes import (
    NONE,
    Answer,
    Description,
    Transaction,
    is_unsaid,
    open_ones,
    undescribed,
)

log = logging.getLogger(__name__)

Partition = tuple[str, int]
"""A topic's name and a partition's number."""

_UNKNOWN_TOPIC_OR_PARTITION = 3
_TOPIC_AUTHORIZATION_FAILED = 29
_EARLIEST, _LATEST = -2, -1
_READ_COMMITTED = 1

_YOUNG_MS = 60_000
"""For how long nobody need ask whether the rows of a transaction are still there: brokers look for what they may delete
every five minutes (``log.retention.check.interval.ms``)."""

_DAMAGED = Finished(
    outcome=Outcome.DAMAGED,
    reason="The topic's retention, or somebody, has deleted rows of it: it is aborted, and written again.",
)


@dataclass
class RetentionCheck:
    """Asks the leaders of the partitions that transactions have written to.

    Args:
        client: Sends the requests.
    """

    client: TransactionClient
    _told: set[str] = field(default_factory=set)
    _damaged: set[Transaction] = field(default_factory=set)
    _has_looked: bool = False

    def held_back(self, begun_ms: Mapping[Transaction, int], deadline_s: float) -> dict[Transaction, Finished]:
        """Returns those that must not be committed now: their rows are gone, or it is not known whether they are.

        Looked at is what has been open for more than a minute by its own clock, all that a run commits first (clocks
        may be wrong), and what was found damaged before. What is not described as open needs no look: it is committed
        or lost already.

        Args:
            begun_ms: When each was begun, milliseconds since the epoch by its executor's clock.
            deadline_s: Until when to wait, by `time.monotonic`.
        """
        looks = not self._has_looked
        old = [one for one, began in begun_ms.items() if looks or _may_be_old(began) or one in self._damaged]
        if not old:
            return {}
        views = self.client.describe_transactions(old, deadline_s=deadline_s)
        if (unsaid := next(filter(is_unsaid, views), None)) is not None:
            return dict.fromkeys(old, undescribed(unsaid))
        damaged = self.damaged(open_ones(old, views), deadline_s)
        if not isinstance(damaged, Answer) and time.monotonic() >= deadline_s:
            damaged = Answer(None, "it took too long")
        if isinstance(damaged, Answer):
            reason = f"Kafka did not say whether it still has all rows: {damaged}."
            return dict.fromkeys(old, Finished(outcome=Outcome.RETRY, reason=reason))
        self._has_looked, self._damaged = True, damaged
        suspects = list(damaged)
        # Only of what is still open after rows of it were seen to be gone is it known that no reader has had them.
        views = self.client.describe_transactions(suspects, deadline_s=deadline_s) if suspects else []
        held = {one: undescribed(view) for one, view in zip(suspects, views, strict=True) if is_unsaid(view)}
        return held | {view.transaction: _DAMAGED for view in open_ones(suspects, views)}

    def damaged(self, views: Iterable[Description], deadline_s: float) -> set[Transaction] | Answer:
        """Returns the open transactions of which rows are gone; an `Answer` if a broker does not say.

        What may not be asked counts as whole, with a warning. So does a topic that is gone as such.

        Args:
            views: Of open transactions.
            deadline_s: Until when to wait, by `time.monotonic`.
        """
        written = {view.transaction: view.partitions for view in views}
        if not written:
            return set()
        leaders = self._leaders({one for partitions in written.values() for one in partitions}, deadline_s)
        if isinstance(leaders, Answer):
            return leaders
        starts = self._offsets(leaders, _EARLIEST, 0, deadline_s)
        stable = self._offsets(leaders, _LATEST, _READ_COMMITTED, deadline_s)
        if isinstance(starts, Answer):
            return starts
        if isinstance(stable, Answer):
            return stable
        doubtful = {
            one: leaders[one] for one in starts.keys() & stable.keys() if starts[one] and starts[one] >= stable[one]
        }
        begins = self._begins(doubtful, deadline_s) if doubtful else {}
        if isinstance(begins, Answer):
            return begins
        return {
            transaction
            for transaction, partitions in written.items()
            for one in begins.keys() & set(partitions)
            if begins[one].get((transaction.producer_id, transaction.epoch), -1) < starts[one]
        }

    def _leaders(self, partitions: set[Partition], deadline_s: float) -> dict[Partition, int] | Answer:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted({name for name, _ in partitions})]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=4, max_version=9)
        metadata = self.client.request(request, deadline_s=deadline_s)
        if isinstance(metadata, Answer):
            return metadata
        return self._read(
            ((topic.name, found.partition_index), topic.error_code or found.error_code, found.leader_id)
            for topic in metadata.topics
            for found in topic.partitions
            if (topic.name, found.partition_index) in partitions
        )

    def _offsets(
        self, leaders: Mapping[Partition, int], when: int, isolation: int, deadline_s: float
    ) -> dict[Partition, int] | Answer:
        """Returns where each partition starts, or its last stable offset."""

        def request(topics: Mapping[str, list[int]]) -> Any:
            topic = ListOffsetsRequest.ListOffsetsTopic
            partition = topic.ListOffsetsPartition
            asked = [
                topic(name=name, partitions=[partition(partition_index=one, timestamp=when) for one in numbers])
                for name, numbers in topics.items()
            ]
            return ListOffsetsRequest(
                replica_id=-1, isolation_level=isolation, topics=asked, min_version=2, max_version=7
            )

        responses = self._ask_leaders(leaders, request, deadline_s)
        if isinstance(responses, Answer):
            return responses
        return self._read(
            ((topic.name, found.partition_index), found.error_code, found.offset)
            for response in responses
            for topic in response.topics
            for found in topic.partitions
        )

    def _begins(
        self, leaders: Mapping[Partition, int], deadline_s: float
    ) -> dict[Partition, dict[tuple[int, int], int]] | Answer:
        """Returns where the open transactions of each partition begin, by producer id and epoch."""

        def request(topics: Mapping[str, list[int]]) -> Any:
            topic = DescribeProducersRequest.TopicRequest
            return DescribeProducersRequest(
                topics=[topic(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
            )

        responses = self._ask_leaders(leaders, request, deadline_s)
        if isinstance(responses, Answer):
            return responses
        return self._read(
            (
                (topic.name, found.partition_index),
                found.error_code,
                {(one.producer_id, one.producer_epoch): one.current_txn_start_offset for one in found.active_producers},
            )
            for response in responses
            for topic in response.topics
            for found in topic.partitions
        )

    def _ask_leaders(self, leaders: Mapping[Partition, int], request: Any, deadline_s: float) -> list[Any] | Answer:
        """Sends each leader one request for all of its partitions."""
        asked: dict[int, dict[str, list[int]]] = {}
        for (name, number), leader in sorted(leaders.items()):
            asked.setdefault(leader, {}).setdefault(name, []).append(number)
        responses = self.client.gather(
            [(request(topics), leader) for leader, topics in asked.items()], deadline_s=deadline_s
        )
        return next((one for one in responses if isinstance(one, Answer)), responses)

    def _read(self, told: Iterable[tuple[Partition, int, Any]]) -> dict[Partition, Any] | Answer:
        """Returns what was said of each partition, without those that are gone or may not be asked for."""
        found: dict[Partition, Any] = {}
        for partition, code, value in told:
            if code == NONE:
                found[partition] = value
            elif code == _TOPIC_AUTHORIZATION_FAILED:
                self._warn(partition[0])
            elif code != _UNKNOWN_TOPIC_OR_PARTITION:
                return Answer(code, f"partition {partition[1]} of topic {partition[0]!r}")
        return found

    def _warn(self, topic: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            log.warning(
                "Rows of transactions on topic %r that have been open for long may have been deleted by its retention, "
                "and Kafka does not let this user ask. They are committed without knowing. Grant READ on the topic.",
                topic,
            )


def _may_be_old(began_ms: int) -> bool:
    age_ms = time.time_ns() // 1_000_000 - began_ms
    return not 0 <= age_ms < _YOUNG_MS

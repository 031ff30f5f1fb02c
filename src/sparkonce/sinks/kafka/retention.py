"""Checks that brokers still have the rows of transactions that have been open for long.

``retention.ms``, ``retention.bytes`` and DeleteRecords delete rows of open transactions too. The broker then answers
the late commit with success, although rows are missing (tried on Kafka 4.3: three rows, `log.retention.ms=5000`, EndTxn
answers 0, no reader sees a row).

A partition has lost no row of an open transaction if it starts before its last stable offset, since no open transaction
begins below that. Other partitions are asked for their producers (KIP-664), which needs READ on the topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.kafka.outcomes import (
    BrokerAnswer,
    Description,
    Transaction,
    is_undescribed,
    still_open,
    undescribed_outcome,
)
from sparkonce.sinks.kafka.partitions import (
    Partition,
    answered,
    ask_leaders,
    last_stable_offsets,
    leaders_of,
    metadata_request,
    producers,
    start_offsets,
)
from sparkonce.sinks.kafka.transaction_client import TransactionClient

log = logging.getLogger(__name__)

_UNKNOWN_TOPIC_OR_PARTITION = 3
_TOPIC_AUTHORIZATION_FAILED = 29

_YOUNG_MS = 60_000
"""The age up to which a transaction's rows need no check: brokers look for rows to delete every five minutes
(``log.retention.check.interval.ms``)."""

_DAMAGED = Finished(
    outcome=Outcome.DAMAGED,
    reason="The topic's retention, or somebody, has deleted rows of it: it is aborted, and written again.",
    next_step="Raise retention.ms and retention.bytes of the topic, or give rows a newer timestamp.",
)


@dataclass
class RetentionCheck:
    """Asks the leaders of the partitions that transactions have written to.

    Args:
        client: Sends the requests.
    """

    client: TransactionClient
    _warned: set[str] = field(default_factory=set)
    _damaged: set[Transaction] = field(default_factory=set)
    _has_looked: bool = False

    def held_back(self, begun_ms: Mapping[Transaction, int], deadline_s: float) -> dict[Transaction, Finished]:
        """Returns those that must not be committed now: their rows are gone, or nobody tells whether they are.

        Checks transactions that have been open for more than a minute by their executors' clocks, and those that were
        damaged before. Since clocks may be wrong, it also checks all of a run's first batch; but a leader that does not
        answer holds back no young transaction. A transaction that is not open is committed or lost already.

        Args:
            begun_ms: The begin of each, milliseconds since the epoch by its executor's clock.
            deadline_s: When to stop waiting, by `time.monotonic`.
        """
        old = {one for one, began in begun_ms.items() if _may_be_old(began) or one in self._damaged}
        looked_at = [one for one in begun_ms if one in old or not self._has_looked]
        if not looked_at:
            return {}
        views = self.client.describe_transactions(looked_at, deadline_s=deadline_s)
        held = {
            one: undescribed_outcome(view) for one, view in zip(looked_at, views, strict=True) if is_undescribed(view)
        }
        is_open = still_open(looked_at, views)
        damaged, unknown = self.look(is_open, deadline_s)
        if time.monotonic() >= deadline_s:
            unknown = {place: BrokerAnswer(None, "it took too long") for view in is_open for place in view.partitions}
        for view in is_open:
            answer = next((unknown[place] for place in view.partitions if place in unknown), None)
            if answer is not None and view.transaction in old:
                reason = f"Kafka did not tell whether it still has all rows: {answer}."
                held[view.transaction] = Finished(outcome=Outcome.RETRY, reason=reason)
        self._has_looked |= not unknown
        self._damaged = damaged
        suspects = list(damaged)
        # If a transaction is still open after its rows were seen to be gone, no reader can have read them.
        views = self.client.describe_transactions(suspects, deadline_s=deadline_s) if suspects else []
        held |= {
            one: undescribed_outcome(view) for one, view in zip(suspects, views, strict=True) if is_undescribed(view)
        }
        return held | {view.transaction: _DAMAGED for view in still_open(suspects, views)}

    def look(
        self, views: Sequence[Description], deadline_s: float
    ) -> tuple[set[Transaction], Mapping[Partition, BrokerAnswer]]:
        """Returns the open transactions whose rows are gone, and the partitions whose leaders did not answer.

        A partition that this user may not ask counts as whole, with a warning, and so does one that is gone.

        Args:
            views: The views of open transactions.
            deadline_s: When to stop waiting, by `time.monotonic`.
        """
        unknown: dict[Partition, BrokerAnswer] = {}
        leaders = self._known(
            self._leaders({place for view in views for place in view.partitions}, deadline_s), unknown
        )
        # In this order: rows that are deleted in between make a partition doubtful.
        (ends,) = ask_leaders(self.client, leaders, last_stable_offsets, deadline_s=deadline_s)
        (starts,) = ask_leaders(self.client, leaders, start_offsets, deadline_s=deadline_s)
        stable, first = self._known(ends, unknown), self._known(starts, unknown)
        offsets = {place: (first[place].offset, stable[place].offset) for place in first.keys() & stable.keys()}
        doubtful = {place: leaders[place] for place, (start, end) in offsets.items() if start and start >= end}
        (writing,) = ask_leaders(self.client, doubtful, producers, deadline_s=deadline_s)
        begins = {
            at: {(one.producer_id, one.producer_epoch): one.current_txn_start_offset for one in told.active_producers}
            for at, told in self._known(writing, unknown).items()
        }
        damaged = {
            view.transaction
            for view in views
            for place in begins.keys() & set(view.partitions)
            if begins[place].get((view.transaction.producer_id, view.transaction.epoch), -1) < offsets[place][0]
        }
        return damaged, unknown

    def _leaders(self, places: set[Partition], deadline_s: float) -> Mapping[Partition, int | BrokerAnswer]:
        if not places:
            return {}
        metadata = self.client.request(metadata_request(*sorted({name for name, _ in places})), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            return dict.fromkeys(places, metadata)
        return {place: leader for place, leader in leaders_of(metadata).items() if place in places}

    def _known(self, replies: Mapping[Partition, Any], unknown: dict[Partition, BrokerAnswer]) -> dict[Partition, Any]:
        """Returns what is known, and adds to ``unknown`` the partitions that have to be asked again."""
        for place, reply in replies.items():
            if not isinstance(reply, BrokerAnswer):
                continue
            if reply.code == _TOPIC_AUTHORIZATION_FAILED:
                self._warn(place[0])
            elif reply.code != _UNKNOWN_TOPIC_OR_PARTITION:
                unknown[place] = reply
        return answered(replies)

    def _warn(self, topic: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning(
                "Rows of long transactions on topic %r may have been deleted by its retention, and Kafka does not let "
                "this user ask. The transactions are committed all the same. Next: Grant READ on the topic.",
                topic,
            )


def _may_be_old(began_ms: int) -> bool:
    """Returns whether a transaction is older than a minute, or its clock ahead by more."""
    # A clock that is ahead by less counts as right; otherwise each batch would be checked.
    return abs(time.time_ns() // 1_000_000 - began_ms) >= _YOUNG_MS

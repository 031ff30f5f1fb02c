"""Checks that partitions have a leader before transactions that have written to them are committed.

Kafka 4.3 and 4.4 may forget the marker of a partition without a leader (KAFKA-20734). Its rows, and all that is written
to it later, then stay hidden, while the commit answers with success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.kafka.connection import Response
from sparkonce.sinks.kafka.outcomes import (
    BrokerAnswer,
    Description,
    Transaction,
    is_undescribed,
    still_open,
    undescribed_outcome,
)
from sparkonce.sinks.kafka.partitions import LEADER_NOT_AVAILABLE, leaders_of, metadata_request
from sparkonce.sinks.kafka.transaction_client import TransactionClient


@dataclass(frozen=True, slots=True)
class LeaderCheck:
    """Finds partitions without a leader. A commit costs one request, unless the topic was described just before it.

    If rows name their topics, it costs two: their transactions are described, too.

    Args:
        client: Sends the requests.
        topic: The topic of all rows; None if they name their own.
    """

    client: TransactionClient
    topic: str | None

    def held_back(
        self, wanted: Sequence[Transaction], deadline_s: float, known: Response | None = None
    ) -> dict[Transaction, Finished]:
        """Returns those that must not be committed now: they have written to a partition that has no leader.

        If the cluster does not tell, none is held back: the commit itself is then not answered either.

        Args:
            wanted: The transactions to commit.
            deadline_s: When to stop waiting, by `time.monotonic`.
            known: The metadata of the topic of all rows, if it was asked for a moment ago.
        """
        views: Sequence[Description | BrokerAnswer] = ()
        topics = [] if self.topic is None else [self.topic]
        if not topics:
            views = self.client.describe_transactions(wanted, deadline_s=deadline_s)
            topics = sorted({topic for view in still_open(wanted, views) for topic, _ in view.partitions})
        if not (wanted and topics):
            return {}
        metadata = known or self.client.request(metadata_request(*topics), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            return {}
        leaders = leaders_of(metadata).items()
        alone = {place: told for place, told in leaders if getattr(told, "code", None) == LEADER_NOT_AVAILABLE}
        if not alone:
            return {}
        if not views:
            views = self.client.describe_transactions(wanted, deadline_s=deadline_s)
        held = {one: undescribed_outcome(view) for one, view in zip(wanted, views, strict=True) if is_undescribed(view)}
        for view in still_open(wanted, views):
            if without := sorted(alone.keys() & set(view.partitions)):
                reason = f"It is committed once all that it has written to has a leader: {alone[without[0]]}."
                held[view.transaction] = Finished(outcome=Outcome.RETRY, reason=reason)
        return held

"""Finds the open transactions that block the read_committed readers of a topic (KIP-664).

While another application's transaction is open, sparkonce's batches count as committed, but readers see none of their
rows. Only the brokers know which transaction is the cause.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from kafka.protocol.admin.transactions import ListTransactionsRequest

from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sink import Monitor
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, Description, KafkaTransaction
from sparkonce.sinks.kafka.settings import NEVER_MS, admin_settings, lasting
from sparkonce.sinks.kafka.transaction_client import (
    Partition,
    TransactionClient,
    answered,
    ask_leaders,
    end_offsets,
    last_stable_offsets,
    leaders_of,
    metadata_request,
    producers,
)

log = logging.getLogger(__name__)

LIMIT_S = 10.0
"""The time limit of one poll."""

PATIENCE_S = 30.0
"""The age at which an open transaction is reported, in seconds; longer if a batch takes longer."""

SAY_EVERY_S = 300.0
_NAMED_AT_ONCE = 3
_ASKED_AT_ONCE = 20
"""The number of partitions whose producers one poll describes: a partition may have thousands of producers."""

_NOT_ALLOWED = 29
_ID_NOT_ALLOWED = 53

BEING_ENDED = "Prepare"
"""The prefix of a transaction's state while its coordinator writes the markers that end it."""


class KafkaMonitor(Monitor):
    """Compares each partition's last stable offset with its end, which takes two small requests to each broker.

    Only for partitions that stay blocked, the monitor also describes the producers. The monitor has its own connection,
    so commits need not wait for a poll.

    Args:
        settings: The sink's settings, with librdkafka's names.
        topic: The sink's topic.
        query: The short form of the query's id, by which the monitor recognizes the query's own transactions.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, query: str) -> None:
        self._client = TransactionClient(admin_settings(settings), connections=1)
        self._topic = topic
        self._query = query
        self._since: dict[Partition, tuple[int, float]] = {}
        self._settled: dict[Partition, int] = {}
        self._over: dict[Partition, int] = {}
        self._say_at = 0.0
        self._is_first = True
        self._told = False

    def poll(self, batch_s: float) -> None:
        """Reports the transactions that have blocked readers for a long time. See `Monitor.poll`."""
        deadline_s = time.monotonic() + LIMIT_S
        metadata = self._client.request(metadata_request(self._topic), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            # A closed client reconnects in the next poll.
            self._client.close()
            return
        leaders = answered(leaders_of(metadata))
        ends = readable_and_end(self._client, leaders, deadline_s)
        now_s, patience_s, before = time.monotonic(), max(PATIENCE_S, batch_s), self._since
        held = {partition: stable for partition, (stable, end) in ends.items() if stable < end}
        self._since = {
            partition: before[partition] if before.get(partition, (-1, 0.0))[0] == offset else (offset, now_s)
            for partition, offset in held.items()
        }
        for known in (self._settled, self._over):
            for partition in [partition for partition, offset in known.items() if held.get(partition) != offset]:
                del known[partition]
        is_first, self._is_first = self._is_first, False
        stay = [
            partition
            for partition, (_, since_s) in self._since.items()
            if partition not in self._settled and (is_first or now_s - since_s >= patience_s)
        ]
        if stay and now_s >= self._say_at:
            brokers = [broker.node_id for broker in metadata.brokers]
            holders = self._holders({partition: leaders[partition] for partition in stay[:_ASKED_AT_ONCE]}, deadline_s)
            self._judge(self._described(holders, brokers, deadline_s), now_s, patience_s)

    def close(self) -> None:
        self._client.close()

    def _holders(self, leaders: Mapping[Partition, int], deadline_s: float) -> list[OpenPart]:
        """Returns the parts of open transactions that begin where these partitions' readers are blocked."""
        found, refused = open_parts(self._client, leaders, deadline_s)
        if any(reply.code == _NOT_ALLOWED for reply in refused.values()) and not self._told:
            self._told = True
            log.debug("topic=%r: Without READ, nobody can tell whose transaction blocks readers.", self._topic)
        return [one for one in found if one.offset == self._since[one.partition][0]]

    def _described(self, held: Sequence[OpenPart], brokers: Sequence[int], deadline_s: float) -> list[OpenPart]:
        """Adds the coordinators' descriptions, except for transactions that this user may not see."""
        if not held:
            return []
        names, missing = names_of(self._client, (one.producer_id for one in held), brokers, deadline_s)
        if missing is not None:
            # The broker that did not answer may know the transaction, which may belong to this query.
            return []
        transactions = [KafkaTransaction(name, producer_id, 0) for producer_id, name in names.items()]
        views = self._client.describe_transactions(transactions, deadline_s=deadline_s) if transactions else []
        known: dict[int, Description] = {}
        unknown: set[int] = set()
        for one, view in zip(transactions, views, strict=True):
            if isinstance(view, Description):
                known[one.producer_id] = view
            elif view.code != _ID_NOT_ALLOWED or self._is_own(one):
                unknown.add(one.producer_id)
        return [replace(one, view=known.get(one.producer_id)) for one in held if one.producer_id not in unknown]

    def _judge(self, held: Sequence[OpenPart], now_s: float, patience_s: float) -> None:
        named: dict[tuple[int, int], list[OpenPart]] = {}
        for one in held:
            lasted_s = now_s - self._since[one.partition][1]
            if one.view is not None:
                started_ms = one.view.started_ms
                if one.view.state.startswith(BEING_ENDED):
                    continue
                if one.is_over:
                    # The transaction may have ended after its producer was described, which the next poll will show.
                    if self._over.get(one.partition) != one.offset:
                        self._over[one.partition] = one.offset
                        continue
                elif self._is_own(one.view.transaction):
                    self._settled[one.partition] = one.offset
                    continue
                elif started_ms > 0:
                    lasted_s = max(lasted_s, time.time() - started_ms / 1000)
            if lasted_s >= patience_s:
                self._settled[one.partition] = one.offset
                named.setdefault((one.producer_id, one.epoch), []).append(one)
        if not named:
            return
        self._say_at = now_s + SAY_EVERY_S
        for group in list(named.values())[:_NAMED_AT_ONCE]:
            self._say(group, now_s)
        if len(named) > _NAMED_AT_ONCE:
            log.warning("%d more transactions hold back readers of topic=%r.", len(named) - _NAMED_AT_ONCE, self._topic)

    def _is_own(self, transaction: KafkaTransaction) -> bool:
        parsed = TransactionalId.parse(transaction.transactional_id)
        return parsed is not None and parsed.query == self._query

    def _say(self, group: Sequence[OpenPart], now_s: float) -> None:
        one = min(group, key=lambda each: each.partition)
        name = "whose id this user may not see" if one.view is None else repr(one.view.transaction.transactional_id)
        more = f", nor of {len(group) - 1} more partitions" if len(group) > 1 else ""
        blocked = (
            f"read_committed readers see no rows of topic={self._topic!r} partition={one.partition[1]} from offset "
            f"{one.offset} on{more}, including this query's rows"
        )
        if one.is_over and one.view is not None:
            log.warning(
                "Transaction %s (producer id %d) has ended, according to its coordinator (%s), but still %s: its "
                "marker is missing there. Next: See docs/kafka.md#readers. kafka-transactions.sh abort ends it, and "
                "drops its rows of that partition.",
                *(name, one.producer_id, one.view.state, blocked),
            )
            return
        since = f"for more than {now_s - self._since[one.partition][1]:.0f} s"
        ends = "by its timeout"
        if one.view is not None:
            began = datetime.fromtimestamp(one.view.started_ms / 1000, timezone.utc)
            since = f"since {began:%Y-%m-%d %H:%M:%S} UTC"
            ends = f"after transaction.timeout.ms={one.view.timeout_ms} ({lasting(one.view.timeout_ms)})"
            ends = "never, on its own" if one.view.timeout_ms == NEVER_MS else ends
        log.warning(
            "Transaction %s of another application (producer id %d) has been open %s: %s. It ends %s. Next: Let its "
            "application end it, or end it with kafka-transactions.sh, see docs/kafka.md#readers.",
            *(name, one.producer_id, since, blocked, ends),
        )


@dataclass(frozen=True, slots=True)
class OpenPart:
    """The part of an open transaction in one partition. `view` is the coordinator's description, if there is one."""

    partition: Partition
    offset: int
    producer_id: int
    epoch: int
    view: Description | None = None

    @property
    def is_over(self) -> bool:
        """True if the coordinator has ended the transaction, so that only the marker in this partition is missing."""
        if self.view is None:
            return False
        now = self.view.transaction
        return self.view.state != "Ongoing" or (now.producer_id, now.epoch) != (self.producer_id, self.epoch)


def readable_and_end(
    client: TransactionClient, leaders: Mapping[Partition, int], deadline_s: float
) -> dict[Partition, tuple[int, int]]:
    """Returns the last stable offset and the end offset of each partition whose leader answers."""
    # The order matters: an end offset that is read first could be lower than a last stable offset that is read later.
    kinds = last_stable_offsets, end_offsets
    stable, ends = map(answered, ask_leaders(client, leaders, *kinds, deadline_s=deadline_s))
    return {partition: (one.offset, ends[partition].offset) for partition, one in stable.items() if partition in ends}


def open_parts(
    client: TransactionClient, leaders: Mapping[Partition, int], deadline_s: float
) -> tuple[list[OpenPart], dict[Partition, BrokerAnswer]]:
    """Returns the open parts of transactions in these partitions, and the answers of leaders that return errors.

    Parts in the partitions of leaders that return errors may be missing.
    """
    (replies,) = ask_leaders(client, leaders, producers, deadline_s=deadline_s)
    found = [
        OpenPart(partition, producer.current_txn_start_offset, producer.producer_id, producer.producer_epoch)
        for partition, reply in answered(replies).items()
        for producer in reply.active_producers or ()
        if producer.current_txn_start_offset >= 0
    ]
    return found, {partition: reply for partition, reply in replies.items() if isinstance(reply, BrokerAnswer)}


def names_of(
    client: TransactionClient, producer_ids: Iterable[int], brokers: Sequence[int], deadline_s: float
) -> tuple[dict[int, str], BrokerAnswer | None]:
    """Returns the transactional ids of producers that this user may see, and the reason why some may be missing."""
    request = ListTransactionsRequest(producer_id_filters=sorted(set(producer_ids)))
    names: dict[int, str] = {}
    missing: BrokerAnswer | None = None
    for response in client.gather([(request, broker) for broker in brokers], deadline_s=deadline_s) if brokers else ():
        if isinstance(response, BrokerAnswer):
            missing = response
        elif response.error_code != NONE:
            missing = BrokerAnswer(response.error_code)
        else:
            names |= {state.producer_id: state.transactional_id for state in response.transaction_states}
    return names, missing

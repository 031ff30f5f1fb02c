"""Asks whose transactions are open in partitions, and where they hold back read_committed readers (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.admin.transactions import ListTransactionsRequest

from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, Description
from sparkonce.sinks.kafka.partitions import (
    Partition,
    answered,
    ask_leaders,
    end_offsets,
    last_stable_offsets,
    producers,
)
from sparkonce.sinks.kafka.transaction_client import TransactionClient

BEING_ENDED = "Prepare"
"""How the states of a transaction begin while its coordinator writes the markers."""


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A transaction's part of one partition, which is open there.

    Attributes:
        partition: The partition.
        offset: The offset of its first row there.
        producer_id: The producer id.
        epoch: The producer's epoch.
        view: Its coordinator's description; None if there is none.
    """

    partition: Partition
    offset: int
    producer_id: int
    epoch: int
    view: Description | None = None

    @property
    def is_over(self) -> bool:
        """True if its coordinator has ended it, so that only the partition's marker is missing."""
        if self.view is None:
            return False
        now = self.view.transaction
        return self.view.state != "Ongoing" or (now.producer_id, now.epoch) != (self.producer_id, self.epoch)


def readable_and_end(
    client: TransactionClient, leaders: Mapping[Partition, int], deadline_s: float
) -> dict[Partition, tuple[int, int]]:
    """Returns how far read_committed readers of each partition get, and where it ends, where leaders answer."""
    # In this order: an end that was read first could be below a last stable offset of later.
    kinds = last_stable_offsets, end_offsets
    stable, ends = map(answered, ask_leaders(client, leaders, *kinds, deadline_s=deadline_s))
    return {place: (one.offset, ends[place].offset) for place, one in stable.items() if place in ends}


def open_parts(
    client: TransactionClient, leaders: Mapping[Partition, int], deadline_s: float
) -> tuple[list[OpenPart], dict[Partition, BrokerAnswer]]:
    """Returns what is open in these partitions, and why that isn't known of some."""
    (replies,) = ask_leaders(client, leaders, producers, deadline_s=deadline_s)
    found = [
        OpenPart(place, producer.current_txn_start_offset, producer.producer_id, producer.producer_epoch)
        for place, reply in answered(replies).items()
        for producer in reply.active_producers or ()
        if producer.current_txn_start_offset >= 0
    ]
    return found, {place: reply for place, reply in replies.items() if isinstance(reply, BrokerAnswer)}


def names_of(
    client: TransactionClient, producer_ids: Iterable[int], brokers: Sequence[int], deadline_s: float
) -> tuple[dict[int, str], BrokerAnswer | None]:
    """Returns the transactional ids of producers that this user may see, and why some may be missing."""
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

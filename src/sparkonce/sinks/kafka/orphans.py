"""Lists what sparkonce has open in a Kafka cluster, for the operator. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sinks._shared.orphans import Orphan, parse_line, run_of, shown
from sparkonce.sinks.kafka.outcomes import BrokerAnswer
from sparkonce.sinks.kafka.partitions import (
    answered,
    ask_leaders,
    end_offsets,
    last_stable_offsets,
    leaders_of,
    metadata_request,
    producers,
)
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sinks.kafka.translation import admin_settings

ANSWER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOrphan(Orphan):
    """An open transaction. An id names neither batch nor slot.

    Attributes:
        timeout_s: The age at which the broker aborts it.
        producer_id: The producer id.
        epoch: The producer's epoch; with the id unique to one transaction.
    """

    timeout_s: float = shown("timeout, s")
    producer_id: int
    epoch: int

    def is_of(self, handle: Handle) -> bool:
        """Tells if the handle finishes it: an id is used again by later transactions."""
        given = dict(handle.transaction)
        asked = (self.name, self.producer_id, self.epoch)
        return asked == tuple(given.get(name) for name in ("transactional_id", "producer_id", "epoch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition that an open transaction has rows in.

    Attributes:
        topic: The topic's name.
        partition: The partition's number.
        begins: The offset of the transaction's first row there; -1 if the leader does not say.
        readable: The last stable offset: read_committed readers see the rows before it.
        end: The offset after the last row.
        blocks: True if readers are held at this transaction, and not at an older one.
    """

    topic: str
    partition: int
    begins: int
    readable: int
    end: int
    blocks: bool


def list_open(settings: str | Mapping[str, Any]) -> list[KafkaOrphan]:
    """Lists all open transactions of sparkonce's that the user of the settings may see, the oldest first.

    Args:
        settings: The sink's, in librdkafka's names, as a mapping or in one line.

    Raises:
        ConfigurationError: if a setting is none.
        PreflightError: if not every broker answers.
    """
    given = parse_line(settings) if isinstance(settings, str) else settings
    with closing(TransactionClient(admin_settings(given))) as client:
        views, missing = client.survey(
            ["Ongoing"], "", attempt_s=ANSWER_WITHIN_S / 2, deadline_s=time.monotonic() + ANSWER_WITHIN_S
        )
    if missing is not None:
        raise _unanswered(given, missing)
    now_ms = time.time_ns() // 1_000_000
    found = []
    for view in views:
        name = TransactionalId.parse(view.transaction.transactional_id)
        if name is not None:
            found.append(
                KafkaOrphan(
                    kind="open",
                    name=str(name),
                    query=name.query,
                    run=run_of(name.token),
                    batch=-1,
                    slot=-1,
                    copy=f"{name.worker}-{name.lane}",
                    age_s=max(0, now_ms - view.started_ms) / 1000,
                    holds=tuple(f"{topic}-{partition}" for topic, partition in sorted(view.partitions)),
                    timeout_s=view.timeout_ms / 1000,
                    producer_id=view.transaction.producer_id,
                    epoch=view.transaction.epoch,
                )
            )
    return sorted(found, key=lambda orphan: -orphan.age_s)


def list_held(settings: str | Mapping[str, Any], orphan: KafkaOrphan) -> list[HeldPartition]:
    """Asks the leaders where an open transaction begins, and how far read_committed readers get.

    Args:
        settings: See `list_open`.
        orphan: The transaction.

    Returns:
        Its partitions whose leaders answer.

    Raises:
        ConfigurationError: if a setting is none.
        PreflightError: if no broker answers.
    """
    given = parse_line(settings) if isinstance(settings, str) else settings
    places = [(topic, int(number)) for topic, _, number in (one.rpartition("-") for one in orphan.holds)]
    deadline_s = time.monotonic() + ANSWER_WITHIN_S
    with closing(TransactionClient(admin_settings(given))) as client:
        metadata = client.request(metadata_request(*{topic for topic, _ in places}), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            raise _unanswered(given, metadata)
        leaders = {place: one for place, one in answered(leaders_of(metadata)).items() if place in places}
        # In this order: an end that was read first could be below a last stable offset of later.
        asked = ask_leaders(client, leaders, producers, last_stable_offsets, end_offsets, deadline_s=deadline_s)
    known, stable, ends = map(answered, asked)
    found = []
    for place in sorted(stable.keys() & ends.keys()):
        active = known[place].active_producers or () if place in known else ()
        begins = [one.current_txn_start_offset for one in active if one.producer_id == orphan.producer_id]
        found.append(
            HeldPartition(
                topic=place[0],
                partition=place[1],
                begins=begins[0] if begins else -1,
                readable=stable[place].offset,
                end=ends[place].offset,
                blocks=begins == [stable[place].offset],
            )
        )
    return found


def _unanswered(given: Mapping[str, Any], missing: BrokerAnswer) -> PreflightError:
    return PreflightError(
        f"Listing what is open in Kafka at {given.get('bootstrap.servers', '?')} failed: {missing}.",
        next_step="Check the brokers, and the permission to describe the transactional ids.",
    )

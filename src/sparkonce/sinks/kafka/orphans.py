"""Lists the open transactions of a Kafka cluster, for operators. Read-only."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sinks._shared.orphans import Orphan, parse_line, run_of, shown
from sparkonce.sinks.kafka.blocking import BEING_ENDED as STATE_BEING_ENDED
from sparkonce.sinks.kafka.blocking import OpenPart, names_of, open_parts, readable_and_end
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, Description, KafkaTransaction
from sparkonce.sinks.kafka.settings import admin_settings
from sparkonce.sinks.kafka.transaction_client import (
    Partition,
    TransactionClient,
    answered,
    leaders_of,
    metadata_request,
)

Target = tuple[str, str]
"""The name of a topic and the id of its cluster; the id is empty if the topic may be on any cluster."""

ANSWER_WITHIN_S = 30.0

OPEN, BEING_ENDED, MARKER_MISSING, NOT_VISIBLE = "open", "being ended", "marker missing", "id not visible"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOrphan(Orphan):
    """An open transaction. Its id contains no batch and no slot, and another application's has no query or run either.

    Times and ids that are unknown are -1.

    Attributes:
        timeout_s: The age at which the broker aborts the transaction.
        producer_id: The producer id.
        epoch: The producer's epoch; together with the id it identifies one transaction.
        coordinator: The id of the broker that coordinates the transaction.
        since_ms: When the transaction began, by the coordinator's clock.
    """

    timeout_s: float = shown("timeout, s")
    producer_id: int = shown("producer id")
    epoch: int = shown("epoch")
    coordinator: int = shown("coordinator", default=-1)
    since_ms: int = -1

    def is_of(self, handle: Handle) -> bool:
        """Returns True if the handle refers to this transaction.

        The transactional id alone does not show that, because later transactions reuse the id.
        """
        fields = dict(handle.transaction)
        asked = (self.name, self.producer_id, self.epoch)
        return asked == tuple(fields.get(name) for name in ("transactional_id", "producer_id", "epoch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition in which an open transaction has rows.

    Attributes:
        topic: The topic's name.
        partition: The partition's number.
        begins: The offset of the transaction's first row there; -1 if the leader does not report it.
        readable: The last stable offset: read_committed readers see the rows before it.
        end: The offset after the last row.
        blocks: True if readers are blocked by this transaction, and not by an older one.
    """

    topic: str
    partition: int
    begins: int
    readable: int
    end: int
    blocks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """An open transaction of any application, and its parts in the queried topics."""

    orphan: KafkaOrphan
    partitions: Sequence[HeldPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedTopics:
    """The open transactions of some topics.

    Attributes:
        found: The transactions: first those that block readers, then the others, oldest first.
        topics: The topics that exist on this cluster.
        missing: Why some transactions or their ids may be missing; None if the list is complete.
    """

    found: Sequence[Blocker]
    topics: frozenset[str]
    missing: PreflightError | None = None


def list_open(settings: str | Mapping[str, Any]) -> list[KafkaOrphan]:
    """Lists all open transactions of sparkonce that the user of the settings may see, oldest first.

    The settings have librdkafka's names, and are a mapping or one line.

    Raises:
        ConfigurationError: If a setting does not exist.
        PreflightError: If any broker does not answer.
    """
    with _asking(settings) as (client, parsed, deadline_s):
        views, missing = client.survey(["Ongoing"], "", attempt_s=ANSWER_WITHIN_S / 2, deadline_s=deadline_s)
    if missing is not None:
        raise _unanswered(parsed, missing)
    found = [_orphan(view) for view in views]
    return sorted((one for one in found if one.query), key=lambda orphan: -orphan.age_s)


def list_held(settings: str | Mapping[str, Any], orphan: KafkaOrphan) -> list[HeldPartition]:
    """Queries the partitions' leaders where an open transaction begins, and how far read_committed readers get.

    Returns the partitions whose leaders answer. Raises the same errors as `list_open`.
    """
    partitions = [(topic, int(number)) for topic, _, number in (one.rpartition("-") for one in orphan.holds)]
    with _asking(settings) as (client, parsed, deadline_s):
        metadata = client.request(metadata_request(*{topic for topic, _ in partitions}), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            raise _unanswered(parsed, metadata)
        leaders = {
            partition: one for partition, one in answered(leaders_of(metadata)).items() if partition in partitions
        }
        parts, _ = open_parts(client, leaders, deadline_s)
        ends = readable_and_end(client, leaders, deadline_s)
    begins = {one.partition: one.offset for one in parts if one.producer_id == orphan.producer_id}
    return [_held(partition, begins.get(partition, -1), ends[partition]) for partition in sorted(ends)]


def list_blocking(settings: str | Mapping[str, Any], targets: Collection[Target]) -> BlockedTopics:
    """Lists every open transaction, of any application, that has rows in these topics and may thus block readers.

    Raises the same errors as `list_open`, but PreflightError only if no broker answers.
    """
    with _asking(settings) as (client, parsed, deadline_s):
        metadata = client.request(metadata_request(*{topic for topic, _ in targets}), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            raise _unanswered(parsed, metadata)
        here = frozenset(
            one.name
            for one in metadata.topics
            if one.error_code == NONE and not {(one.name, ""), (one.name, metadata.cluster_id)}.isdisjoint(targets)
        )
        led = {partition: one for partition, one in leaders_of(metadata).items() if partition[0] in here}
        leaders: dict[Partition, int] = answered(led)
        ends = readable_and_end(client, leaders, deadline_s)
        unread = sorted(led.keys() - ends.keys())
        missing = None
        if unread:
            topic, number = unread[0]
            missing = BrokerAnswer(None, f"partition {number} of topic {topic!r} has no leader that answers")
        # An open transaction blocks the readers of its partitions, so only partitions with blocked readers need further
        # requests.
        held = {partition: leaders[partition] for partition, (readable, end) in ends.items() if readable < end}
        parts, refused = open_parts(client, held, deadline_s)
        names, unnamed = names_of(
            client, {one.producer_id for one in parts}, [one.node_id for one in metadata.brokers], deadline_s
        )
        asked = [KafkaTransaction(name, number, -1) for number, name in sorted(names.items())]
        views = client.describe_transactions(asked, deadline_s=deadline_s) if asked else []
        known = {one.producer_id: view for one, view in zip(asked, views, strict=True)}
        parts = [replace(one, view=_described(known.get(one.producer_id))) for one in parts]
        if any(one.is_over for one in parts):
            # Query the leaders again, since a transaction may have ended after their first response.
            still, refused = open_parts(client, held, deadline_s)
            open_now = {(one.partition, one.offset, one.producer_id) for one in still}
            parts = [one for one in parts if (one.partition, one.offset, one.producer_id) in open_now]
    undescribed = next((one for one in known.values() if isinstance(one, BrokerAnswer)), None)
    missing = next(iter(refused.values()), undescribed or unnamed or missing)
    grouped: dict[tuple[int, int], list[OpenPart]] = {}
    for one in parts:
        grouped.setdefault((one.producer_id, one.epoch), []).append(one)
    found = [
        Blocker(
            orphan=_blocking(group, names.get(group[0].producer_id, "")),
            partitions=[_held(one.partition, one.offset, ends[one.partition]) for one in group],
        )
        for group in grouped.values()
    ]
    found.sort(key=lambda one: (not any(part.blocks for part in one.partitions), -one.orphan.age_s))
    return BlockedTopics(found=found, topics=here, missing=None if missing is None else _unanswered(parsed, missing))


@contextmanager
def _asking(settings: str | Mapping[str, Any]) -> Iterator[tuple[TransactionClient, Mapping[str, Any], float]]:
    parsed = parse_line(settings) if isinstance(settings, str) else settings
    with closing(TransactionClient(admin_settings(parsed))) as client:
        yield client, parsed, time.monotonic() + ANSWER_WITHIN_S


def _described(view: Description | BrokerAnswer | None) -> Description | None:
    return view if isinstance(view, Description) else None


def _held(partition: Partition, begins: int, readable_and_end: tuple[int, int]) -> HeldPartition:
    readable, end = readable_and_end
    return HeldPartition(
        topic=partition[0], partition=partition[1], begins=begins, readable=readable, end=end, blocks=begins == readable
    )


def _orphan(view: Description) -> KafkaOrphan:
    transaction = view.transaction
    name = TransactionalId.parse(transaction.transactional_id)
    return KafkaOrphan(
        kind=BEING_ENDED if view.state.startswith(STATE_BEING_ENDED) else OPEN,
        name=transaction.transactional_id,
        query="" if name is None else name.query,
        run="" if name is None else run_of(name.token),
        batch=-1,
        slot=-1,
        copy="" if name is None else f"{name.worker}-{name.lane}",
        age_s=max(0, time.time_ns() // 1_000_000 - view.started_ms) / 1000,
        holds=tuple(f"{topic}-{partition}" for topic, partition in sorted(view.partitions)),
        timeout_s=view.timeout_ms / 1000,
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        coordinator=view.coordinator,
        since_ms=view.started_ms,
    )


def _blocking(group: Sequence[OpenPart], name: str) -> KafkaOrphan:
    """Returns a transaction from its open parts and its coordinator's view, if there is one."""
    one = group[0]
    holds = tuple(f"{topic}-{number}" for topic, number in sorted(part.partition for part in group))
    known_as = name or f"producer id {one.producer_id}"
    view = one.view or Description(KafkaTransaction(known_as, one.producer_id, one.epoch), "", -1, -1)
    found = replace(_orphan(view), holds=holds, producer_id=one.producer_id, epoch=one.epoch)
    if one.view is None:
        return replace(found, kind=OPEN if name else NOT_VISIBLE, age_s=-1, timeout_s=-1)
    if one.is_over and found.kind != BEING_ENDED:
        # The coordinator already reports a later transaction, or the end of this one.
        return replace(found, kind=MARKER_MISSING, age_s=-1, since_ms=-1, timeout_s=-1)
    return found


def _unanswered(parsed: Mapping[str, Any], missing: BrokerAnswer) -> PreflightError:
    return PreflightError(
        f"Listing what is open in Kafka at {parsed.get('bootstrap.servers', '?')} failed: {missing}.",
        next_step="Check the brokers, and this user's permissions: DESCRIBE on the transactional ids, and READ on the "
        "topic to see whose transactions are open there.",
    )

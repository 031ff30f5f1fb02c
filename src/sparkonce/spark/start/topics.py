"""Compares the ids of the Kafka topics that a query reads with those in the log.

Spark knows a topic by its name only. A topic that is deleted and made again may have more records than were read of the
old one. Spark then reads on from the old offset, and silently skips the first records.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.source import SourceFacts
from sparkonce.sources.offsets import Offsets, kafka_offsets
from sparkonce.spark.jvm import jvm
from sparkonce.spark.kept import Kept
from sparkonce.spark.plans import source_facts
from sparkonce.spark.start.kafka_admin import admin_client, answer, close, java_list, milliseconds

logger = logging.getLogger("sparkonce")

_LIMIT_MS = 10_000
_WENT_BACK = "its cluster went back to an older state (a restored copy, a fail-over to a replica that lagged)"
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic that an old cluster has created: none."""


def running_plan(spark: SparkSession, query: str) -> Any:
    """Returns the analyzed plan of a running query; None if Spark does not say."""
    try:
        active = spark._jsparkSession.sharedState().activeStreamingQueries()
        return active.get(jvm().java.util.UUID.fromString(query)).analyzedPlan()
    except Exception as error:  # noqa: BLE001 - Spark's own classes may change; the query runs without this check
        logger.warning("The query's sources cannot be seen, so their topics' ids are not compared: %s", error)
        return None


def kafka_sources(plan: Any) -> tuple[SourceFacts, ...]:
    """Returns the Kafka sources of an analyzed plan."""
    return tuple(source for source in source_facts(plan) if source.format == "kafka")


def check_names(sources: Sequence[SourceFacts], read: Sequence[str], decided: int | None) -> None:
    """Refuses a source whose topics all have other names than those that were read, as a mirror's copies have.

    Spark would plan a batch over them from their beginning, and either fail and leave that batch in the checkpoint, or,
    with failOnDataLoss=false, write all rows again. Nothing is compared if any source names a pattern or partitions.

    Args:
        sources: The query's Kafka sources.
        read: The end offsets of the last finished batch, or else of the first that is planned; see `kafka_offsets`.
        decided: The batch that is decided and may not be committed; None if there is none.

    Raises:
        PreflightError: naming the topics of before and now.
    """
    before = set(kafka_offsets(read))
    subscribed = [_subscribed(source.options or {}) for source in sources]
    gone = before - set().union(*subscribed)
    for names in subscribed:
        if all(subscribed) and gone and not names & before:
            first = ""
            if decided is not None:
                first = f"Start once with the topics of before, since batch {decided} may not be committed yet. Then "
            raise PreflightError(
                f"This query has read {_listed(gone)} until now, and is to read {_listed(names)}, of which it has read "
                "nothing. Offsets of the checkpoint mean nothing there: Spark would begin at the beginning.",
                next_step=f"{first or 'Name the topics of before, or '}start a new query with a new checkpoint; see "
                '"Another Kafka cluster" in docs/rolling.md.',
            )


def _subscribed(options: Mapping[str, str]) -> set[str]:
    return {name.strip() for name in options.get("subscribe", "").split(",")} - {""}


def _listed(topics: Collection[str]) -> str:
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(map(repr, sorted(topics)))}"


class _Ids(NamedTuple):
    """The ids of a topic; several if its name is read on several clusters.

    Attributes:
        found: The ids that were given.
        is_whole: True if every cluster gave one. Otherwise the ids are compared, and not recorded.
    """

    found: frozenset[str]
    is_whole: bool


def _agree(found: frozenset[str], recorded: str) -> bool:
    """Returns True if these may be the recorded ids, although a cluster did not answer now or when they were recorded.

    Args:
        found: The ids.
        recorded: Ids with commas between; empty if none are recorded.
    """
    before = set(recorded.split(",")) - {""}
    return found <= before or before <= found


class SourceTopics:
    """Compares the ids at the start of a run and before each decision; a `PositionReporter`.

    Args:
        sources: The query's Kafka sources.
    """

    def __init__(self, sources: Sequence[SourceFacts]) -> None:
        self._sources = [dict(source.options or {}) for source in sources]
        self._admins: dict[int, Any] = {}
        self._kept = Kept()
        self._unit: Any = None
        self._known: dict[str, str] = {}
        self._changed = ""
        self._has_warned = False

    def kept(self, recorded: Mapping[str, str], read: Sequence[str]) -> Mapping[str, str]:
        """Returns the ids for the log to keep. A known topic keeps its recorded id for as long as the log lasts.

        Args:
            recorded: The ids in the log.
            read: The end offsets of the run's first batch, see `kafka_offsets`.
        """
        found = self._ask(read)
        kept = {name: recorded[name] for name in found if name in recorded}
        self._known = kept or ({} if found else dict(recorded))
        self._changed = self._difference(found)
        return self._known

    def check_ends(self, recorded: Mapping[str, str], before: Sequence[str], newest: Sequence[str]) -> None:
        """Warns of a topic that ends before the offsets that were read: its cluster went back.

        Spark then plans a batch that ends before it begins, and fails. A topic is refused only once that batch is
        planned: the planned batch keeps the query from resuming after the topic has grown past the old offsets. With
        failOnDataLoss=false Spark reads on from the topic's end.

        Args:
            recorded: The ids in the log. A topic with another id is another topic, see `check_same`.
            before: The end offsets of the last finished batch, if one more is planned; else empty.
            newest: The end offsets of the last batch.

        Raises:
            PreflightError: if that batch is planned, naming topic, partition and offsets.
        """
        begins, ends = kafka_offsets(before), kafka_offsets(newest)
        same = {name for name, ids in self._ask(newest).items() if _agree(ids.found, recorded.get(name, ""))}
        for number, options in enumerate(self._sources):
            goes_on = options.get("failondataloss", "").lower() == "false"
            names = self._read_by(options, sorted(same))
            for (name, partition), now in self._ends_of(number, {name: ends[name] for name in names}).items():
                planned = ends[name][partition]
                read = max(planned, begins.get(name, {}).get(partition, planned))
                if planned < read and not goes_on:
                    raise PreflightError(
                        f"Topic {name!r} partition {partition} ended at offset {planned} when the last batch was "
                        f"planned, and this query had read it up to {read}: {_WENT_BACK}.",
                        next_step="Bring the newer state back, and move offsets/N and offsets/.N.crc, N being the "
                        "highest number, out of the checkpoint. If there is no newer state, start the query once with "
                        "fail_on_data_loss=False: it then reads on from the topic's end. See \"A server that went "
                        'back" in docs/operations.md.',
                    )
                if min(now, planned) < read:
                    logger.warning(
                        "Topic %r partition %d ends at offset %d, and this query has read it up to %d: %s. %s.",
                        *(name, partition, min(now, planned), read, _WENT_BACK),
                        "Spark reads on from there, as failOnDataLoss=false says"
                        if goes_on
                        else "Spark stops the query",
                    )

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Checks nothing: topics do not depend on sinks."""

    def check_same(self) -> None:
        """Refuses a run that found another topic than the log knows.

        Raises:
            PreflightError: naming the topic, with both ids.
        """
        if self._changed:
            raise PreflightError(
                self._changed,
                next_step="Start a new query with a new checkpoint to read the present topic; see "
                "docs/kafka-source.md.",
            )

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:  # noqa: ARG002
        """Returns the reason why the batch must not be decided; empty if no topic changed, or no broker answers."""
        return self._difference(self._ask(sources))

    def _difference(self, found: Mapping[str, _Ids]) -> str:
        for name, ids in found.items():
            before = self._known.get(name, "")
            if ids.is_whole and not before:
                self._known[name] = ",".join(sorted(ids.found))
            if not _agree(ids.found, before):
                now = ",".join(sorted(ids.found))
                return (
                    f"Topic {name!r}, which this query reads, was deleted and made again: it has the id {now}, and had "
                    f"{before}. The checkpoint's offsets are those of the old topic. Reading on from there would skip "
                    "the first records of the new one."
                )
        return ""

    def after_finish(self, sources: Sequence[str]) -> None:
        """Reports nothing."""

    def close(self) -> None:
        """Ends the clients."""
        admins, self._admins = self._admins, {}
        for admin in admins.values():
            close(admin)

    def _ask(self, read: Sequence[str]) -> dict[str, _Ids]:
        """Returns the ids of these offsets' topics, as far as some cluster gives one."""
        found: dict[str, set[str]] = {}
        silent: set[str] = set()
        for number, options in enumerate(self._sources):
            names = self._read_by(options, list(kafka_offsets(read)))
            ids = self._ask_one(number, names)
            silent.update(set(names) - ids.keys())
            for name, topic_id in ids.items():
                found.setdefault(name, set()).add(topic_id)
        return {name: _Ids(frozenset(ids), is_whole=name not in silent) for name, ids in found.items()}

    @staticmethod
    def _read_by(options: Mapping[str, str], names: Sequence[str]) -> list[str]:
        topics = _subscribed(options)
        return [name for name in names if not topics or name in topics]

    def _ends_of(self, number: int, read: Offsets) -> dict[tuple[str, int], int]:
        """Returns the end offsets of these partitions; empty if the brokers do not say."""
        kafka = jvm().org.apache.kafka
        wanted = jvm().java.util.HashMap()
        places = [(name, partition) for name, partitions in read.items() for partition in partitions]
        for name, partition in places:
            wanted.put(kafka.common.TopicPartition(name, partition), kafka.clients.admin.OffsetSpec.latest())
        try:
            answers = answer(self._admin(number).listOffsets(wanted).all(), _LIMIT_MS)
            return {one: int(answers.get(kafka.common.TopicPartition(*one)).offset()) for one in places}
        except Exception as error:  # noqa: BLE001 - of any kind: nothing is known, and nothing concluded
            logger.warning("The ends of topics %s cannot be asked for, and are not compared: %s", sorted(read), error)
            return {}

    def _ask_one(self, number: int, names: Sequence[str]) -> dict[str, str]:
        """Returns the topics' ids by name. A missing topic has none; Spark itself stops the query for it."""
        if not names:
            return {}
        try:
            asked = self._kept.get((number, *names), lambda: java_list(names))
            answers = self._admin(number).describeTopics(asked).topicNameValues()
            self._unit = self._unit or milliseconds()
            ids = {name: _id_of(answers.get(name), self._unit) for name in names}
        except Exception as error:  # noqa: BLE001 - of any kind: nothing is known, and nothing concluded
            if not self._has_warned:
                logger.warning("The ids of topics %s cannot be asked for, and are not compared: %s", names, error)
            self._has_warned = True
            return {}
        return {name: topic_id for name, topic_id in ids.items() if topic_id}

    def _admin(self, number: int) -> Any:
        if number not in self._admins:
            self._admins[number] = admin_client(self._sources[number], _LIMIT_MS)
        return self._admins[number]


def _id_of(described: Any, unit: Any) -> str:
    try:
        topic_id = str(answer(described, _LIMIT_MS, unit).topicId().toString())
    except Exception as error:
        if "UnknownTopicOrPartitionException" in str(error):
            return ""
        raise
    return "" if topic_id == _NO_ID else topic_id

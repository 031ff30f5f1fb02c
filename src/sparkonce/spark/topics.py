"""The ids of the Kafka topics that a query reads, as the brokers tell them now, and as the log knows them.

Spark knows a topic by its name. One that is deleted and made again, and has more records than were read of the old one,
is read on from the old offset: its first records are passed over, and nobody says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sparkonce.analysis.facts import SourceFacts
from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.sinks.base import Facts
from sparkonce.sources.offsets import kafka_offsets
from sparkonce.spark.jvm import jvm
from sparkonce.spark.plans import source_facts

logger = logging.getLogger("sparkonce")

_LIMIT_MS = 10_000
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Of a topic that an old cluster made."""


def running_sources(spark: SparkSession, query: str) -> tuple[SourceFacts, ...]:
    """The Kafka sources of a query that runs; none if Spark does not tell."""
    try:
        active = spark._jsparkSession.sharedState().activeStreamingQueries()
        execution = active.get(jvm().java.util.UUID.fromString(query))
        return tuple(source for source in source_facts(execution.analyzedPlan()) if source.format == "kafka")
    except Exception as error:  # noqa: BLE001 - Spark's own classes, which may change: the query runs without
        logger.warning("the query's sources cannot be seen, so their topics' ids are not compared: %s", error)
        return ()


class SourceTopics:
    """Compares the ids at the start of a run and before each decision; a `PositionReporter`.

    Args:
        sources: The query's Kafka sources.
    """

    def __init__(self, sources: Sequence[SourceFacts]) -> None:
        self._sources = [dict(source.options or {}) for source in sources]
        self._admins: dict[int, Any] = {}
        self._known: dict[str, str] = {}
        self._changed = ""
        self._told = False

    def kept(self, recorded: Mapping[str, str], read: Sequence[str]) -> Mapping[str, str]:
        """What the log is to keep: of a topic that it knows what it knows, until a run has another checkpoint.

        Args:
            recorded: The ids in the log.
            read: The end offsets of the first batch, see `kafka_offsets`.
        """
        found = self._ask(read)
        self._known = {name: recorded.get(name, topic_id) for name, topic_id in found.items()} or dict(recorded)
        self._changed = self._difference(found)
        return self._known

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Nothing of it depends on sinks."""

    def check_same(self) -> None:
        """Sees that no topic was another one than the log knows when the run started.

        Raises:
            PreflightError: naming it, with both ids.
        """
        if self._changed:
            raise PreflightError(
                self._changed,
                next_step="start a new query with a new checkpoint to read the topic that is there now; see "
                "docs/kafka-source.md.",
            )

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:  # noqa: ARG002
        """Why the batch must not be decided; empty if every topic is the one that it was, or cannot be asked for."""
        return self._difference(self._ask(sources))

    def _difference(self, found: Mapping[str, str]) -> str:
        for name, topic_id in found.items():
            before = self._known.setdefault(name, topic_id)
            if before != topic_id:
                return (
                    f"topic {name!r}, which this query reads, was deleted and made again: it has the id {topic_id}, "
                    f"and had {before}. The checkpoint's offsets are those of the old one: read on from there, the "
                    "first records of the new one would be passed over"
                )
        return ""

    def after_finish(self, sources: Sequence[str]) -> None:
        """Nothing is to be told."""

    def close(self) -> None:
        """Ends the clients."""
        admins, self._admins = self._admins, {}
        for admin in admins.values():
            admin.close(jvm().java.time.Duration.ZERO)

    def _ask(self, read: Sequence[str]) -> dict[str, str]:
        """The ids of the topics of these offsets, each with that of every cluster on which it is read."""
        found: dict[str, set[str]] = {}
        for number, options in enumerate(self._sources):
            topics = {name.strip() for name in options.get("subscribe", "").split(",")} - {""}
            names = [name for name in kafka_offsets(read) if not topics or name in topics]
            for name, topic_id in self._ask_one(number, names).items():
                found.setdefault(name, set()).add(topic_id)
        return {name: ",".join(sorted(ids)) for name, ids in found.items()}

    def _ask_one(self, number: int, names: Sequence[str]) -> dict[str, str]:
        """A topic that is missing has no id; Spark itself stops the query for it."""
        if not names:
            return {}
        try:
            wanted = jvm().java.util.ArrayList()
            for name in names:
                wanted.add(name)
            answers = self._admin(number).describeTopics(wanted).topicNameValues()
            ids = {name: _id_of(answers.get(name)) for name in names}
        except Exception as error:  # noqa: BLE001 - whatever a client says: nothing is known, and nothing concluded
            if not self._told:
                logger.warning("the ids of topics %s cannot be asked for, and are not compared: %s", names, error)
            self._told = True
            return {}
        return {name: topic_id for name, topic_id in ids.items() if topic_id}

    def _admin(self, number: int) -> Any:
        """Java's client, with the settings of the source's own consumers."""
        if number not in self._admins:
            admin = jvm().org.apache.kafka.clients.admin
            known = set(admin.AdminClientConfig.configNames())
            settings = jvm().java.util.HashMap()
            for option, value in self._sources[number].items():
                name = option.removeprefix("kafka.")
                if name != option and name in known:
                    settings.put(name, value)
            settings.put("default.api.timeout.ms", str(_LIMIT_MS))
            settings.put("request.timeout.ms", str(_LIMIT_MS // 2))
            self._admins[number] = admin.AdminClient.create(settings)
        return self._admins[number]


def _id_of(answer: Any) -> str:
    try:
        topic_id = str(answer.get(_LIMIT_MS, jvm().java.util.concurrent.TimeUnit.MILLISECONDS).topicId().toString())
    except Exception as error:
        if "UnknownTopicOrPartitionException" in str(error):
            return ""
        raise
    return "" if topic_id == _NO_ID else topic_id

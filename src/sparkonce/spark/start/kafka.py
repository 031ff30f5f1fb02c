"""Asks the brokers of a query's Kafka sources, before Spark does, and compares their topics with those in the log.

Spark waits silently for brokers that do not answer. And it knows a topic by its name only: a topic that was deleted and
recreated may have more records than were read of the old one. Spark then reads on from the old offset, and silently
skips the first records of the new one.

The brokers are asked through Java's Kafka client, with the settings of the source's own consumers. A Python client
could not always log in as the source does, since the settings are Java's.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.source import SourceFacts
from sparkonce.sources.offsets import Offsets, kafka_offsets
from sparkonce.spark.jvm import JvmCache, jvm
from sparkonce.spark.plans import source_facts

logger = logging.getLogger("sparkonce")

LIMIT_S = 15.0
"""The time that the brokers of all sources have to answer, as a sink's have."""

_LEFT_S = 2.0
"""The part of that time kept for Kafka's client to report its own timeout, and the reason."""

_COUNTED_AT_MOST = 500
"""The most partitions in which rows are counted: each costs a dozen calls of the JVM."""

_SURE_AFTER_S = 3.0
"""The time after which a topic that no broker knows is surely missing."""

_ASK_AGAIN_S = 0.2

_UNREACHABLE = frozenset({"TimeoutException", "DisconnectException"})

_LOGIN_REFUSED = frozenset({"AuthenticationException", "SaslAuthenticationException", "SslAuthenticationException"})

_DELEGATED = "spark.kafka.clusters."
"""Settings of delegation tokens. Spark itself logs in by them; this check cannot."""

_EARLIEST, _LATEST = -2, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A Kafka source, as its brokers know it.

    Attributes:
        options: The options of Spark's source, with names in lower case.
        partitions: The number of partitions that it reads of each topic; empty if unknown.
        highest: One more than the highest number of a partition that it reads; 0 if unknown.
        rows: The number of rows in its first batch; None if not asked for, or unknown.
    """

    options: Mapping[str, str] = field(repr=False)
    partitions: Mapping[str, int]
    highest: int = 0
    rows: int | None = None


def ask_sources(
    spark: SparkSession, sources: Sequence[SourceFacts], *, is_first: bool, is_limited: bool = True
) -> list[KafkaSource]:
    """Checks that the brokers of each source answer, and know its topics.

    Args:
        spark: The session.
        sources: The query's Kafka sources.
        is_first: True if the query has no batch yet, so that its sources say where it begins.
        is_limited: True if ``maxOffsetsPerTrigger`` holds; the trigger ``once`` ignores it.

    Returns:
        One for each source that differs from the others.

    Raises:
        PreflightError: naming the brokers that do not answer, or the topic that is missing or may not be read.
    """
    delegated = any(name.startswith(_DELEGATED) for name, _ in spark.sparkContext.getConf().getAll())
    give_up_at = time.monotonic() + LIMIT_S
    different = {frozenset((source.options or {}).items()): dict(source.options or {}) for source in sources}
    probes = [_SourceProbe(options, give_up_at, delegated=delegated) for options in different.values()]
    return [one.probe(is_first=is_first, is_limited=is_limited) for one in probes]


class _SourceProbe:
    def __init__(self, options: Mapping[str, str], give_up_at: float, *, delegated: bool) -> None:
        self._options = options
        self._servers = options.get("kafka.bootstrap.servers", "")
        self._give_up_at = give_up_at
        self._delegated = delegated

    def probe(self, *, is_first: bool, is_limited: bool) -> KafkaSource:
        partitions: dict[str, int] = {}
        rows = None
        admin = None
        try:
            admin = admin_client(self._options, int(1000 * max(1.0, self._left_s() - _LEFT_S)))
            partitions = self._partitions(admin)
            rows = self._counted(admin, partitions, is_limited=is_limited) if is_first else None
        except PreflightError:
            raise
        except Exception as error:  # noqa: BLE001 - of any kind: Spark starts if nothing is known
            kind, said = reason(error)
            if not self._delegated and (refused := self._unreachable(kind, said)) is not None:
                raise refused from None
            logger.warning("The Kafka source's bootstrap.servers=%r cannot be asked: %s: %s", self._servers, kind, said)
        finally:
            if admin is not None:
                close(admin)
        highest = 1 + max((number for _, number in self._places(partitions)), default=-1)
        return KafkaSource(options=self._options, partitions=partitions, highest=highest, rows=rows)

    def _left_s(self) -> float:
        return max(0.0, self._give_up_at - time.monotonic())

    def _answer(self, future: Any) -> Any:
        return answer(future, int(1000 * max(0.1, self._left_s())))

    def _partitions(self, admin: Any) -> dict[str, int]:
        if "subscribepattern" in self._options:
            return self._matching(admin)
        if "assign" in self._options:
            return self._assigned(admin)
        names = [name.strip() for name in self._options.get("subscribe", "").split(",") if name.strip()]
        return self._described(admin, names)

    def _described(self, admin: Any, names: Sequence[str]) -> dict[str, int]:
        """Returns each topic's number of partitions. Asks again for a new topic, which some broker may not know."""
        give_up_at = time.monotonic() + _SURE_AFTER_S
        found: dict[str, int] = {}
        while len(found) < len(set(names)):
            futures = admin.describeTopics(java_list(names)).topicNameValues()
            for name in names:
                try:
                    described = self._answer(futures.get(name))
                except Exception as error:  # noqa: BLE001 - of any kind
                    kind, said = reason(error)
                    is_late = time.monotonic() >= give_up_at
                    if kind == "UnknownTopicOrPartitionException" and not is_late:
                        continue
                    raise self._refused(name, kind, said) or error from None
                found[name] = int(described.partitions().size())
            if len(found) < len(set(names)):
                time.sleep(_ASK_AGAIN_S)
        return found

    def _matching(self, admin: Any) -> dict[str, int]:
        pattern = jvm().java.util.regex.Pattern.compile(self._options["subscribepattern"])
        names = [str(name) for name in self._answer(admin.listTopics().names()) if pattern.matcher(name).matches()]
        if not names:
            logger.warning(
                "No topic on bootstrap.servers=%r matches pattern=%r: the query waits for one. Next: Correct the "
                "pattern, or create a topic that it matches.",
                *(self._servers, self._options["subscribepattern"]),
            )
        return self._described(admin, names)

    def _assigned(self, admin: Any) -> dict[str, int]:
        wanted = json.loads(self._options["assign"])
        found = self._described(admin, list(wanted))
        for name, numbers in wanted.items():
            if missing := sorted(set(map(int, numbers)) - set(range(found[name]))):
                raise PreflightError(
                    f"Topic {name!r}, which this query reads, has no partition {missing[0]}: it has {found[name]}.",
                    next_step="Name partitions that exist, from 0 on.",
                    setting="partitions",
                )
        return {name: len(numbers) for name, numbers in wanted.items()}

    def _counted(self, admin: Any, partitions: Mapping[str, int], *, is_limited: bool) -> int | None:
        """Returns the number of rows in the first batch. Only a warning depends on it."""
        places = self._places(partitions)
        if len(places) > _COUNTED_AT_MOST:
            return None
        try:
            rows = self._rows(admin, places)
        except Exception as error:  # noqa: BLE001 - of any kind, for example for a partition without a leader
            logger.warning("The number of rows in the first batch is unknown: %s: %s", *reason(error))
            return None
        limit = self._options.get("maxoffsetspertrigger") if is_limited else None
        return rows if limit is None else min(rows, int(limit))

    def _rows(self, admin: Any, places: Sequence[tuple[str, int]]) -> int:
        """Returns the number of rows between the source's start and the ends of its topics."""
        starts = {place: self._start(*place) for place in places}
        if all(start == _LATEST for start in starts.values()):
            return 0
        spec = jvm().org.apache.kafka.clients.admin.OffsetSpec
        unknown = {place: start for place, start in starts.items() if not isinstance(start, int) or start < 0}
        begins = {place: start for place, start in starts.items() if isinstance(start, int)}
        begins |= self._offsets(admin, {place: _spec(spec, start) for place, start in unknown.items()})
        ends = self._offsets(admin, {place: spec.latest() for place in places})
        return sum(max(0, ends[place] - begin) for place, begin in begins.items() if begin >= 0)

    def _places(self, partitions: Mapping[str, int]) -> list[tuple[str, int]]:
        if "assign" in self._options:
            wanted = json.loads(self._options["assign"])
            return [(name, int(number)) for name, numbers in wanted.items() for number in numbers]
        return [(name, number) for name, count in partitions.items() for number in range(count)]

    def _start(self, topic: str, partition: int) -> int | str:
        """Returns Spark's start in a partition: an offset, -2 or -1 (earliest, latest), or a text of milliseconds."""
        if (when := self._options.get("startingtimestamp")) is not None:
            return when
        if (times := self._options.get("startingoffsetsbytimestamp")) is not None:
            return str(json.loads(times).get(topic, {}).get(str(partition), "0"))
        given = self._options.get("startingoffsets", "latest").strip()
        if given.lower() in ("earliest", "latest"):
            return _EARLIEST if given.lower() == "earliest" else _LATEST
        return int(json.loads(given).get(topic, {}).get(str(partition), _EARLIEST))

    def _refused(self, topic: str, kind: str, said: str) -> PreflightError | None:
        """Returns the error for a broker's answer about a topic; None for an answer that says nothing about it."""
        where = f"bootstrap.servers={self._servers!r}"
        if kind == "UnknownTopicOrPartitionException":
            return PreflightError(
                f"Topic {topic!r}, which this query reads, does not exist on {where}.",
                next_step="Create it, or correct its name; nothing here creates topics.",
                setting="topics",
            )
        if kind == "InvalidTopicException":
            return PreflightError(
                f"topics={topic!r} is not a valid topic name: {said}", next_step="Correct it.", setting="topics"
            )
        if kind == "TopicAuthorizationException" and not self._delegated:
            return PreflightError(
                f"Topic {topic!r}, which this query reads, may not be seen by this user on {where}.",
                next_step="Grant READ and DESCRIBE on it, or check its name.",
                setting="topics",
            )
        return None

    def _offsets(self, admin: Any, specs: Mapping[tuple[str, int], Any]) -> dict[tuple[str, int], int]:
        """Returns the offset of each partition at its specification; -1 if no record is that young."""
        place_of = jvm().org.apache.kafka.common.TopicPartition
        wanted = jvm().java.util.HashMap()
        for place, spec in specs.items():
            wanted.put(place_of(*place), spec)
        found = self._answer(admin.listOffsets(wanted).all())
        return {place: int(found.get(place_of(*place)).offset()) for place in specs}

    def _unreachable(self, kind: str, said: str) -> PreflightError | None:
        """Returns the error for a client that got no answer or was refused; None if this check may be at fault."""
        where = f"The Kafka source's bootstrap.servers={self._servers!r}"
        if kind in _LOGIN_REFUSED:
            return PreflightError(
                f"{where} refused this user: {said}",
                next_step="Check security.protocol, sasl.mechanism and the credentials among the source's settings.",
                setting="bootstrap.servers",
            )
        if kind not in _UNREACHABLE and not (kind == "ConfigException" and "bootstrap" in said):
            return None
        return PreflightError(
            f"{where} did not answer within {LIMIT_S:.0f} s: {said or kind}",
            next_step="Check the addresses, the brokers, and security.protocol.",
            setting="bootstrap.servers",
        )


def _spec(spec: Any, start: int | str) -> Any:
    if isinstance(start, str):
        return spec.forTimestamp(int(start))
    return spec.earliest() if start == _EARLIEST else spec.latest()


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
        self._cache = JvmCache()
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
            asked = self._cache.get((number, *names), lambda: java_list(names))
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


_NAME = "kafka."

_WRAPPERS = ("java.util.concurrent.ExecutionException", "org.apache.kafka.common.KafkaException")


def admin_client(options: Mapping[str, str], limit_ms: int) -> Any:
    """Makes an ``AdminClient``, which the caller closes.

    Args:
        options: The options of Spark's source, with names in lower case.
        limit_ms: The longest that a call may take.

    Raises:
        Py4JJavaError: if the settings are not usable, or no name in ``bootstrap.servers`` can be resolved.
    """
    clients = jvm().org.apache.kafka.clients
    known = set(clients.admin.AdminClientConfig.configNames())
    # A name of neither is a plugin's: a login callback's, a TLS engine's, a provider's of secrets.
    consumers_only = set(clients.consumer.ConsumerConfig.configNames()) - known
    settings = jvm().java.util.HashMap()
    for option, value in options.items():
        name = option.removeprefix(_NAME)
        if name != option and name not in consumers_only:
            settings.put(name, value)
    settings.put("default.api.timeout.ms", str(limit_ms))
    settings.put("request.timeout.ms", str(limit_ms // 2))
    return clients.admin.AdminClient.create(settings)


def close(admin: Any) -> None:
    """Ends the client at once."""
    admin.close(jvm().java.time.Duration.ZERO)


def milliseconds() -> Any:
    """Returns Java's unit. Finding it takes some milliseconds."""
    return jvm().java.util.concurrent.TimeUnit.MILLISECONDS


def answer(future: Any, limit_ms: int, unit: Any = None) -> Any:
    """Waits for the result of a call.

    Args:
        future: Of the call.
        limit_ms: The longest wait.
        unit: `milliseconds`, where a caller keeps it.

    Raises:
        Py4JJavaError: if the call failed.
    """
    return future.get(limit_ms, unit or milliseconds())


def java_list(values: Iterable[Any]) -> Any:
    """Makes a ``java.util.List``."""
    made = jvm().java.util.ArrayList()
    for value in values:
        made.add(value)
    return made


def reason(error: Exception) -> tuple[str, str]:
    """Returns the short class name and the message of a call's error, without Java's wrappers."""
    if not isinstance(error, Py4JJavaError):
        return type(error).__name__, str(error)
    cause = error.java_exception
    while cause.getCause() is not None and cause.getClass().getName() in _WRAPPERS:
        cause = cause.getCause()
    return str(cause.getClass().getSimpleName()), str(cause.getMessage() or "")

"""Asks the brokers of a query's Kafka sources before Spark does, since Spark waits for them silently."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from sparkonce.errors import PreflightError
from sparkonce.source import SourceFacts
from sparkonce.spark.jvm import jvm
from sparkonce.spark.start.kafka_admin import admin_client, answer, close, java_list, reason

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

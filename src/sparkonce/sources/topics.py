"""Checks the brokers of a query's Kafka sources at each start, and tells recreated topics from the original ones.

Spark waits silently for brokers that do not answer, and identifies a topic only by its name. If a topic was deleted and
recreated, and already has more records than Spark had read from the old one, Spark continues at the old offset and
silently skips the new topic's first records.

The checks need the options of Spark's source, but no session: `sparkonce.sources.kafka.connection_settings` translates
the options from Java's names. If one has no translation, the brokers are not contacted, and a warning names it.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import ssl
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer.offsets import IsolationLevel, OffsetSpec

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer
from sparkonce.sinks.kafka.settings import admin_settings
from sparkonce.sinks.kafka.transaction_client import (
    LEADER_NOT_AVAILABLE,
    Partition,
    TransactionClient,
    answered,
    ask_leaders,
    end_offsets,
    leaders_of,
    list_offsets,
    metadata_request,
)
from sparkonce.source import SourceFacts
from sparkonce.sources.kafka import connection_settings
from sparkonce.sources.offsets import Offsets, kafka_offsets

logger = logging.getLogger("sparkonce")

LIMIT_S = 15.0
"""The time limit for the brokers of all sources, the same as for a sink's brokers."""

_SURE_AFTER_S = 3.0
"""The time after which a topic that no broker knows is considered missing."""

_ASK_AGAIN_S = 0.2

_MISSING, _INVALID, _NOT_ALLOWED = 3, 17, 29

_LOGIN_FAILED, _NOT_TRUSTED = "AuthenticationFailed", "CERTIFICATE_VERIFY_FAILED"
"""Parts of kafka-python's errors: the broker rejects the user and password, or cannot prove its own identity."""

_JAVA_ONLY = re.compile(r"&&|\[[^\]]*\[|\\[pPhHvVRXGzk]")
"""Syntax of Java's regular expressions that Python reads differently or does not support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A Kafka source, as its brokers describe it.

    Attributes:
        options: The options of Spark's source, with names in lower case.
        partitions: The number of partitions that it reads from each topic; empty if unknown.
        highest: The highest partition number that it reads, plus one; 0 if unknown.
        rows: The number of rows in its first batch; None if it was not requested, or is unknown.
    """

    options: Mapping[str, str] = field(repr=False)
    partitions: Mapping[str, int]
    highest: int = 0
    rows: int | None = None


def ask_sources(
    sources: Sequence[SourceFacts], *, is_first: bool, is_limited: bool = True, delegated: bool = False
) -> list[KafkaSource]:
    """Checks that the brokers of each source answer and know its topics.

    Args:
        sources: The query's Kafka sources.
        is_first: True if the query has no batch yet, in which case its sources determine where it begins.
        is_limited: True if ``maxOffsetsPerTrigger`` applies; the trigger ``once`` ignores it.
        delegated: True if Spark may log in with delegation tokens, which this check cannot do. A rejected login is then
            only a warning.

    Returns:
        One entry for each distinct source.

    Raises:
        PreflightError: If brokers do not answer, or a topic is missing or not readable. The message names them.
    """
    deadline_s = time.monotonic() + LIMIT_S
    different = {frozenset((source.options or {}).items()): dict(source.options or {}) for source in sources}
    found = []
    for options in different.values():
        where = f"The Kafka source's bootstrap.servers={_servers(options)!r}"
        if not all(re.search(r":\d+$", one.strip()) for one in _servers(options).split(",") if one.strip()):
            raise PreflightError(
                f"{where} are not addresses.", next_step="Give host:port.", setting="bootstrap.servers"
            )
        try:
            client = _client(options)
        except ConfigurationError as error:
            logger.warning("%s is not checked before the start: %s", where, error)
            found.append(KafkaSource(options=options, partitions={}))
            continue
        probe = _SourceProbe(options, client, deadline_s, delegated=delegated)
        try:
            found.append(probe.probe(is_first=is_first, is_limited=is_limited))
        except _UnaskedError as error:
            logger.warning("%s cannot be queried: %s", where, error)
            found.append(KafkaSource(options=options, partitions={}))
        finally:
            client.close()
    return found


def _servers(options: Mapping[str, str]) -> str:
    return options.get("kafka.bootstrap.servers", "")


def _client(options: Mapping[str, str]) -> TransactionClient:
    """Returns a client, which the caller closes.

    Raises:
        ConfigurationError: If only Java's client supports a setting. The message names it.
    """
    settings = admin_settings(connection_settings(options))
    if "ssl_context" in settings:  # Java trusts every certificate in a trust store, even if its issuer is missing
        settings["ssl_context"].verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return TransactionClient(settings, connections=1)


def _is_refused(answer: BrokerAnswer) -> bool:
    return any(words in answer.reason for words in (_LOGIN_FAILED, _NOT_TRUSTED))


class _UnaskedError(Exception):
    """The brokers could not be checked, for a reason that may not affect Spark. The query starts anyway."""


class _SourceProbe:
    def __init__(
        self, options: Mapping[str, str], client: TransactionClient, deadline_s: float, *, delegated: bool
    ) -> None:
        self._options = options
        self._client = client
        self._deadline_s = deadline_s
        self._delegated = delegated

    def probe(self, *, is_first: bool, is_limited: bool) -> KafkaSource:
        metadata = self._metadata()
        found = {topic.name: len(topic.partitions) for topic in metadata.topics}
        assigned = self._assigned(found)
        partitions = [(name, number) for name, count in found.items() for number in range(count)]
        if assigned is not None:
            partitions = [(name, number) for name, numbers in assigned.items() for number in numbers]
        rows = self._rows(metadata, partitions) if is_first else None
        limit = self._options.get("maxoffsetspertrigger") if is_limited else None
        if rows is not None and limit is not None:
            rows = min(rows, int(limit))
        return KafkaSource(
            options=self._options,
            partitions=found if assigned is None else {name: len(numbers) for name, numbers in assigned.items()},
            highest=1 + max((number for _, number in partitions), default=-1),
            rows=rows,
        )

    def _metadata(self) -> Any:
        """Describes the source's topics. Retries if one is missing, since brokers may not know a new topic yet."""
        pattern = self._options.get("subscribepattern")
        names = sorted(_subscribed(self._options) or json.loads(self._options.get("assign", "{}")))
        request = metadata_request(*names) if pattern is None else metadata_request(every=True)
        sure_at = time.monotonic() + _SURE_AFTER_S
        while True:
            metadata = self._client.insist(request, deadline_s=self._deadline_s, is_final=_is_refused)
            if isinstance(metadata, BrokerAnswer):
                raise self._unreachable(metadata.reason)
            if pattern is not None:
                metadata.topics = self._matching(pattern, metadata.topics)
            codes = {topic.name: topic.error_code for topic in metadata.topics if topic.error_code != NONE}
            new = {_MISSING, LEADER_NOT_AVAILABLE}
            if pattern is not None or not codes:
                return metadata
            if not new.issuperset(codes.values()) or time.monotonic() >= sure_at:
                raise self._refused(*next(iter(codes.items())))
            time.sleep(_ASK_AGAIN_S)

    def _matching(self, pattern: str, topics: Sequence[Any]) -> list[Any]:
        matches = java_pattern(pattern)
        if matches is None:
            raise _UnaskedError(f"pattern={pattern!r} uses what only Java's regular expressions have")
        found = [
            one for one in topics if not one.is_internal and one.error_code == NONE and matches.fullmatch(one.name)
        ]
        if not found:
            logger.warning(
                "No topic on bootstrap.servers=%r matches pattern=%r: the query waits for one. Next: Correct the "
                "pattern, or create a topic that it matches.",
                *(_servers(self._options), pattern),
            )
        return found

    def _assigned(self, found: Mapping[str, int]) -> dict[str, list[int]] | None:
        if "assign" not in self._options:
            return None
        assigned = {name: list(map(int, numbers)) for name, numbers in json.loads(self._options["assign"]).items()}
        for name, numbers in assigned.items():
            if missing := sorted(set(numbers) - set(range(found[name]))):
                raise PreflightError(
                    f"Topic {name!r}, which this query reads, has no partition {missing[0]}: it has {found[name]}.",
                    next_step="Name partitions that exist, from 0 on.",
                    setting="partitions",
                )
        return assigned

    def _rows(self, metadata: Any, partitions: Sequence[Partition]) -> int | None:
        """Returns the number of rows between the source's start and its topics' ends. Only a warning depends on it."""
        begins, asked = self._starts(partitions)
        leaders = leaders_of(metadata)
        counted = {partition: leaders[partition] for partition in begins.keys() | asked.keys()}
        starts = partial(list_offsets, when=asked, level=IsolationLevel.READ_UNCOMMITTED)
        told, ends = ask_leaders(self._client, answered(counted), starts, end_offsets, deadline_s=self._deadline_s)
        refused = (one for one in [*counted.values(), *told.values(), *ends.values()] if isinstance(one, BrokerAnswer))
        if (why := next(refused, None)) is not None:
            logger.warning("The number of rows in the first batch is unknown: %s", why)
            return None
        begins |= {partition: int(one.offset) for partition, one in told.items()}
        return sum(max(0, int(ends[partition].offset) - begin) for partition, begin in begins.items() if begin >= 0)

    def _starts(self, partitions: Sequence[Partition]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Returns Spark's starting point in each partition, except those that it reads from the end.

        Returns:
            The known offsets, and the ListOffsets timestamps of the other partitions.
        """
        offsets = self._options.get("startingoffsets", "latest").strip()
        by_time = self._options.get("startingoffsetsbytimestamp")
        words = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
        if (when := self._options.get("startingtimestamp")) is not None:
            known, other, is_time = {}, int(when), True
        elif by_time is not None:
            known, other, is_time = json.loads(by_time), 0, True
        elif offsets.lower() in words:
            known, other, is_time = {}, int(words[offsets.lower()]), False
        else:
            known, other, is_time = json.loads(offsets), int(OffsetSpec.EARLIEST), False
        begins: dict[Partition, int] = {}
        asked: dict[Partition, int] = {}
        for topic, number in partitions:
            start = int(known.get(topic, {}).get(str(number), other))
            if is_time or start == OffsetSpec.EARLIEST:
                asked[topic, number] = start
            elif start != OffsetSpec.LATEST:
                begins[topic, number] = start
        return begins, asked

    def _refused(self, topic: str, code: int) -> Exception:
        """Returns the error for a broker's answer about a topic."""
        where = f"bootstrap.servers={_servers(self._options)!r}"
        if code == _MISSING:
            return PreflightError(
                f"Topic {topic!r}, which this query reads, does not exist on {where}.",
                next_step="Create it, or correct its name; nothing here creates topics.",
                setting="topics",
            )
        if code == _INVALID:
            return PreflightError(
                f"topics={topic!r} is not a valid topic name.", next_step="Correct it.", setting="topics"
            )
        if code == _NOT_ALLOWED and not self._delegated:
            return PreflightError(
                f"Topic {topic!r}, which this query reads, may not be seen by this user on {where}.",
                next_step="Grant READ and DESCRIBE on it, or check its name.",
                setting="topics",
            )
        return _UnaskedError(f"topic {topic!r}: {BrokerAnswer(code)}")

    def _unreachable(self, told: str) -> Exception:
        """Returns the error for brokers that gave no answer, or rejected the login."""
        where = f"The Kafka source's bootstrap.servers={_servers(self._options)!r}"
        # Without a trust store, Java uses its bundled certificates, but Python uses the operating system's.
        is_trust = _NOT_TRUSTED in told and not any("truststore" in name for name in self._options)
        if self._delegated or is_trust:
            return _UnaskedError(told)
        # If the reason arrives just as the connection is closed, kafka-python drops it.
        is_closed = "SASL" in self._options.get("kafka.security.protocol", "").upper() and "disconnected" in told
        if _LOGIN_FAILED in told or is_closed:
            return PreflightError(
                f"{where} refused this user{' or its way to log in' if is_closed else ''}: {told}",
                next_step="Check security.protocol, sasl.mechanism and the credentials among the source's settings.",
                setting="bootstrap.servers",
            )
        return PreflightError(
            f"{where} did not answer within {LIMIT_S:.0f} s: {told}",
            next_step="Check the addresses, the brokers, and security.protocol.",
            setting="bootstrap.servers",
        )


def java_pattern(pattern: str) -> re.Pattern[str] | None:
    r"""Converts a Java regular expression to Python. Returns None if Python reads a part of it differently.

    ``\Q…\E`` is translated. As in Java, classes such as ``\d`` contain only ASCII characters.
    """
    quoted = re.split(r"\\Q(.*?)(?:\\E|$)", pattern, flags=re.DOTALL)
    if any(_JAVA_ONLY.search(part) for part in quoted[::2]):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile("".join(re.escape(one) if i % 2 else one for i, one in enumerate(quoted)), re.ASCII)
    except (re.error, Warning):
        return None


_LIMIT_S = 10.0
"""The time limit for one source's brokers to return topic ids or end offsets."""

_WENT_BACK = "its cluster returned to an older state (a restored copy, a failover to a lagging replica)"


def check_names(sources: Sequence[SourceFacts], read: Sequence[str], decided: int | None) -> None:
    """Rejects a source if all of its topics have different names than before, as the copies in a mirrored cluster do.

    Spark would plan a batch from the beginning of the new topics. It would then either fail and leave that batch in the
    checkpoint or, with failOnDataLoss=false, write all rows again. Topics are not compared if any source subscribes by
    pattern or by partition.

    Args:
        sources: The query's Kafka sources.
        read: The end offsets of the last finished batch, or else of the first planned one; see `kafka_offsets`.
        decided: A batch that is decided and may not be committed; None if there is none.

    Raises:
        PreflightError: If the names differ. The message lists the old and new topics.
    """
    before = set(kafka_offsets(read))
    subscribed = [_subscribed(source.options or {}) for source in sources]
    gone = before - set().union(*subscribed)
    for names in subscribed:
        if all(subscribed) and gone and not names & before:
            first = ""
            if decided is not None:
                first = f"Start once with the previous topics, since batch {decided} may not be committed yet. Then "
            raise PreflightError(
                f"Until now, this query has read {_listed(gone)}; now it should read {_listed(names)}, of which it "
                "has read nothing. The checkpoint's offsets mean nothing there: Spark would start from the beginning.",
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
        found: The ids that the clusters returned.
        is_whole: True if every cluster that the topic is read on returned an id. Otherwise, the ids are compared but
            not recorded.
    """

    found: frozenset[str]
    is_whole: bool


def _agree(found: frozenset[str], recorded: str) -> bool:
    """Returns True if these may be the recorded ids, some of which may be missing because a cluster did not answer.

    Args:
        found: The ids.
        recorded: The recorded ids, separated by commas; empty if there are none.
    """
    before = set(recorded.split(",")) - {""}
    return found <= before or before <= found


class SourceTopics:
    """Compares topic ids at the start of a run and before each decision; a `PositionReporter`."""

    def __init__(self, sources: Sequence[SourceFacts]) -> None:
        self._sources = [dict(source.options or {}) for source in sources]
        self._clients: dict[int, TransactionClient] = {}
        self._known: dict[str, str] = {}
        self._changed = ""
        self._has_warned = False

    def ids_to_record(self, recorded: Mapping[str, str], read: Sequence[str]) -> Mapping[str, str]:
        """Returns the ids to record in the log. For a topic that is still read, this includes all recorded ids.

        An id stays recorded even if its cluster does not answer now, so that the next start can compare it.

        Args:
            recorded: The ids in the log.
            read: The end offsets of the run's first batch, see `kafka_offsets`.
        """
        self._known = {name: recorded[name] for name in kafka_offsets(read) if name in recorded}
        self._changed = self._difference(self._ask(read))
        return self._known

    def check_ends(self, recorded: Mapping[str, str], before: Sequence[str], newest: Sequence[str]) -> None:
        """Warns about a topic that ends before the offsets already read: its cluster was restored to an older state.

        For such a topic, Spark plans a batch that ends before it begins, and fails. Before such a batch is planned,
        there is only a warning, since the query can resume once the topic has grown past the old offsets. Once it is
        planned, the query cannot resume, so the topic is rejected. The checkpoint shows this even if brokers do not
        respond. With failOnDataLoss=false, Spark continues from the topic's end.

        Args:
            recorded: The ids in the log. A topic with a different id is a different topic; see `check_same`.
            before: The end offsets of the last finished batch if another one is planned; otherwise empty.
            newest: The end offsets of the last batch.

        Raises:
            PreflightError: If such a batch is planned. The message names the topic, partition and offsets.
        """
        begins, ends = kafka_offsets(before), kafka_offsets(newest)
        found = self._ask(newest)
        same = {name for name in ends if name not in found or _agree(found[name].found, recorded.get(name, ""))}
        for number, options in enumerate(self._sources):
            goes_on = options.get("failondataloss", "").lower() == "false"
            names = self._read_by(options, sorted(same))
            ends_now = self._ends_of(number, {name: ends[name] for name in names})
            for name, partition in [(each, partition) for each in names for partition in ends[each]]:
                planned = ends[name][partition]
                now = ends_now.get((name, partition), planned)
                read = max(planned, begins.get(name, {}).get(partition, planned))
                if planned < read and not goes_on:
                    raise PreflightError(
                        f"Topic {name!r} partition {partition} ended at offset {planned} when the last batch was "
                        f"planned, and this query had read it up to {read}: {_WENT_BACK}.",
                        next_step=(
                            "Restore the newer state, and move offsets/N and offsets/.N.crc, N being the highest "
                            "number, out of the checkpoint. If there is no newer state, start the query once with "
                            "fail_on_data_loss=False: it then reads on from the topic's end. See "
                            "docs/operations.md#a-server-restored-from-an-older-state."
                        ),
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
        """Rejects a run that found a different topic than the log has recorded."""
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
            before, now = self._known.get(name, ""), ",".join(sorted(ids.found))
            if not _agree(ids.found, before):
                return (
                    f"Topic {name!r}, which this query reads, was deleted and recreated: it has the id {now}, and had "
                    f"{before}. The checkpoint's offsets are those of the old topic. Reading on from there would skip "
                    "the first records of the new one."
                )
            if ids.is_whole and len(now) > len(before):  # the first id, or that of another cluster's topic
                self._known[name] = now
        return ""

    def after_finish(self, sources: Sequence[str]) -> None:
        """Reports nothing."""

    def close(self) -> None:
        """Closes the clients."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _ask(self, read: Sequence[str]) -> dict[str, _Ids]:
        """Returns the ids that the clusters report for the topics in these offsets."""
        found: dict[str, set[str]] = {}
        silent: set[str] = set()
        for number, options in enumerate(self._sources):
            names = self._read_by(options, list(kafka_offsets(read)))
            metadata = self._describe(number, names, time.monotonic() + _LIMIT_S)
            topics = {} if metadata is None else {one.name: one for one in metadata.topics}
            for name in names:
                topic = topics.get(name)
                # Topics on an old cluster have no id.
                if topic is not None and topic.error_code == NONE and topic.topic_id and topic.topic_id.int:
                    found.setdefault(name, set()).add(java_id(topic.topic_id))
                # A pattern matches only topics that exist. A missing topic is read by another source.
                elif topic is None or topic.error_code != _MISSING or "subscribepattern" not in options:
                    silent.add(name)
        return {name: _Ids(frozenset(ids), is_whole=name not in silent) for name, ids in found.items()}

    @staticmethod
    def _read_by(options: Mapping[str, str], names: Sequence[str]) -> list[str]:
        """Returns the topics that a source can read. If Python cannot read its pattern, that may be any of them."""
        if (pattern := options.get("subscribepattern")) is not None:
            matches = java_pattern(pattern)
            return [name for name in names if matches is None or matches.fullmatch(name)]
        topics = _subscribed(options) or json.loads(options.get("assign", "{}"))
        return [name for name in names if not topics or name in topics]

    def _ends_of(self, number: int, read: Offsets) -> dict[Partition, int]:
        """Returns the end offsets that the brokers report for these partitions."""
        wanted = {(name, partition) for name, partitions in read.items() for partition in partitions}
        deadline_s = time.monotonic() + _LIMIT_S
        metadata = self._describe(number, sorted(read), deadline_s)
        if metadata is None:
            return {}
        leaders = {partition: one for partition, one in leaders_of(metadata).items() if partition in wanted}
        (ends,) = ask_leaders(self._clients[number], answered(leaders), end_offsets, deadline_s=deadline_s)
        for why in [one for one in [*leaders.values(), *ends.values()] if isinstance(one, BrokerAnswer)][:1]:
            logger.warning("The ends of topics %s cannot be queried, and are not compared: %s", sorted(read), why)
        return {partition: one.offset for partition, one in answered(ends).items()}

    def _describe(self, number: int, names: Sequence[str], deadline_s: float) -> Any:
        """Returns the brokers' description of topics; None if they do not respond, with one warning per run."""
        if not names:
            return None
        try:
            if number not in self._clients:
                self._clients[number] = _client(self._sources[number])
            metadata = self._clients[number].insist(
                metadata_request(*names), deadline_s=deadline_s, is_final=_is_refused
            )
            why: object = metadata if isinstance(metadata, BrokerAnswer) else None
        except ConfigurationError as error:
            why = error
        if why is None:
            codes = {one.error_code for one in metadata.topics} - {NONE, _MISSING}
            why = BrokerAnswer(codes.pop()) if codes else None
        if why is None:
            return metadata
        if not self._has_warned:
            logger.warning("The ids of topics %s cannot be queried, and are not compared: %s", names, why)
        self._has_warned = True
        return None


def java_id(topic_id: UUID) -> str:
    """Returns a topic id as Java's client and Kafka's own tools write it: base64 without the last two characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")

"""The executor half of the Kafka sink: fills one transaction.

`TopicLimits` fetches the rules of topics, for rows that may go to a dead-letter sink instead.

`StalledRows` detects that a topic was deleted while its rows were in flight. librdkafka resends the rows of an
idempotent producer for as long as it remembers the topic's leaders, and only drops them at the age of a transaction
timeout. The check uses a separate client, because new metadata would change what the producer does with the rows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import countOf
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from sparkonce.errors import OutageError, PrepareError
from sparkonce.sink import Refused, SinkWriter
from sparkonce.sinks.kafka import pooled_producer
from sparkonce.sinks.kafka.batch_producer import BatchProducer, client_log
from sparkonce.sinks.kafka.pooled_producer import PooledProducer
from sparkonce.sinks.kafka.rows import (
    CHOSEN_PARTITION,
    CHUNK_BYTES,
    CHUNK_ROWS,
    NOW_MS,
    Chunk,
    TopicRules,
    refused_rows,
    to_arguments,
    to_chunks,
)
from sparkonce.sinks.kafka.settings import queue_bytes

if TYPE_CHECKING:
    from sparkonce.sinks.kafka.producer_pool import ProducerPool


log = logging.getLogger(__name__)

ABORT_LIMIT_S = 5.0
_FLUSH_SLICE_S, _STALL_S = 1.0, 0.02
_GRACE_S = 5.0
_NO_LIMIT = 2**31 - 1

_ASK_AFTER_S = 5.0
"""If no row is delivered for this many seconds, the topics are looked up. A leader moves in less time."""
_SURELY_GONE_AFTER_S = 10.0
_PROPAGATION = "topic.metadata.propagation.max.ms"
_PROPAGATION_MS = 30_000
_ANSWER_LIMIT_S, _SPARE_S = 2.0, 1.0
_MOST_TOPICS = 100
"""The number of topics that are looked up in one request."""
_SURELY_THERE = "__transaction_state"

_LIMIT, _POLICY, _CLOCK = "max.message.bytes", "cleanup.policy", "message.timestamp.type"
_AHEAD = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
"""The names of one topic setting: since Kafka 3.6, and before."""
_CENTURY_MS = 100 * 365 * 86_400_000
_KNOWN_S = 60.0
"""The time for which a topic's rules are cached, in seconds, since its settings may change."""
_RULES_WITHIN_S, _RULES_LATE_S = 30.0, 10.0
"""librdkafka's time limit for a request, and how long after it the response may still arrive, in seconds."""
_NOT_TOLD = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """A writer's limits on memory and time.

    Attributes:
        queued_rows: librdkafka's ``queue.buffering.max.messages``, where 0 means no limit.
        queued_bytes: librdkafka's ``queue.buffering.max.kbytes``, in bytes.
        row_bytes: librdkafka's ``message.max.bytes``.
        topic_bytes: The topic's ``max.message.bytes`` if it is known; otherwise `row_bytes`.
        delivery_s: The time limit for the delivery of rows, in seconds.
        initialise_s: The time limit for a producer to become ready, in seconds.
    """

    queued_rows: int
    queued_bytes: int
    row_bytes: int
    topic_bytes: int
    delivery_s: float
    initialise_s: float

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], transaction_timeout_s: float | None, topic_bytes: int | None = None
    ) -> WriterLimits:
        """Reads the limits from librdkafka's settings. Uses librdkafka's defaults for those that are not set."""
        row_bytes = int(settings.get("message.max.bytes", 1_000_000))
        delivery_ms = settings.get("message.timeout.ms", settings.get("delivery.timeout.ms", 300_000))
        return cls(
            queued_rows=int(settings.get("queue.buffering.max.messages", 100_000)) or _NO_LIMIT,
            queued_bytes=queue_bytes(settings),
            row_bytes=row_bytes,
            topic_bytes=min(row_bytes, topic_bytes or row_bytes),
            delivery_s=transaction_timeout_s or int(delivery_ms) / 1000,
            initialise_s=pooled_producer.INITIALISE_LIMIT_S + _GRACE_S,
        )


class KafkaWriter(SinkWriter):
    """Writes one task attempt to Kafka: in a transaction or, below EXACTLY_ONCE, with a shared idempotent producer.

    Args:
        pool: The pool, from which a producer is leased immediately.
        batch: Spark's batch id.
        topic: The sink's own topic; None if each row names its topic.
        transactional: True if the guarantee is EXACTLY_ONCE.
        limits: The writer's limits on memory and time.
        topic_limits: Fetches the rules of topics, for `offer`.
        lookup: Queries the brokers for the topics of rows that do not arrive.
    """

    def __init__(
        self,
        pool: ProducerPool,
        *,
        batch: int,
        topic: str | None,
        transactional: bool,
        limits: WriterLimits,
        topic_limits: TopicLimits | None = None,
        lookup: TopicLookup | None = None,
    ) -> None:
        self._topic_limits = topic_limits
        self._lookup = lookup
        self._pool = pool
        self._batch = batch
        self._topic = topic
        self._transactional = transactional
        self._limits = limits
        self._lease: Future[PooledProducer] | None = pool.take(batch)
        self._pooled: PooledProducer | None = None
        self._written = 0
        self._accepted = 0
        self._queued_bytes = 0
        self._largest_bytes = 0
        self._topics: set[str] = set()

    def begin(self) -> None:
        """Waits for the producer, and begins the only transaction of this writer."""
        lease, self._lease = self._lease, None
        if lease is None:
            raise PrepareError("A Kafka writer can begin one transaction only.")
        self._pooled = self._pool.wait(lease, self._limits.initialise_s)
        self._pooled.begin_task()
        if self._transactional:
            try:
                self._pooled.producer.begin_transaction()
            except KafkaException as error:
                raise self._pooled.explain(error.args[0], "could not begin a transaction") from None

    def write(self, rows: pa.RecordBatch) -> None:
        """Passes rows to librdkafka, and waits while too many are in flight."""
        pooled = self._open_producer()
        self._written += rows.num_rows
        max_rows = min(CHUNK_ROWS, self._limits.queued_rows)
        for chunk in to_chunks(
            rows, self._topic, max_rows=max_rows, max_bytes=min(CHUNK_BYTES, self._limits.queued_bytes)
        ):
            pooled.poll(0)
            self._make_room(pooled, chunk)
            self._raise_refusal(pooled)
            try:
                self._accepted += _produce(pooled, chunk)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._STATE:
                    self._await_refusal(pooled)
                if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise _too_large(chunk, self._limits.row_bytes) from None
                if error.args[0].code() == KafkaError._UNKNOWN_PARTITION and _names_partitions(chunk):
                    # If the topic lacks any of the chunk's partitions, it lacks the highest one.
                    highest = pc.max(chunk.columns.column("partition")).as_py()
                    raise _no_such_partition(chunk.topic, highest) from None
                if error.args[0].code() == KafkaError._UNKNOWN_TOPIC:
                    raise no_such_topic(chunk.topic) from None
                raise pooled.explain(error.args[0], f"refused a row for topic {chunk.topic!r}") from None
            except BufferError as error:
                raise PrepareError(
                    f"librdkafka's queue is full (queue.buffering.max.kbytes) at a row for topic {chunk.topic!r}.",
                    next_step="Raise queue.buffering.max.kbytes above the size of the largest row.",
                ) from error
            self._queued_bytes += chunk.size_bytes
            self._topics.add(chunk.topic)

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Writes the rows that the topic accepts, judging by fields and uncompressed sizes. See `SinkWriter.offer`."""
        by_topic: Mapping[str, TopicRules] = {}
        if self._topic_limits is not None:
            named = [self._topic] if self._topic is not None else rows.column("topic").unique().to_pylist()
            by_topic = self._topic_limits.of(filter(None, named))
        refused = refused_rows(rows, self._topic, self._limits.topic_bytes, by_topic)
        if refused.rows:
            mask = np.ones(rows.num_rows, bool)
            mask[list(refused.rows)] = False
            rows = rows.filter(pa.array(mask))
        if rows.num_rows:
            self.write(rows)
        return refused

    def prepare(self) -> Mapping[str, str | int]:
        """Sends all rows, and checks that each of them was delivered.

        librdkafka only checks deliveries in its own commit, which counts failed delivery reports (``txn_dr_fails`` in
        rdkafka_txnmgr.c). Since the driver commits, this method compares the number of rows that the brokers
        acknowledged with the number of rows written.
        """
        pooled = self._open_producer()
        self._flush(pooled)
        # After flush, nothing is in flight, since rows count as outstanding until their delivery report is processed.
        # Do not check ``len(producer)``, which also counts pending statistics, errors and log lines.
        acknowledged = pooled.acknowledged(self._accepted)
        if acknowledged != self._written:
            raise PrepareError(f"Kafka has acknowledged {acknowledged} of {self._written} rows.")
        if not self._transactional:
            return {}
        if reason := pooled.abort_reason():
            raise _broken(pooled)(f"Kafka aborted the transaction: {reason}.")
        return {"transactional_id": pooled.transactional_id, "producer_id": pooled.producer_id, "epoch": pooled.epoch}

    def abort(self) -> None:
        """Aborts the transaction if the broker answers soon; otherwise the driver's sweep aborts it."""
        if self._pooled is not None and self._transactional:
            give_up_at = time.monotonic() + ABORT_LIMIT_S
            self._await_first_answer(self._pooled, ABORT_LIMIT_S / 2)
            try:
                self._pooled.producer.abort_transaction(max(0.0, give_up_at - time.monotonic()))
            except KafkaException as error:
                log.warning(
                    "The transaction %s of batch %d could not be aborted, and is left to the driver: %s.",
                    self._pooled.transactional_id,
                    self._batch,
                    error.args[0].str(),
                )
        elif self._pooled is not None:
            self._pooled.producer.purge()
        self._release(reusable=False)

    def _await_first_answer(self, pooled: PooledProducer, limit_s: float) -> None:
        """Waits until one of the rows was answered, which proves that the transaction contains a partition.

        librdkafka drops the reply to AddPartitionsToTxn if it arrives while an abort begins. librdkafka then assumes
        that the transaction has no partition, sends no EndTxn, and still reports success (``txn_req_cnt`` in
        rdkafka_txnmgr.c of 2.16; this happened in every fourth abort 2 ms after the first row).
        """
        give_up_at = time.monotonic() + limit_s
        pooled.poll(0)  # This call processes the pending events.
        if (in_flight := len(pooled.producer)) < self._accepted or pooled.abort_reason():
            return
        while len(pooled.producer) >= in_flight > 0 and not pooled.reports.fatal:
            if (left_s := give_up_at - time.monotonic()) <= 0:
                return
            pooled.flush(min(left_s, _STALL_S))  # Without a flush, rows would wait until a request is full.

    def close(self) -> None:
        """Ends the producer in the background and leaves its prepared transaction open."""
        self._release(reusable=not self._transactional)

    def _release(self, *, reusable: bool) -> None:
        lease, self._lease = self._lease, None
        pooled, self._pooled = self._pooled, None
        if lease is not None:
            self._pool.withdraw(lease)
        if pooled is not None and reusable:
            self._pool.give_back(pooled)
        elif pooled is not None:
            self._pool.retire(pooled, self._batch)

    def _open_producer(self) -> PooledProducer:
        if self._pooled is None:
            raise PrepareError("The Kafka writer has not begun, or is closed.")
        return self._pooled

    def _make_room(self, pooled: PooledProducer, chunk: Chunk) -> None:
        """Waits until the chunk fits, because librdkafka rejects rows once its queue is full."""
        # librdkafka only reports the number of rows in flight. Two upper bounds for the size of these rows are known:
        # their number times the largest row, and all bytes queued since the queue was last empty.
        deadline, stalled = time.monotonic() + self._limits.delivery_s, StalledRows(pooled, self._topics, self._lookup)
        while waiting := len(pooled.producer):
            in_flight_bytes = min(waiting * self._largest_bytes, self._queued_bytes)
            fits = in_flight_bytes + chunk.size_bytes <= self._limits.queued_bytes
            if fits and waiting + chunk.rows <= self._limits.queued_rows:
                break
            if time.monotonic() > deadline:
                raise self._too_slow(pooled)
            pooled.poll(_STALL_S)
            if len(pooled.producer) == waiting:  # The rows may be waiting for their requests to fill up.
                pooled.flush(_STALL_S)
            self._raise_refusal(pooled)
            stalled.check()
        else:
            self._queued_bytes = self._largest_bytes = 0
        self._largest_bytes = max(self._largest_bytes, chunk.largest_bytes)

    def _flush(self, pooled: PooledProducer) -> None:
        deadline, stalled = time.monotonic() + self._limits.delivery_s, StalledRows(pooled, self._topics, self._lookup)
        while len(pooled.producer):
            if time.monotonic() > deadline:
                raise self._too_slow(pooled)
            pooled.flush(_FLUSH_SLICE_S)
            self._raise_refusal(pooled)
            if len(pooled.producer) and self._transactional and (reason := pooled.abort_reason()):
                raise _broken(pooled)(f"Kafka aborted the transaction: {reason}.")
            stalled.check()
        self._raise_refusal(pooled)

    def _raise_refusal(self, pooled: PooledProducer) -> None:
        if pooled.reports.fatal:
            raise PrepareError(f"Kafka's producer failed permanently: {pooled.reports.fatal}.")
        if not pooled.reports.refused:
            return
        # If librdkafka already knows the topic, it rejects such rows immediately. Raise the same error in both cases.
        if pooled.reports.missing_partition:
            raise _no_such_partition(*pooled.reports.missing_partition)
        if pooled.reports.missing_topic:
            raise no_such_topic(pooled.reports.missing_topic)
        reason = pooled.abort_reason() if self._transactional else pooled.reports.last_error
        first = pooled.reports.refusals[0]
        raise _broken(pooled)(
            f"Kafka did not accept a row for {first}" + (f" ({reason})." if reason else "."),
            next_step=pooled.reports.advice,
        )

    def _await_refusal(self, pooled: PooledProducer) -> None:
        """Raises an error if the brokers have rejected rows. librdkafka stops accepting rows before it reports this."""
        deadline = time.monotonic() + _GRACE_S
        while len(pooled.producer) and not pooled.reports.refused and time.monotonic() < deadline:
            pooled.poll(0.1)
        self._raise_refusal(pooled)

    def _too_slow(self, pooled: PooledProducer) -> OutageError:
        last = f" Last error: {pooled.reports.last_error}." if pooled.reports.last_error else ""
        return OutageError(
            f"{len(pooled.producer)} rows had not arrived at Kafka after {self._limits.delivery_s:g} s.{last}",
            next_step="Check that the brokers are up, and that the topic's partitions have leaders.",
        )


def _produce(pooled: PooledProducer, chunk: Chunk) -> int:
    """Queues a chunk, and returns the number of rows that librdkafka accepted.

    If rows must be sent one by one, calls ``produce`` for each without other Python code in between. confluent-kafka's
    own ``produce_batch`` is slower, because it needs a dictionary for each row.

    Raises:
        KafkaException: If librdkafka rejects a row. Other rows may be queued.
        BufferError: If librdkafka's queue is full.
    """
    if isinstance(pooled.producer, BatchProducer):
        return pooled.producer.produce(chunk.topic, chunk.columns)
    columns = to_arguments(chunk.columns)
    produce = pooled.producer.produce
    arguments: list[Iterable[Any]] = [
        columns.get("value", repeat(None)),
        columns.get("key", repeat(None)),
        columns.get("partition", repeat(CHOSEN_PARTITION)),
    ]
    taken: Iterable[Any]
    if "timestamp" in columns or "headers" in columns:
        # ``produce`` documents these two arguments only as keywords, so each row needs a call from Python.
        more = (columns.get("timestamp", repeat(NOW_MS)), columns.get("headers", repeat(None)))
        taken = (
            produce(chunk.topic, value, key, partition, timestamp=timestamp, headers=headers)
            for value, key, partition, timestamp, headers in zip(*arguments, *more, strict=False)
        )
    else:
        taken = map(produce, repeat(chunk.topic, chunk.rows), *arguments)
    return countOf(taken, None)


def _broken(pooled: PooledProducer) -> type[PrepareError]:
    return OutageError if pooled.reports.away else PrepareError


def _names_partitions(chunk: Chunk) -> bool:
    names = chunk.columns.schema.names
    return "partition" in names and chunk.columns.column("partition").null_count < chunk.rows


def _no_such_partition(topic: str, partition: int) -> PrepareError:
    return PrepareError(
        f"Kafka did not accept a row for topic {topic!r}, partition {partition}: Local: Unknown partition.",
        next_step="If the rows have a column 'partition', as those of a Kafka source do, drop it: the key then chooses "
        "the partition. Or give the topic more partitions.",
    )


def _too_large(chunk: Chunk, limit: int) -> PrepareError:
    # librdkafka itself rejects rows above ``message.max.bytes``. The message must not show the row's bytes.
    return PrepareError(
        f"A row for topic {chunk.topic!r} is too large: it has {chunk.largest_bytes} bytes, and message.max.bytes is "
        f"{limit}.",
        next_step="Raise the topic's max.message.bytes, which message.max.bytes follows unless it is set, or keep such "
        "rows out.",
    )


class TopicLookup:
    """Asks the brokers if topics exist.

    A topic counts as missing once all answers have said so for `gone_after_s` seconds, because a broker may lag behind.
    librdkafka itself waits as long for a topic that may be about to appear.
    """

    def __init__(self, settings: Mapping[str, Any], *, is_transactional: bool) -> None:
        self._settings = settings
        self._is_transactional = is_transactional
        self.gone_after_s = max(_SURELY_GONE_AFTER_S, int(settings.get(_PROPAGATION, _PROPAGATION_MS)) / 1000)

    def is_there(self, topics: Collection[str]) -> dict[str, bool]:
        """Returns True for each topic that exists, and False for others. Leaves out topics without an answer.

        If the producer is transactional, ignores the answer of a broker that does not even know Kafka's own topic for
        transactions: the broker has just started.
        """
        guard = [_SURELY_THERE] if self._is_transactional else []
        asked = TopicCollection([*sorted(topics)[:_MOST_TOPICS], *guard])
        try:
            answers = self._client.describe_topics(asked, request_timeout=_ANSWER_LIMIT_S)
        except KafkaException:  # No client can be created at the moment, for example because there is no token.
            return {}
        give_up_at_s = time.monotonic() + _ANSWER_LIMIT_S + _SPARE_S
        found = {topic: _is_there(answer, give_up_at_s) for topic, answer in answers.items()}
        if found.pop(_SURELY_THERE, None) is False:
            return {}
        return {topic: is_there for topic, is_there in found.items() if is_there is not None}

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient({**self._settings, "logger": client_log})


class StalledRows:
    """Watches a producer while its writer waits for deliveries. Queries no broker if ``lookup`` is None."""

    def __init__(self, pooled: PooledProducer, topics: Collection[str], lookup: TopicLookup | None) -> None:
        self._pooled = pooled
        self._topics = topics
        self._lookup = lookup
        self._waiting = len(pooled.producer)
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S
        self._missing_since: dict[str, float] = {}

    def check(self) -> None:
        """Queries the brokers for the topics if no row has arrived for some time.

        Raises:
            PrepareError: If all answers of the last `TopicLookup.gone_after_s` seconds report that a topic is missing.
        """
        if self._lookup is None:
            return
        if (waiting := len(self._pooled.producer)) < self._waiting:  # Other events, such as statistics, may be pending.
            self._waiting, self._missing_since = waiting, {}
        elif time.monotonic() < self._ask_at_s:
            return
        else:
            for topic, is_there in self._lookup.is_there(self._topics).items():
                if is_there:
                    self._missing_since.pop(topic, None)
                elif time.monotonic() - self._missing_since.setdefault(topic, time.monotonic()) >= (
                    self._lookup.gone_after_s
                ):
                    raise no_such_topic(topic)
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S


def _is_there(answer: Future[Any], give_up_at_s: float) -> bool | None:
    try:
        answer.result(max(0.0, give_up_at_s - time.monotonic()))
    except FutureTimeoutError:
        return None
    except KafkaException as error:
        return False if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None
    return True


def no_such_topic(topic: str) -> PrepareError:
    """Returns the error for rows whose topic does not exist."""
    return PrepareError(
        f"Kafka did not accept a row: topic {topic!r} does not exist. If it did before, it was deleted or recreated "
        "while this query ran.",
        next_step="Create the topic if it is gone.",
    )


class TopicLimits:
    """Fetches the rules of topics, and caches them for a minute."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, tuple[TopicRules | None, float]] = {}

    def of(self, topics: Iterable[str]) -> dict[str, TopicRules]:
        """Returns the rules of these topics. Leaves out topics that are missing or that the user may not describe."""
        with self._lock:
            now = time.monotonic()
            wanted = sorted(set(topics))
            if unknown := [one for one in wanted if self._known.get(one, (None, 0.0))[1] <= now]:
                self._known |= {topic: (rules, now + _KNOWN_S) for topic, rules in self._ask(unknown).items()}
            return {one: rules for one in wanted if (rules := self._known[one][0]) is not None}

    def _ask(self, topics: list[str]) -> dict[str, TopicRules | None]:
        client = AdminClient({**self._settings, "logger": client_log})
        resources = {ConfigResource(ResourceType.TOPIC, one): one for one in topics}
        configs = client.describe_configs([*resources], request_timeout=_RULES_WITHIN_S)
        return {resources[resource]: _rules(resources[resource], answer) for resource, answer in configs.items()}


def _rules(topic: str, answer: Future[Mapping[str, ConfigEntry]]) -> TopicRules | None:
    try:
        configs = {name: entry.value for name, entry in answer.result(_RULES_WITHIN_S + _RULES_LATE_S).items()}
    except FutureTimeoutError:
        raise _not_told(topic, f"no answer in {_RULES_WITHIN_S:g} s") from None
    except KafkaException as error:
        if error.args[0].code() in _NOT_TOLD:
            return None
        raise _not_told(topic, error.args[0].str()) from None
    return _read(configs)


def _read(configs: Mapping[str, str]) -> TopicRules:
    ahead_ms = next((int(configs[name]) for name in _AHEAD if name in configs), _CENTURY_MS)
    return TopicRules(
        most_bytes=int(configs[_LIMIT]),
        is_compacted="compact" in configs.get(_POLICY, ""),
        takes_far=ahead_ms >= _CENTURY_MS or configs.get(_CLOCK) == "LogAppendTime",
    )


def _not_told(topic: str, why: str) -> OutageError:
    return OutageError(
        f"The brokers do not report {_LIMIT} of topic {topic!r}: {why}.",
        next_step="Check that the brokers are up; the batch is written again.",
    )


_asked: dict[tuple[tuple[str, str], ...], TopicLimits] = {}


def limits_of_process(settings: Mapping[str, Any]) -> TopicLimits:
    """Returns this process's cache of rules for these brokers and this login, since logins may see different topics."""
    known_by = sorted((name, str(one)) for name, one in settings.items() if not callable(one))
    return _asked.setdefault(tuple(known_by), TopicLimits(settings))

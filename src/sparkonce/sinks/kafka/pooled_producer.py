"""A librdkafka producer that is reused for one transaction after another, and the results of its callbacks."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sparkonce.errors import OutageError, PreflightError, PrepareError, SparkonceError, one_line
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sinks.kafka.batch_producer import BatchProducer, client_log, takes_batches

log = logging.getLogger(__name__)

INITIALISE_LIMIT_S = 60.0
"""The time limit for an initialization in `PooledProducer.open`, in seconds."""

STATISTICS_MS, SLOW_STATISTICS_MS = 100, 1000
"""The intervals of statistics of confluent-kafka's producer and of a `BatchProducer`, in milliseconds.

confluent-kafka's producer learns its producer id from its first statistics. A `BatchProducer` learns it earlier, from
the log. Statistics are expensive: every 100 ms, they took 17% of a worker's CPU in batches of 200 rows, and they cost
more with more partitions.
"""

_FIRST_ATTEMPT_S = 0.03
_LAST_ATTEMPT_S = 1.0
_ANY_TOPIC = "__transaction_state"  # This topic is small, and is not one of the user's.
_REMEMBERED_ERRORS = 8
_STATISTICS_LIMIT_S = 3.0
_LOG_LATE_S = 1.0
_OPEN_STATE = "InTransaction"
_NOT_ALLOWED = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
_AWAY = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
"""The errors of brokers that are unreachable or accept nothing for now: a full disk is a KAFKA_STORAGE_ERROR."""

_TOO_LARGE = (
    "Raise the topic's max.message.bytes, a limit of batches as sent, set compression.type, or keep such rows out."
)

_ABOUT_ROWS = {
    KafkaError.INVALID_TIMESTAMP: (
        "Column 'timestamp' has a timestamp that the topic does not accept: correct it in the query, or raise the "
        "topic's message.timestamp.after.max.ms or message.timestamp.before.max.ms "
        "(message.timestamp.difference.max.ms before Kafka 3.6)."
    ),
    KafkaError.INVALID_RECORD: (
        "A topic with cleanup.policy=compact does not accept a row whose column 'key' is null: give each row a "
        "key, or filter such rows out."
    ),
}
"""The next step after a single row was rejected, for error codes whose own text does not suggest one."""


class Reports:
    """The results of librdkafka's callbacks, which run during `poll` and `flush`.

    Holds no reference to its producer: with a reference cycle, only the garbage collector would end the producer.

    Attributes:
        fatal: Why the producer failed permanently, for example because it was fenced; empty if it works.
        acknowledged: The number of rows reported as delivered since the producer's task began. A producer that sends
            single rows does not count them.
        refused: The number of rows that were not delivered.
        refusals: The topic and the broker's reason for the first of these rows.
        advice: The next step for the first of these rows; empty if there is none.
        last_error: The latest error of the whole client, such as a lost connection; empty if there was none.
        away: True if rows were not delivered, or the transaction was aborted, because brokers were unreachable.
        barred: True if the latest error of the whole client is a rejected login.
        identity: The first producer id and epoch that a broker assigned; None until then.
        is_by_statistics: True if the identity was read from statistics.
    """

    def __init__(self) -> None:
        self.fatal = ""
        self.acknowledged = self.refused = 0
        self.refusals: list[str] = []
        self.advice = ""
        self.missing_topic = ""
        self.missing_partition: tuple[str, int] | None = None
        self._largest = -1
        self.last_error = ""
        self.away = self.barred = False
        self.identity: tuple[int, int] | None = None
        self.is_by_statistics = False

    def on_stats(self, text: str) -> None:
        """Reads the producer id and epoch from librdkafka's statistics (``eos``, see STATISTICS.md)."""
        if self.identity is None and (eos := json.loads(text)["eos"])["txn_state"] == "Ready":
            self.is_by_statistics = True
            self.identity = eos["producer_id"], eos["producer_epoch"]

    def on_identity(self, producer_id: int, epoch: int) -> None:
        """Records the first producer id and epoch. `PooledProducer.abort_reason` reports an error that changes them."""
        self.is_by_statistics = False
        self.identity = self.identity or (producer_id, epoch)

    def on_error(self, error: KafkaError) -> None:
        """Records an error of the whole client, unless it follows a rejected login and has no separate cause."""
        if not self.barred or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last_error, self.barred = one_line(error.str()), error.code() in _NOT_ALLOWED

    def on_acknowledged(self, rows: int) -> None:
        self.acknowledged += rows

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            size = len(message.key() or b"") + len(message.value() or b"")
            self.on_refused(error, message.topic(), message.partition(), size)

    def on_refused(self, error: KafkaError, topic: str, partition: int, size: int) -> None:
        """Records the error of a row that was not delivered. ``size`` counts the bytes of the row's key and value."""
        self.refused += 1
        self.away |= error.code() in _AWAY
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._keep_largest(error, topic, partition, size)
            return
        if error.code() == KafkaError._UNKNOWN_TOPIC:
            self.missing_topic = self.missing_topic or topic
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            self.missing_partition = max(self.missing_partition or (topic, partition), (topic, partition))
        self.advice = self.advice or _ABOUT_ROWS.get(error.code(), "")
        if len(self.refusals) < _REMEMBERED_ERRORS:
            self.refusals.append(f"topic {topic!r}: {one_line(error.str())}")

    def _keep_largest(self, error: KafkaError, topic: str, partition: int, size: int) -> None:
        """Records the largest rejected row: a broker that finds a batch too large rejects all of its rows."""
        if size > self._largest:
            self._largest = size
            self.refusals[:0] = [
                f"topic {topic!r}, partition {partition}: {error.str()}, with a key and value of {size} bytes"
            ]
            self.advice = _TOO_LARGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSpec:
    """Everything that `PooledProducer.open` needs to create the producers of one sink in one run.

    Producers with equal specifications are interchangeable.

    Attributes:
        sink: The sink's name.
        query: The short form of the query's id.
        token: The run's token.
        generation: See `sparkonce.sink.Owner`.
        prefix: The prefix of every transactional id; None for producers without transactions.
        by_row: True if rows have columns that librdkafka only accepts with single rows.
        topic: The topic of all rows, whose partitions are fetched in advance; None if each row names its topic.
        settings: librdkafka's settings, without callbacks.
    """

    sink: str
    query: str
    token: Token
    generation: int = 0
    by_row: bool = False
    prefix: str | None = field(default=None, compare=False)
    topic: str | None = field(default=None, compare=False)
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def supersedes(self, other: ProducerSpec) -> bool:
        """Returns True if this is a newer run or generation of the same sink and query."""
        newer = (self.token, self.generation) > (other.token, other.generation)
        return newer and (self.sink, self.query) == (other.sink, other.query)


class PooledProducer:
    """A producer that carries at most one transaction or, without a transactional id, any number of batches.

    All calls reach the producer through this object, so `destroy` drops the last reference to it.

    Args:
        settings: librdkafka's settings, without callbacks.
        lane: The number of its lane, see `sparkonce.protocol.ownership.LanePool`.
        transactional_id: The lane's transactional id; empty for a producer without transactions.
        by_row: See `ProducerSpec`.
        topic: See `ProducerSpec`.

    Attributes:
        producer: A `BatchProducer` if rows and settings allow it, otherwise confluent-kafka's producer.
        producer_id: The producer id that `initialise` received; -1 until then.
        epoch: The epoch that `initialise` received; -1 until then. librdkafka changes it only after an error that
            aborts the transaction (KIP-360), which `abort_reason` reports.

    Raises:
        PrepareError: If the settings do not work in this process, for example because a key file is missing.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        lane: int = 0,
        transactional_id: str = "",
        by_row: bool = False,
        topic: str | None = None,
    ) -> None:
        self.lane = lane
        self._topic = topic
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.reports = Reports()
        self.polled_s = time.monotonic()
        identity = {"transactional.id": transactional_id} if transactional_id else {}
        whole = {**settings, **identity}
        try:
            self.producer = (
                self._single(whole)
                if by_row or not takes_batches(whole)
                else BatchProducer({**whole, **self._statistics(SLOW_STATISTICS_MS)}, self.reports)
            )
        except KafkaException as error:
            raise PrepareError(f"This worker cannot make a Kafka producer: {error.args[0].str()}.") from None

    def _single(self, settings: Mapping[str, Any]) -> BatchProducer | Producer:
        callbacks = {
            "stats_cb": self.reports.on_stats,
            "error_cb": self.reports.on_error,
            "on_delivery": self.reports.on_delivery,
            **self._statistics(STATISTICS_MS),
        }
        return Producer({**settings, **callbacks, "logger": settings.get("logger", client_log)})

    def _statistics(self, interval_ms: int) -> Mapping[str, int]:
        return {"statistics.interval.ms": interval_ms if self.transactional_id else 0}

    @classmethod
    def open(cls, spec: ProducerSpec, worker: str, lane: int) -> PooledProducer:
        """Creates the producer of a worker's lane, and initializes it if it is transactional."""
        if spec.prefix is None:
            return cls(spec.settings, lane=lane, by_row=spec.by_row, topic=spec.topic)
        name = TransactionalId(prefix=spec.prefix, query=spec.query, token=spec.token, worker=worker, lane=lane)
        pooled = cls(spec.settings, lane=lane, transactional_id=str(name), by_row=spec.by_row, topic=spec.topic)
        pooled.initialise(INITIALISE_LIMIT_S)
        return pooled

    def initialise(self, timeout_s: float) -> None:
        """Fences the previous owner of the transactional id, and gets an epoch for one transaction.

        A failure ends the producer.

        Raises:
            PreflightError: If the cluster does not allow it.
            PrepareError: If the initialization does not finish in time.
        """
        deadline = time.monotonic() + timeout_s
        attempt_s = _FIRST_ATTEMPT_S
        while (refusal := self._try_to_initialise(attempt_s)) is not None:
            self.poll(0)
            if not refusal.retriable() or time.monotonic() + attempt_s > deadline:
                error = self.explain(refusal, f"could not initialize the transactional id {self.transactional_id!r}")
                self.destroy()
                raise error
            self._nudge(attempt_s)
            attempt_s = min(2 * attempt_s, _LAST_ATTEMPT_S)
        self._learn_identity(max(deadline, time.monotonic() + _STATISTICS_LIMIT_S))
        if self._topic is not None:
            self._nudge(_LAST_ATTEMPT_S)  # The first rows then need not wait for the topic's metadata.

    def _learn_identity(self, deadline: float) -> None:
        """Waits for the producer id and epoch, which librdkafka only reports in its log and its statistics."""
        self.poll(0)
        while self.reports.identity is None:
            if self.reports.fatal or time.monotonic() > deadline:
                self.destroy()
                reason = self.reports.fatal or "neither log nor statistics named one in time"
                raise PrepareError(f"Kafka gave {self.transactional_id!r} no producer id: {reason}.")
            self.poll(0.1)
        self.producer_id, self.epoch = self.reports.identity
        if isinstance(self.producer, BatchProducer) and not _warn_of_other_words.cache_info().currsize:
            # Statistics may have been processed just before the log line.
            until_s = time.monotonic() + _LOG_LATE_S
            while self.reports.is_by_statistics and time.monotonic() < until_s:
                self.poll(0.1)
            if self.reports.is_by_statistics:
                _warn_of_other_words()

    def _try_to_initialise(self, timeout_s: float) -> KafkaError | None:
        try:
            self.producer.init_transactions(timeout_s)
        except KafkaException as error:
            return error.args[0]
        return None

    def _nudge(self, timeout_s: float) -> None:
        """Makes librdkafka take its next step right away, by requesting metadata.

        librdkafka takes a step after it receives metadata, and otherwise every half second. An initialization often
        waits for the next step: for example, the first metadata closes the connection to the bootstrap server, which
        cancels a pending coordinator lookup; or a broker is still ending the id's last transaction, so librdkafka has
        to repeat the request (rd_kafka_txn_coord_timer_start, rd_kafka_idemp_pid_timer_restart).
        """
        with contextlib.suppress(KafkaException):
            self.producer.list_topics(self._topic or _ANY_TOPIC, timeout_s)

    def poll(self, timeout_s: float) -> None:
        """Runs the pending callbacks, and returns after the first one."""
        self._serve("poll", timeout_s)
        self.polled_s = time.monotonic()

    def flush(self, timeout_s: float) -> None:
        self._serve("flush", timeout_s)
        self.polled_s = time.monotonic()

    def _serve(self, method: str, timeout_s: float) -> None:
        """Calls ``poll`` or ``flush``, and records a fatal error, which the next such call in any thread raises.

        confluent-kafka may leak the exception, so no frame of its traceback may refer to the producer.
        """
        try:
            getattr(self.producer, method)(timeout_s)
        # A concurrent call in another thread gets a SystemError without a cause, or the bare KafkaError. Since
        # KafkaError is not an exception class, neither Exception nor BaseException catches it, and it would end the
        # worker.
        except (KafkaException, KafkaError, SystemError) as error:
            reason = _fatal_reason(error) or (self.transactional_id and self.abort_reason()) or repr(error)
            self.reports.fatal = self.reports.fatal or reason

    def destroy(self) -> None:
        """Ends the producer without a request to the broker: an open transaction stays open."""
        # Do not use ``Producer.close()``, which aborts an open transaction (since confluent-kafka 2.16).
        if isinstance(self.producer, BatchProducer):
            self.producer.destroy()
        del self.producer

    def begin_task(self) -> None:
        """Resets the count of deliveries for a task. If another task has used the producer, also forgets leaders."""
        if isinstance(self.producer, BatchProducer) and self.reports.acknowledged:
            self.producer.begin_anew()
        self.reports.acknowledged = 0

    def acknowledged(self, accepted: int) -> int:
        """Returns the number of delivered rows, of which librdkafka accepted this many. No row may be in flight."""
        if isinstance(self.producer, BatchProducer):
            return self.reports.acknowledged
        return accepted - self.reports.refused

    def abort_reason(self) -> str:
        """Returns why the open transaction can no longer be committed; empty if it can.

        Asks librdkafka to begin another transaction. librdkafka returns an error: either the one that aborted the open
        transaction, or one with the name of its state. Statistics contain the state, too, but later and without the
        error.
        """
        try:
            self.producer.begin_transaction()
        except KafkaException as error:
            reason = one_line(error.args[0].str())
            self.reports.away |= error.args[0].code() in _AWAY
            return "" if error.args[0].code() == KafkaError._STATE and _OPEN_STATE in reason else reason
        return "no transaction was open"

    def explain(self, reason: KafkaError, what: str) -> SparkonceError:
        """Converts an error of librdkafka into one of sparkonce, and adds the latest error of the whole client."""
        kind: type[SparkonceError] = PreflightError if reason.code() in _NOT_ALLOWED else PrepareError
        if reason.code() in _AWAY and not self.reports.barred:
            kind = OutageError
        known = self.reports.last_error
        said = one_line(reason.str())
        more = f" ({known})" if known and known not in said else ""
        return kind(f"Kafka {what}: {said}{more}.", code=reason.code())


@cache
def _warn_of_other_words() -> None:
    """Warns once per process that librdkafka's log lines have changed. This only delays the start of slots."""
    log.warning(
        "librdkafka's log does not name producer ids in a known format, so each producer waits for its statistics, a "
        "second or more. Next: Use the version of confluent-kafka that this sparkonce was tested with."
    )


def _fatal_reason(error: BaseException | KafkaError) -> str:
    """Returns the reason of a fatal error; empty for a SystemError without a cause.

    A SystemError has a cause if one callback left an exception behind and another callback ran. It has no cause if the
    call of another thread received the exception first.
    """
    if isinstance(error, KafkaError):
        return one_line(error.str())
    if isinstance(error, KafkaException):
        return one_line(error.args[0].str())
    return _fatal_reason(error.__cause__) if error.__cause__ else ""

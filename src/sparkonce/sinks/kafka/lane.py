"""One librdkafka producer and what it has said about itself."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sparkonce.errors import OutageError, PreflightError, PrepareError, SparkonceError
from sparkonce.sinks.kafka.client_log import client_log
from sparkonce.words import one_line

STATISTICS_INTERVAL_MS = 100
"""A new producer's id is in its first statistics after initialisation. More often is not free: every 20 ms took 3 % of
a task's CPU with 4 partitions, and takes more with more."""

_FIRST_ATTEMPT_S = 0.03
_LAST_ATTEMPT_S = 1.0
_ANY_TOPIC = "__transaction_state"  # small, and not one of the user's
_REMEMBERED_ERRORS = 8
_STATISTICS_LIMIT_S = 3.0
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
"""The brokers cannot be reached, or take nothing for now. The last but one is what a full disk gives."""

_TOO_LARGE = (
    "Raise the topic's max.message.bytes, the limit of a batch as it is sent, set compression.type, or keep such rows "
    "out."
)
UNKNOWN_PARTITION = (
    "Drop the column 'partition', which rows of a Kafka source bring along, and the key says where a row goes; or give "
    "the topic more partitions."
)


class Reports:
    """What librdkafka's callbacks told, served from `poll` and `flush`.

    Keeps no reference to its producer: a cycle would leave the producer's end to the garbage collector.

    Attributes:
        fatal: Why the producer can do nothing more, for example because it was fenced; empty if it can.
        refused: How many rows did not arrive.
        refusals: Of the first of them the topic and the broker's reason.
        advice: What to do about the first refusal; empty if it needs none of its own.
        last_error: The newest error of the client as a whole, such as a lost connection; empty if there was none.
        away: Whether rows did not arrive, or the transaction was broken off, because brokers were away.
        barred: Whether the newest error of the client says that it is not let in.
        stats: The newest statistics, as JSON. Parsed only where they are needed.
    """

    def __init__(self) -> None:
        self.fatal = ""
        self.refused = 0
        self.refusals: list[str] = []
        self.advice = ""
        self._largest = -1
        self.last_error = ""
        self.away = self.barred = False
        self.stats = ""

    def on_stats(self, text: str) -> None:
        """Keeps the statistics."""
        self.stats = text

    def on_error(self, error: KafkaError) -> None:
        """Keeps an error of the client as a whole."""
        self.last_error, self.barred = one_line(error.str()), error.code() in _NOT_ALLOWED

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keeps what happened to a row that did not arrive; of the others librdkafka is told not to report."""
        if error is None:
            return
        self.refused += 1
        self.away |= error.code() in _AWAY
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._keep_largest(error, message)
            return
        where = f"topic {message.topic()!r}"
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            where += f", whose column 'partition' is {message.partition()}"
            self.advice = self.advice or UNKNOWN_PARTITION
        if len(self.refusals) < _REMEMBERED_ERRORS:
            self.refusals.append(f"{where}: {one_line(error.str())}")

    def _keep_largest(self, error: KafkaError, message: Message) -> None:
        """Of a batch that a broker found too large every row is refused; its largest is the one to name."""
        size = len(message.key() or b"") + len(message.value() or b"")
        if size > self._largest:
            self._largest = size
            self.refusals[:0] = [
                f"topic {message.topic()!r}, partition {message.partition()}: {error.str()}, with a key and value of "
                f"{size} bytes"
            ]
            self.advice = _TOO_LARGE


class Lane:
    """A producer that carries at most one transaction, or, if it has no transactional id, any number of batches.

    Its producer is reached through the lane only, so that `destroy` drops the last reference.

    Args:
        settings: librdkafka's, without callbacks.
        number: The worker's number for it.
        transactional_id: Empty for a producer without transactions.

    Attributes:
        producer_id: What `initialise` was given; -1 before.
        epoch: What `initialise` was given; -1 before. librdkafka changes it only after an error that breaks the
            transaction off (KIP-360), which `trouble` tells.

    Raises:
        PrepareError: if the settings do not work in this process, for example because a key file is missing.
    """

    def __init__(self, settings: Mapping[str, Any], *, number: int = 0, transactional_id: str = "") -> None:
        self.number = number
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.reports = Reports()
        self.polled_s = time.monotonic()
        callbacks = {
            "stats_cb": self.reports.on_stats,
            "error_cb": self.reports.on_error,
            "on_delivery": self.reports.on_delivery,
        }
        identity = {"transactional.id": transactional_id} if transactional_id else {}
        interval = {"statistics.interval.ms": STATISTICS_INTERVAL_MS if transactional_id else 0}
        try:
            self.producer = Producer({"logger": client_log, **settings, **identity, **interval, **callbacks})
        except KafkaException as error:
            raise PrepareError(f"This worker cannot make a Kafka producer: {error.args[0].str()}.") from None

    def initialise(self, timeout_s: float) -> None:
        """Fences whoever had the transactional id before, and gets an epoch for one transaction.

        The producer is ended if that fails.

        Raises:
            PreflightError: if the cluster does not allow it.
            PrepareError: if it could not be done in time.
        """
        deadline = time.monotonic() + timeout_s
        attempt_s = _FIRST_ATTEMPT_S
        while (refusal := self._try_to_initialise(attempt_s)) is not None:
            if not refusal.retriable() or time.monotonic() + attempt_s > deadline:
                self.poll(0)
                error = self.explain(refusal, f"could not initialise the transactional id {self.transactional_id!r}")
                self.destroy()
                raise error
            self._nudge(attempt_s)
            attempt_s = min(2 * attempt_s, _LAST_ATTEMPT_S)
        self._learn_identity(max(deadline, time.monotonic() + _STATISTICS_LIMIT_S))

    def _learn_identity(self, deadline: float) -> None:
        """The producer id and epoch, which librdkafka tells in its statistics only (``eos``, see STATISTICS.md)."""
        while self.producer_id < 0:
            if self.reports.fatal or time.monotonic() > deadline:
                self.destroy()
                reason = self.reports.fatal or "it was not told in time"
                raise PrepareError(f"Kafka gave {self.transactional_id!r} no producer id: {reason}.")
            self.poll(0.1)
            if self.reports.stats:
                eos, self.reports.stats = json.loads(self.reports.stats)["eos"], ""
                if eos["txn_state"] == "Ready":
                    self.producer_id, self.epoch = eos["producer_id"], eos["producer_epoch"]

    def _try_to_initialise(self, timeout_s: float) -> KafkaError | None:
        try:
            self.producer.init_transactions(timeout_s)
        except KafkaException as error:
            return error.args[0]
        return None

    def _nudge(self, timeout_s: float) -> None:
        """Lets librdkafka take its next step now: it does so after any metadata, and else every half second only.

        It often needs that. The first metadata ends the connection to the bootstrap server, and with it the
        coordinator look-up that was under way; and a broker that still ends the id's last transaction wants to be asked
        again (rd_kafka_txn_coord_timer_start, rd_kafka_idemp_pid_timer_restart).
        """
        with contextlib.suppress(KafkaException):
            self.producer.list_topics(_ANY_TOPIC, timeout_s)

    def poll(self, timeout_s: float) -> None:
        """Serves what the callbacks have not been told yet; returns as soon as there was something."""
        self._serve("poll", timeout_s)
        self.polled_s = time.monotonic()

    def flush(self, timeout_s: float) -> None:
        """Sends what is queued, and waits for the answers."""
        self._serve("flush", timeout_s)

    def _serve(self, method: str, timeout_s: float) -> None:
        """Fatal errors come as an exception of whichever call serves callbacks next, in whichever thread.

        A call that runs in another thread meanwhile gets a SystemError without a cause; librdkafka is then asked. Or it
        gets the bare KafkaError, which is no exception: neither Exception nor BaseException catches it, and it would
        end the worker. confluent-kafka may leak that exception, so no frame of its traceback may hold the producer.
        """
        try:
            getattr(self.producer, method)(timeout_s)
        except (KafkaException, KafkaError, SystemError) as error:
            reason = _fatal_reason(error) or (self.transactional_id and self.trouble()) or repr(error)
            self.reports.fatal = self.reports.fatal or reason

    def destroy(self) -> None:
        """Ends the producer without a word to the broker: an open transaction stays open.

        ``Producer.close()`` must not be called for this: it aborts an open transaction (since confluent-kafka 2.16).
        """
        del self.producer

    def trouble(self) -> str:
        """Why the open transaction cannot be committed any more; empty if it can.

        Asks librdkafka to begin another one, which it refuses: with the error that broke the transaction, or naming
        the state it is in. Statistics name the state too, but not the error, and only later.
        """
        try:
            self.producer.begin_transaction()
        except KafkaException as error:
            reason = one_line(error.args[0].str())
            self.reports.away |= error.args[0].code() in _AWAY
            return "" if error.args[0].code() == KafkaError._STATE and _OPEN_STATE in reason else reason
        return "no transaction was open"

    def explain(self, reason: KafkaError, what: str) -> SparkonceError:
        """A refusal of librdkafka as one of our errors, with what the client knows beyond it."""
        kind: type[SparkonceError] = PreflightError if reason.code() in _NOT_ALLOWED else PrepareError
        if reason.code() in _AWAY and not self.reports.barred:
            kind = OutageError
        known = self.reports.last_error
        said = one_line(reason.str())
        more = f" ({known})" if known and known not in said else ""
        return kind(f"Kafka {what}: {said}{more}.", code=reason.code())


def _fatal_reason(error: BaseException | KafkaError) -> str:
    """Where a callback had left an exception behind and another one ran, it is the cause of a SystemError.

    Empty where the SystemError has no cause: another thread's call has met the exception first.
    """
    if isinstance(error, KafkaError):
        return one_line(error.str())
    if isinstance(error, KafkaException):
        return one_line(error.args[0].str())
    return _fatal_reason(error.__cause__) if error.__cause__ else ""

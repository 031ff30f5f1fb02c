"""One librdkafka producer and what it has said about itself."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sparkonce.errors import PreflightError, PrepareError, SparkonceError

STATISTICS_INTERVAL_MS = 20
"""Prepare waits for the next statistics. They take 1 % of a core for a topic of 100 partitions, 7 % for 1,000."""

_REMEMBERED_ERRORS = 8
_NOT_ALLOWED = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}


class Reports:
    """What librdkafka's callbacks told, served from `poll` and `flush`.

    Keeps no reference to its producer: a cycle would leave the producer's end to the garbage collector.

    Attributes:
        fatal: Why the producer can do nothing more, for example because it was fenced; empty if it can.
        refused: The first rows that did not arrive: topic and the broker's reason.
        last_error: The newest error of the client as a whole, such as a lost connection; empty if there was none.
        stats: The newest statistics, as JSON. Parsed only where they are needed.
    """

    def __init__(self) -> None:
        self.fatal = ""
        self.refused: list[str] = []
        self.last_error = ""
        self.stats = ""

    def on_stats(self, text: str) -> None:
        """Keeps the statistics."""
        self.stats = text

    def on_error(self, error: KafkaError) -> None:
        """Keeps an error of the client as a whole."""
        self.last_error = error.str()

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keeps what happened to a row that did not arrive."""
        if error is not None and len(self.refused) < _REMEMBERED_ERRORS:
            self.refused.append(f"topic {message.topic()!r}: {error.str()}")


class Lane:
    """A producer that carries at most one transaction, or, if it has no transactional id, any number of batches.

    Its producer is reached through the lane only, so that `destroy` drops the last reference.

    Args:
        settings: librdkafka's, without callbacks.
        number: The worker's number for it.
        transactional_id: Empty for a producer without transactions.
    """

    def __init__(self, settings: Mapping[str, Any], *, number: int = 0, transactional_id: str = "") -> None:
        self.number = number
        self.transactional_id = transactional_id
        self.reports = Reports()
        self.polled_s = time.monotonic()
        self.producer = Producer(
            {
                **settings,
                **({"transactional.id": transactional_id} if transactional_id else {}),
                "statistics.interval.ms": STATISTICS_INTERVAL_MS if transactional_id else 0,
                "stats_cb": self.reports.on_stats,
                "error_cb": self.reports.on_error,
                "on_delivery": self.reports.on_delivery,
            }
        )

    def initialise(self, timeout_s: float) -> None:
        """Fences whoever had the transactional id before, and gets an epoch for one transaction.

        Raises:
            PreflightError: if the cluster does not allow it.
            PrepareError: if it could not be done in time.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._await_metadata(timeout_s / 2)
            self.producer.init_transactions(deadline - time.monotonic())
        except KafkaException as error:
            self.poll(0)
            raise self.explain(error, f"could not initialise the transactional id {self.transactional_id!r}") from None

    def _await_metadata(self, timeout_s: float) -> None:
        """Waits for the first metadata, with which librdkafka drops the connection to the bootstrap server.

        A coordinator look-up that is under way on it at that moment fails, and is repeated half a second later only.
        """
        with contextlib.suppress(KafkaException):  # initialising will say it better
            self.producer.cluster_id(timeout_s)

    def poll(self, timeout_s: float) -> None:
        """Serves what the callbacks have not been told yet; returns as soon as there was something."""
        self._serve(self.producer.poll, timeout_s)
        self.polled_s = time.monotonic()

    def flush(self, timeout_s: float) -> None:
        """Sends what is queued, and waits for the answers."""
        self._serve(self.producer.flush, timeout_s)

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> None:
        """Fatal errors come as an exception of whichever call serves callbacks next, in whichever thread."""
        try:
            call(timeout_s)
        except (KafkaException, SystemError) as error:
            # SystemError: another callback ran after the one that had left the exception behind.
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            self.reports.fatal = str(cause.args[0].str())

    def destroy(self) -> None:
        """Ends the producer without a word to the broker: an open transaction stays open.

        ``Producer.close()`` must not be called for this: it aborts an open transaction (since confluent-kafka 2.16).
        """
        del self.producer

    def trouble(self) -> str:
        """Why the open transaction cannot be committed any more; empty if it can.

        Asks librdkafka to begin another one, which it always refuses: with the error that broke the transaction, or
        with ``_STATE`` if all is well. Statistics name the state, but not the error, and come later.
        """
        try:
            self.producer.begin_transaction()
        except KafkaException as error:
            reason = error.args[0]
            return "" if reason.code() == KafkaError._STATE else str(reason.str())
        return "no transaction was open"

    def read_statistics(self, deadline: float, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first statistics from now on that satisfy a condition, or the last ones before the deadline."""
        newest: dict[str, Any] = {}
        self.reports.stats = ""
        while time.monotonic() < deadline:
            self.poll(0.1)
            if self.reports.stats:
                newest, self.reports.stats = json.loads(self.reports.stats), ""
                if until(newest):
                    break
        return newest

    def explain(self, error: KafkaException, what: str) -> SparkonceError:
        """A refusal of librdkafka as one of our errors, with what the client knows beyond it."""
        reason: KafkaError = error.args[0]
        kind = PreflightError if reason.code() in _NOT_ALLOWED else PrepareError
        known = self.reports.last_error
        more = f" ({known})" if known and known not in reason.str() else ""
        return kind(f"Kafka {what}: {reason.str()}{more}.", code=reason.code())


def count_acknowledged(statistics: Mapping[str, Any]) -> int:
    """How many rows the brokers have acknowledged in the life of a producer.

    Per partition librdkafka numbers messages from 1 and reports the highest number acknowledged. It falls short as
    long as a row is missing at the end; one missing in the middle has had a delivery error.
    """
    return sum(
        int(partition["acked_msgid"])
        for topic in statistics.get("topics", {}).values()
        for partition in topic["partitions"].values()
    )

"""Kafka, asked by clients of the witness's own, see `sparkonce.testing.kafka`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.testing.kafka import Transaction, list_transactions
from sparkonce.testing.matchers import END_TXN, INIT_PRODUCER_ID, PRODUCE, kafka_request
from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The states of a transaction that its coordinator has not finished."""


class KafkaWitness(Witness):
    """A cluster.

    Args:
        settings: librdkafka's, of how to connect, or ``bootstrap.servers`` alone.
        prefix: Only transactional ids that begin with this are looked at.
        answers_within_s: The longest wait for an answer, in seconds.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "two_phase": {
            "prepare": kafka_request(PRODUCE),
            "commit": kafka_request(END_TXN),
            "abort": kafka_request(INIT_PRODUCER_ID),
        }
    }

    def __init__(self, settings: str | Mapping[str, Any], prefix: str = "", answers_within_s: float = 30.0) -> None:
        self.settings = settings
        self._prefix = prefix
        self._answers_within_s = answers_within_s

    def transactions(self, *states: str) -> list[Transaction]:
        """Lists the transactions that are in one of these states, all if none is given."""
        limit_s = self._answers_within_s
        return list(list_transactions(self.settings, states=states, prefix=self._prefix, timeout_s=limit_s).values())

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`."""
        return [f"{one.transactional_id} {one.state}" for one in self.transactions(*OPEN)]

    def close(self) -> None:
        """See `Witness.close`. Every question opens clients of its own."""

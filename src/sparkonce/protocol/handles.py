"""Handles, which let any process finish one slot's writes to one sink, and the outcomes of finishing them.

An outcome is never a bool, because an unknown outcome is not a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Scalar = str | int
FINGERPRINT_MODULUS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Handle:
    """The durable, plain value that is used to finish a transaction.

    Attributes:
        sink: The sink's name, unique within the query.
        slot: The Spark task's partition, 0-based.
        rows: The number of rows that the slot wrote to the sink.
        fingerprint: The sum modulo 2**64 of ``xxhash64`` over the written columns of every row. It is the same for the
            same rows in any order.
        opened_ms: When the transaction was started, in milliseconds since the epoch by the executor's clock; 0 if there
            is none.
        transaction: The fields that the sink needs to finish the transaction, as pairs sorted by name. Empty if there
            is nothing to finish, as for a slot without rows.
    """

    sink: str
    slot: int
    rows: int = 0
    fingerprint: int = 0
    opened_ms: int = 0
    transaction: tuple[tuple[str, Scalar], ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """The sink and slot that these rows belong to."""
        return (self.sink, self.slot)

    @property
    def evidence(self) -> tuple[int, int]:
        """The number of rows and the fingerprint, which a replay must reproduce."""
        return (self.rows, self.fingerprint)

    def __getitem__(self, name: str) -> Scalar:
        for field, value in self.transaction:
            if field == name:
                return value
        raise KeyError(name)


def transaction_fields(fields: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    """Sorts a sink's fields into the form that a handle stores."""
    return tuple(sorted(fields.items()))


class Outcome(str, Enum):
    """The outcome of committing or aborting one handle."""

    COMMITTED = "committed"
    """This request committed the transaction."""
    ALREADY_COMMITTED = "already committed"
    """An earlier request committed the transaction."""
    ABORTED = "aborted"
    """The server aborted the transaction, because of this request or earlier. Only aborts have this outcome."""
    RETRY = "retry"
    """The server is busy or unreachable. Retry."""
    LOST = "lost"
    """The transaction was not applied and never will be: the server aborted it or fenced its producer."""
    DAMAGED = "damaged"
    """The transaction is still open, but the server has deleted some of its rows. A commit would publish the rest."""
    UNKNOWN = "unknown"
    """The server's answer is inconclusive. Nothing may be aborted, deleted or healed."""


COMMITTED = frozenset({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})
FINAL = COMMITTED | {Outcome.ABORTED, Outcome.LOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcome of one handle, with the server's message for the operator.

    Attributes:
        outcome: The outcome.
        reason: The server's error code and one sentence; empty if there is nothing to report.
        next_step: What the operator can do if retrying does not help.
        in_flight: True if an abort request got no answer. The request may still arrive, and would then end a later
            transaction of the same name.
    """

    outcome: Outcome
    reason: str = ""
    next_step: str = ""
    in_flight: bool = False

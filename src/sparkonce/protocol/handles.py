"""The handle, which any process can use to finish one slot's writes to one sink, and the outcome of finishing it.

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
    """The durable, plain value that finishes a transaction.

    Attributes:
        sink: The sink's name, unique within the query.
        slot: The Spark task's partition, 0-based.
        rows: How many rows the slot wrote to the sink.
        fingerprint: The sum modulo 2**64 of ``xxhash64`` over the written columns of every row: the same for the
            same rows in any order.
        opened_ms: When the transaction was begun, milliseconds since the epoch by the executor's clock; 0 if none was.
        transaction: The sink's own plain fields as pairs, sorted by name. Empty if there is nothing to finish, as for
            a slot without rows.
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
        """Rows and fingerprint: what a replay must give again."""
        return (self.rows, self.fingerprint)

    def __getitem__(self, name: str) -> Scalar:
        for field, value in self.transaction:
            if field == name:
                return value
        raise KeyError(name)


def transaction_fields(fields: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    """Sorts a sink's fields as a handle keeps them."""
    return tuple(sorted(fields.items()))


class Outcome(str, Enum):
    """The outcome of committing or aborting one handle."""

    COMMITTED = "committed"
    """This request committed it."""
    ALREADY_COMMITTED = "already committed"
    """An earlier request committed it."""
    ABORTED = "aborted"
    """The server aborted it, by this request or before it. Only an abort gives this."""
    RETRY = "retry"
    """The server is busy or could not be reached. Retry."""
    LOST = "lost"
    """Surely not applied and never will be: the server aborted it or fenced its producer."""
    DAMAGED = "damaged"
    """Still open, and rows of it are gone from the server: a commit would succeed over what is left."""
    UNKNOWN = "unknown"
    """The server's answer leaves it open. Destroys nothing: no abort, no delete, no healing."""


COMMITTED = frozenset({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})
FINAL = COMMITTED | {Outcome.ABORTED, Outcome.LOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcome of one handle, with the server's own words for the operator.

    Attributes:
        outcome: The outcome.
        reason: The server's error code and one sentence, empty when there is nothing to say.
        next_step: What the operator can do about it, where retrying will not help.
        in_flight: True if an abort had no answer, and may still arrive and end whatever has the same name then.
    """

    outcome: Outcome
    reason: str = ""
    next_step: str = ""
    in_flight: bool = False

"""The handle: what is enough, alone and in any process, to finish one slot's writes to one sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

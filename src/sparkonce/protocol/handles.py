"""The handle: what is enough, alone and in any process, to finish one slot's writes to one sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
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
        """Which sink and slot these rows belong to."""
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
    """A sink's fields in the order a handle keeps them."""
    return tuple(sorted(fields.items()))


def lost_whole(lost: Set[tuple[str, int]], handles: Iterable[Handle]) -> frozenset[str]:
    """The sinks that have lost each of their transactions: nothing of the batch is visible there.

    Args:
        lost: Keys of handles.
        handles: All of the batch.
    """
    kept = {handle.sink for handle in handles if handle.transaction and handle.key not in lost}
    return frozenset({sink for sink, _ in lost} - kept)

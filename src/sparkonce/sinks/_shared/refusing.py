"""Finds the rows that a server refuses where it refuses a whole request for one of them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from sparkonce.sink import Refused


def offered(rows: pa.RecordBatch, attempt: Callable[[pa.RecordBatch], str]) -> Refused:
    """Writes the rows that the server takes, and returns the others.

    What is refused is tried again in halves: for each refused row about twice as many requests as halves.

    Args:
        rows: The rows.
        attempt: Writes some of them and returns an empty text, or writes none and returns the reason.
    """
    numbers: list[int] = []
    reasons: list[str] = []

    def offer(part: pa.RecordBatch, first: int) -> None:
        if not (reason := attempt(part)):
            return
        if part.num_rows == 1:
            numbers.append(first)
            reasons.append(reason)
            return
        half = part.num_rows // 2
        offer(part.slice(0, half), first)
        offer(part.slice(half), first + half)

    if rows.num_rows:
        offer(rows, 0)
    return Refused(rows=numbers, reasons=reasons)

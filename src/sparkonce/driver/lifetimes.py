"""Keeps a batch from outliving its transactions, which systems abort after a timeout.

Before the decision, `too_old` rejects a batch with a transaction that may time out before its commit. A batch that has
outlived its transactions is undone and written again, with all rows computed before the first transaction opens; see
`sparkonce.driver.prepare`. If `Pace` expects a batch to take that long, its rows are computed first from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Handle

logger = logging.getLogger("sparkonce")

_MARGIN, _MARGIN_S = 0.1, 30.0
"""The lifetime that a transaction must have left when its batch is decided: this fraction of it, and these seconds."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The number of seconds that the transactions of a sink may stay open."""

    sink: str
    seconds: float


def too_old(
    handles: Sequence[Handle],
    took_s: float,
    now_s: float,
    life: Lifetime,
    begun_ms: Callable[[Sequence[Handle]], Sequence[int | None]],
) -> str:
    """Returns a message if a transaction has timed out, or may do so before its commit; empty otherwise.

    The server is queried only after half of the transactions' lifetime. The server and the executor each report a
    transaction's start time. Since their clocks may differ, the greater age counts, but at most the time since the
    write began, minus the delay between the sink's first transaction and this one.

    Args:
        handles: The sink's handles that have a transaction.
        took_s: The time since the write began, in seconds.
        now_s: The current time, in seconds since the epoch.
        life: The lifetime of the sink's transactions.
        begun_ms: See `SinkCommitter.begun_ms`.
    """
    if not handles or took_s <= life.seconds / 2:
        return ""
    needed_s = min(max(_MARGIN * life.seconds, _MARGIN_S), life.seconds / 2)
    begun_at = begun_ms(handles)
    first_ms = min((begun for begun in begun_at if begun is not None), default=0)
    for handle, begun in zip(handles, begun_at, strict=True):
        which = f"the transaction of slot {handle.slot} of sink {handle.sink}"
        if begun is None:
            return f"{which} is no longer open after {took_s:.0f} s; its timeout is {life.seconds:.0f} s"
        at_most_s = took_s - (begun - first_ms) / 1000
        age_s = min(at_most_s, max(now_s - begun / 1000, now_s - handle.opened_ms / 1000))
        if life.seconds - age_s <= needed_s:
            return (
                f"{which} is {age_s:.0f} s old, its timeout is {life.seconds:.0f} s, and {needed_s:.0f} s are kept for "
                "the commit"
            )
    return ""


class Pace:
    """The pace of a run: the duration of its last write, from which the next one is estimated."""

    def __init__(self) -> None:
        self._took_s = 0.0
        self._rows: int | None = None

    def expected_s(self, rows: int | None) -> float:
        """Estimates a batch's duration in seconds: the last batch's duration, scaled by the number of rows if known."""
        if rows is None or not self._rows:
            return self._took_s
        return self._took_s * rows / self._rows

    def note(self, took_s: float, rows: int | None) -> None:
        """Records how long a batch took, including all attempts."""
        self._took_s, self._rows = took_s, rows


def warn_of_outlived(took_s: float, life: Lifetime) -> None:
    """Logs that a batch has outlived its transactions, and how it is written again."""
    logger.warning(
        "Preparing the batch took %.0f s, and transactions of sink %s live %.0f s: what it wrote is undone, and it is "
        "written again, with all rows computed and kept on the executors' disks first, and with transactions that "
        "live as long as each system allows, from now on. Next: To make later batches smaller, limit them with "
        "max_offsets_per_trigger (Spark's maxOffsetsPerTrigger), or raise transaction.timeout.ms where the sink has "
        "it.",
        took_s,
        life.sink,
        life.seconds,
    )

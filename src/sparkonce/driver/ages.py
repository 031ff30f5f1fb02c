"""Compares how long a batch takes with how long its transactions may live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Handle

_MARGIN, _MARGIN_S = 0.1, 30.0
"""The rest of a transaction's life when its batch is decided: at least this part of it, and so many seconds."""


@dataclass(frozen=True, slots=True)
class Life:
    """The seconds for which the transactions of a sink may stay open."""

    sink: str
    seconds: float


def too_old(
    handles: Sequence[Handle],
    took_s: float,
    now_s: float,
    life: Life,
    begun_ms: Callable[[Sequence[Handle]], Sequence[int | None]],
) -> str:
    """Says so if a sink's transaction is lost, or may be before it is committed; empty if none is.

    Beyond half of their life the server is asked. By its clock the ages of transactions differ exactly, and none is
    older than the write; an executor's clock and the driver's are believed where they make one older, not younger.

    Args:
        handles: Of the sink, those with a transaction.
        took_s: How long ago the write began.
        now_s: The time, in seconds since the epoch.
        life: How long its transactions live.
        begun_ms: See `SinkCommitter.begun_ms`.
    """
    if not handles or took_s <= life.seconds / 2:
        return ""
    needed_s = min(max(_MARGIN * life.seconds, _MARGIN_S), life.seconds / 2)
    said = begun_ms(handles)
    first_ms = min((begun for begun in said if begun is not None), default=0)
    for handle, begun in zip(handles, said, strict=True):
        which = f"the transaction of slot {handle.slot} of sink {handle.sink}"
        if begun is None:
            return f"{which} is not open any more after {took_s:.0f} s; its timeout is {life.seconds:.0f} s"
        at_most_s = took_s - (begun - first_ms) / 1000
        age_s = min(at_most_s, max(now_s - begun / 1000, now_s - handle.opened_ms / 1000))
        if life.seconds - age_s <= needed_s:
            return (
                f"{which} is {age_s:.0f} s old, its timeout is {life.seconds:.0f} s, and {needed_s:.0f} s are kept for "
                "the commit"
            )
    return ""


class Pace:
    """The pace of a run: the time that its last batch took to be written, from which the next one's is guessed."""

    def __init__(self) -> None:
        self._took_s = 0.0
        self._rows: int | None = None

    def expected_s(self, rows: int | None) -> float:
        """Guesses how long a batch takes, in seconds: as long as the last one, or by the row where both are counted."""
        if rows is None or not self._rows:
            return self._took_s
        return self._took_s * rows / self._rows

    def note(self, took_s: float, rows: int | None) -> None:
        """Takes in how long a batch took, all of its tries together."""
        self._took_s, self._rows = took_s, rows

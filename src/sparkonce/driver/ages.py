"""How long a batch takes, held against how long its transactions may live."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Handle
from sparkonce.sinks.base import Facts, TwoPhaseCommitSink


@dataclass(frozen=True, slots=True)
class Life:
    """How long the transactions of a sink may stay open, in seconds."""

    sink: str
    seconds: float


def shortest_life(
    names: Sequence[str], sinks: Mapping[str, TwoPhaseCommitSink], facts: Callable[[str], Facts]
) -> Life | None:
    """Returns the shortest life among these sinks' transactions; None if none of them times out."""
    limits = {name: sinks[name].transaction_timeout_s(facts(name)) for name in names}
    lives = [Life(name, limit_s) for name, limit_s in limits.items() if limit_s is not None]
    return min(lives, key=lambda life: life.seconds, default=None)


def too_old(
    handles: Sequence[Handle],
    took_s: float,
    now_s: float,
    sinks: Mapping[str, TwoPhaseCommitSink],
    facts: Callable[[str], Facts],
) -> str:
    """Says so if a transaction may be older than it may live; empty if none is.

    Args:
        handles: Of all slots.
        took_s: How long ago the write began: no transaction is older, whatever an executor's clock says.
        now_s: The time, in seconds since the epoch.
        sinks: By name.
        facts: Of each sink.
    """
    for handle in handles:
        limit_s = sinks[handle.sink].transaction_timeout_s(facts(handle.sink)) if handle.transaction else None
        if limit_s is None:
            continue
        age_s = min(took_s, now_s - handle.opened_ms / 1000)
        if age_s >= limit_s:
            return (
                f"the transaction of slot {handle.slot} of sink {handle.sink} is {age_s:.0f} s old, and its "
                f"timeout is {limit_s:.0f} s"
            )
    return ""


class Pace:
    """How long the run's last batch took to be written, from which the next one's time is guessed."""

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


def offsets_between(before: Sequence[str] | None, after: Sequence[str]) -> int | None:
    """Counts a batch's input by its offsets; None if a source has none that count rows, as Kafka's have.

    Args:
        before: Where the sources stood before the batch, a line of JSON each; None for a query's first batch.
        after: Where they stand after it. Kafka's are ``{topic: {partition: offset}}``.
    """
    if before is None:
        return None
    try:
        return sum(  # type: ignore[no-any-return]
            offset - first.get(topic, {}).get(partition, 0)
            for first, last in zip(map(json.loads, before), map(json.loads, after), strict=True)
            for topic, partitions in last.items()
            for partition, offset in partitions.items()
        )
    except (AttributeError, TypeError, ValueError):
        return None

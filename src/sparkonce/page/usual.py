"""Measures a query's batches: how long they usually take, and how many rows they write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkonce.watch.figures import WatchedBatch
from sparkonce.watch.timeline import TimelineSegment

MEASURED = 1000
"""The number of newest batches that say what is usual."""
FEW = 10
"""The number of batches below which nothing is usual yet."""
RATE_OVER_MS = 300_000
LONGER_THAN_USUAL = 3
"""A phase takes much longer than usual, if it takes so many times the usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The times that batches, or one of their phases, have taken.

    Attributes:
        p50_ms: Half of them took at most this.
        p95_ms: 95 % of them took at most this.
        of: How many there are.
    """

    p50_ms: int
    p95_ms: int
    of: int


def usual_of(times_ms: Iterable[int]) -> Usual:
    """Returns what is usual of some times, of which there is at least one."""
    ordered = sorted(times_ms)

    def rank(part: float) -> int:
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    return Usual(p50_ms=rank(0.5), p95_ms=rank(0.95), of=len(ordered))


def longest_usual_ms(usual: Usual | None, at_least_ms: int) -> int:
    """Returns the time after which something takes much longer than usual."""
    known = usual is not None and usual.of >= FEW
    return max(at_least_ms, LONGER_THAN_USUAL * usual.p95_ms if usual is not None and known else 5 * 60_000)


def newest_batches(segments: Sequence[TimelineSegment]) -> list[WatchedBatch]:
    """Returns the newest batches, at most `MEASURED`."""
    found: list[WatchedBatch] = []
    for segment in reversed(segments):
        found[:0] = segment.batches
        if len(found) >= MEASURED:
            break
    return found[-MEASURED:]


def phase_times(batches: Sequence[WatchedBatch]) -> dict[str, list[int]]:
    """Returns the times of each phase, in milliseconds."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        for name, took_ms in batch.phases:
            found.setdefault(name, []).append(took_ms)
    return found


def rates(segments: Sequence[TimelineSegment], now_ms: int) -> dict[str, float]:
    """Returns the rows a second of the last minutes by sink, counted by the ends of their batches."""
    since_ms = now_ms - RATE_OVER_MS
    rows: dict[str, int] = {}
    # By their ids: a batch that its run had committed, and that the next run found decided, is in both runs' segments.
    batches = {batch.batch: batch for segment in segments for batch in segment.batches}
    for batch in batches.values():
        ended = batch.began_ms + batch.took_ms
        for sink, count in batch.rows.items():
            rows[sink] = rows.get(sink, 0) + (count if since_ms < ended <= now_ms else 0)
    known_ms = next((batch.began_ms for batch in batches.values()), now_ms)
    over_ms = min(RATE_OVER_MS, now_ms - known_ms)
    return {sink: round(count * 1000 / over_ms, 1) for sink, count in rows.items()} if over_ms > 0 else {}

"""What the demo found, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.lab.demo.count import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
        point: Where it was meant to be.
        batch: Spark's batch id.
        proved: Whether broker, log and checkpoint say that it was there.
        standing: What they say.
    """

    point: str
    batch: int
    proved: bool
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One query, killed and counted.

    Attributes:
        title: Which sink.
        kills: In their order.
        count: What a read_committed reader saw in the end, from offset 0.
        seen_live: Rows that the reader beside the query saw.
        seen_uncommitted: Those of them that are not in the topic's committed rows.
        left_open: Transactions that the broker still had open in the end.
        aborted_rows: Rows that a read_uncommitted reader sees in addition.
        seconds: How long it took.
    """

    title: str
    kills: tuple[Kill, ...]
    count: Count
    seen_live: int
    seen_uncommitted: int
    left_open: int
    aborted_rows: int
    seconds: float

    @property
    def proved(self) -> bool:
        """Whether every kill happened where it was meant to."""
        return bool(self.kills) and all(kill.proved for kill in self.kills)

    @property
    def exactly_once(self) -> bool:
        """Whether each row was seen once, right, and only after it was committed."""
        return self.count.exactly_once and not self.seen_uncommitted and not self.left_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole demo: with sparkonce, and without where that was asked for."""

    with_sparkonce: Variant
    without: Variant | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether sparkonce kept what it promises, at every point where it was to be shown."""
        return self.with_sparkonce.proved and self.with_sparkonce.exactly_once

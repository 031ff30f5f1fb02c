"""The demo's findings: how far a killed query got, according to everything but the query itself, and the row counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.log import DecisionLog
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.checkers.rows import difference, plain, total
from sparkonce_lab.demo.halfway import HALFWAY
from sparkonce_lab.kafka import describe_transactions, list_transactions


class CrashPoint(Enum):
    """Where a driver is killed. The value is the name of the phase or point where it is held."""

    PREPARED = Phase.DECIDING.name
    DECIDED = Phase.FINISHING.name
    HALFWAY = HALFWAY

    @property
    def words(self) -> str:
        """The point in words."""
        return _WORDS[self]


_WORDS = {
    CrashPoint.PREPARED: "between prepare and decide",
    CrashPoint.DECIDED: "between decide and commit",
    CrashPoint.HALFWAY: "half-way through the commits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a batch had progressed when its driver died.

    Attributes:
        batch: Spark's batch id.
        decided: True if the log has its decision.
        ended: How many of its transactions the broker has ended.
        open: How many of them the broker has open; for an undecided batch, how many are open at all.
    """

    batch: int
    decided: bool
    ended: int
    open: int

    def proves(self, point: CrashPoint) -> bool:
        """Returns True if the kill was at this point."""
        if point is CrashPoint.PREPARED:
            return not self.decided and self.open > 0
        if point is CrashPoint.DECIDED:
            return self.decided and self.open > 0 and self.ended == 0
        return self.decided and self.open > 0 and self.ended > 0

    @property
    def words(self) -> str:
        """The progress in words."""
        log = "decided" if self.decided else "not decided"
        return f"log: {log}; broker: {self.open} transactions open, {self.ended} committed"


def standing(bootstrap: str, checkpoint: CheckpointFiles, batch: int) -> Standing:
    """Finds out from the decision log and the broker how far a batch has progressed."""
    decision = DecisionLog(checkpoint).read(LogView()).decision(batch)
    if decision is None:
        left = list_transactions(bootstrap, states=["Ongoing"])
        return Standing(batch=batch, decided=False, ended=0, open=len(left))
    ids = [str(handle["transactional_id"]) for handle in decision.handles if handle.transaction]
    states = [found.state for found in describe_transactions(bootstrap, ids).values()]
    still_open = states.count("Ongoing")
    return Standing(batch=batch, decided=True, ended=len(states) - still_open, open=still_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The rows that a reader saw, compared with the expected ones.

    Attributes:
        orders: The number of orders in the source.
        expected: The number of expected rows, one for each window and customer with orders.
        seen: The number of rows in the output.
        missing: The number of expected rows that are missing.
        doubled: The number of repeated rows, counting every repetition.
        wrong: The number of rows with a wrong sum or number of orders, or for a window without orders.
        amount_expected: The sum of all orders, in cents.
        amount_seen: The sum of all output rows, in cents.
    """

    orders: int
    expected: int
    seen: int
    missing: int
    doubled: int
    wrong: int
    amount_expected: int
    amount_seen: int

    @property
    def exactly_once(self) -> bool:
        """True if every row occurred once, with the correct values."""
        return self.missing == self.doubled == self.wrong == 0 < self.seen


def compare(expected: pa.Table, seen: pa.Table) -> Count:
    """Compares the output with what is expected.

    Args:
        expected: The sums; see `sparkonce_lab.history.ROWS`.
        seen: The output; see `sparkonce_lab.history.OBSERVED`.
    """
    unlike = difference(plain(expected), plain(seen))
    return Count(
        orders=_sum(expected["rows"]),
        expected=len(expected),
        seen=len(seen),
        missing=total(unlike.missing),
        doubled=total(unlike.doubled),
        wrong=total(unlike.unexpected),
        amount_expected=_sum(expected["amount"]),
        amount_seen=_sum(seen["amount"]),
    )


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
        point: Where it was meant to be.
        batch: Spark's batch id.
        proved: True if broker, log and checkpoint confirm that it was there.
        standing: The evidence in words.
    """

    point: str
    batch: int
    proved: bool
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One query, killed and counted.

    Attributes:
        title: The name of its sink.
        kills: The kills, in order.
        count: The rows that a read_committed reader saw at the end, starting at offset 0.
        seen_live: The rows that the concurrent reader saw.
        seen_uncommitted: Those of them that are not among the topic's committed rows.
        left_open: The transactions that the broker still had open at the end.
        aborted_rows: The additional rows that a read_uncommitted reader sees.
        seconds: Its duration.
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
        """True if every kill hit its point."""
        return bool(self.kills) and all(kill.proved for kill in self.kills)

    @property
    def exactly_once(self) -> bool:
        """True if each row was seen once, correctly, and only after it was committed."""
        return self.count.exactly_once and not self.seen_uncommitted and not self.left_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole demo: with sparkonce and, if requested, with Spark's own sink."""

    with_sparkonce: Variant
    without: Variant | None
    seconds: float

    @property
    def ok(self) -> bool:
        """True if sparkonce kept its promise, and every kill hit its point."""
        return self.with_sparkonce.proved and self.with_sparkonce.exactly_once

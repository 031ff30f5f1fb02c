"""The demo's findings: how far a killed query had come, which nobody asks the query itself, and the rows, counted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.log import DecisionLog, FilesLogStore
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.checkers.rows import difference, plain, total
from sparkonce_lab.demo.halfway import HALFWAY
from sparkonce_lab.kafka import describe_transactions, list_transactions


class CrashPoint(Enum):
    """The point at which a driver is killed. The value is the name of the phase or point where it is held."""

    PREPARED = Phase.DECIDING.name
    DECIDED = Phase.FINISHING.name
    HALFWAY = HALFWAY

    @property
    def words(self) -> str:
        """The same for people."""
        return _WORDS[self]


_WORDS = {
    CrashPoint.PREPARED: "between prepare and decide",
    CrashPoint.DECIDED: "between decide and commit",
    CrashPoint.HALFWAY: "half-way through the commits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The progress of a batch of sparkonce when its driver died.

    Attributes:
        batch: Spark's batch id.
        decided: Whether the log holds its decision.
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
        """The same for people."""
        log = "decided" if self.decided else "not decided"
        return f"log: {log}; broker: {self.open} transactions open, {self.ended} committed"


def standing(bootstrap: str, checkpoint: CheckpointFiles, batch: int) -> Standing:
    """Asks the decision log and the broker how far a batch has come."""
    decision = DecisionLog(FilesLogStore(checkpoint)).read(LogView()).decision(batch)
    if decision is None:
        left = list_transactions(bootstrap, states=["Ongoing"])
        return Standing(batch=batch, decided=False, ended=0, open=len(left))
    ids = [str(handle["transactional_id"]) for handle in decision.handles if handle.transaction]
    states = [found.state for found in describe_transactions(bootstrap, ids).values()]
    still_open = states.count("Ongoing")
    return Standing(batch=batch, decided=True, ended=len(states) - still_open, open=still_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The rows that a reader saw, compared with those that must come out.

    Attributes:
        orders: Orders in the source.
        expected: Rows that must come out: one for each window and customer with orders.
        seen: Rows that came out.
        missing: Expected rows that never came.
        doubled: Rows that came again, counted each time.
        wrong: Rows with a wrong sum or number of orders, or for a window without orders.
        amount_expected: The sum of all orders, in cents.
        amount_seen: The sum of all rows seen, in cents.
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
        """Tells whether every row came once and was right."""
        return self.missing == self.doubled == self.wrong == 0 < self.seen


def compare(expected: pa.Table, seen: pa.Table) -> Count:
    """Compares the output with what must come out.

    Args:
        expected: The sums, see `sparkonce_lab.history.ROWS`.
        seen: The output, see `sparkonce_lab.history.OBSERVED`.
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
        proved: Whether broker, log and checkpoint say that it was there.
        standing: Their words.
    """

    point: str
    batch: int
    proved: bool
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One query, killed and counted.

    Attributes:
        title: Names its sink.
        kills: In their order.
        count: The rows that a read_committed reader saw in the end, from offset 0.
        seen_live: Rows that the reader beside the query saw.
        seen_uncommitted: Those of them that are not in the topic's committed rows.
        left_open: Transactions that the broker still had open in the end.
        aborted_rows: Rows that a read_uncommitted reader sees in addition.
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
        """Tells whether every kill happened at its point."""
        return bool(self.kills) and all(kill.proved for kill in self.kills)

    @property
    def exactly_once(self) -> bool:
        """Tells whether each row was seen once, right, and only after it was committed."""
        return self.count.exactly_once and not self.seen_uncommitted and not self.left_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole demo: with sparkonce, and with Spark's own sink where that was asked for."""

    with_sparkonce: Variant
    without: Variant | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Tells whether sparkonce kept its promise, and every kill happened at its point."""
        return self.with_sparkonce.proved and self.with_sparkonce.exactly_once

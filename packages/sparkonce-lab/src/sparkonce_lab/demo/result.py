"""The demo's findings: the evidence of how far a killed query had progressed, and the row counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.decision_log import DecisionLog
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.checkers.rows import difference, plain, total
from sparkonce_lab.kafka import describe_transactions, list_transactions
from sparkonce_lab.schedule import HALFWAY


class CrashPoint(Enum):
    """The points at which a driver is killed. The value is the name of the phase or point where it is held."""

    PREPARED = Phase.DECIDING.name
    DECIDED = Phase.FINISHING.name
    HALFWAY = HALFWAY

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    CrashPoint.PREPARED: "between prepare and decide",
    CrashPoint.DECIDED: "between decide and commit",
    CrashPoint.HALFWAY: "half-way through the commits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A batch's progress at the time when its driver was killed.

    Attributes:
        decided: True if the log contains the batch's decision.
        ended: The number of its transactions that the broker has ended.
        open: The number of the batch's transactions that the broker has open or, if the batch is undecided, of all open
            ones.
    """

    decided: bool
    ended: int
    open: int

    def proves(self, point: CrashPoint) -> bool:
        if point is CrashPoint.PREPARED:
            return not self.decided and self.open > 0
        return self.decided and self.open > 0 and (self.ended > 0) == (point is CrashPoint.HALFWAY)

    @property
    def words(self) -> str:
        log = "decided" if self.decided else "not decided"
        return f"log: {log}; broker: {self.open} transactions open, {self.ended} committed"


def standing(bootstrap: str, checkpoint: CheckpointFiles, batch: int) -> Standing:
    """Reads the progress of a batch from the decision log and the broker."""
    decision = DecisionLog(checkpoint).read(LogView()).decision(batch)
    if decision is None:
        return Standing(decided=False, ended=0, open=len(list_transactions(bootstrap, states=["Ongoing"])))
    ids = [str(handle["transactional_id"]) for handle in decision.handles if handle.transaction]
    states = [found.state for found in describe_transactions(bootstrap, ids).values()]
    still_open = states.count("Ongoing")
    return Standing(decided=True, ended=len(states) - still_open, open=still_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The rows that a reader saw, compared with the expected ones.

    Attributes:
        orders: The number of orders in the source.
        expected: The number of expected rows: the orders, and a sum for each window and customer with orders.
        seen: The number of rows in the output.
        missing: The number of expected rows that are missing.
        doubled: The number of repeated rows, counting every repetition.
        wrong: The number of unexpected rows, such as a wrong sum.
        amount_expected: The sum of all orders, in cents.
        amount_seen: The total of all sums in the output, in cents.
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
        return self.missing == self.doubled == self.wrong == 0 < self.seen


def compare(expected: pa.Table, seen: pa.Table) -> Count:
    """Compares the output with the expected rows."""
    unlike = difference(plain(expected), plain(seen))

    def amount(rows: pa.Table) -> int:
        return int(pc.sum(rows.filter(pc.equal(rows["kind"], "sum"))["amount"]).as_py() or 0)

    return Count(
        orders=int(pc.sum(pc.equal(expected["kind"], "row")).as_py() or 0),
        expected=len(expected),
        seen=len(seen),
        missing=total(unlike.missing),
        doubled=total(unlike.doubled),
        wrong=total(unlike.unexpected),
        amount_expected=amount(expected),
        amount_seen=amount(seen),
    )


@dataclass(slots=True, kw_only=True)
class Kill:
    """One kill, aimed at a point, with the evidence in words.

    A kill is proved if broker, log and checkpoint confirm that it hit its point.
    """

    driver: int
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
        seen_uncommitted: The number of batches that a concurrent reader saw before they were decided.
        left_open: The transactions that the broker still had open at the end.
        aborted_rows: The number of additional rows that a read_uncommitted reader sees.
        seconds: The duration, in seconds.
        checked: True if the query was finished and everything was examined.
    """

    title: str
    kills: tuple[Kill, ...]
    count: Count
    seen_uncommitted: int = 0
    left_open: int = 0
    aborted_rows: int
    seconds: float
    checked: bool = True

    @property
    def proved(self) -> bool:
        return self.checked and len(self.kills) == len(CrashPoint) and all(kill.proved for kill in self.kills)

    @property
    def exactly_once(self) -> bool:
        """True if each row was seen once, correctly, and only after it was decided."""
        return self.count.exactly_once and not self.seen_uncommitted and not self.left_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole demo: with sparkonce and, if requested, with Spark's own sink."""

    with_sparkonce: Variant
    without: Variant | None
    seconds: float

    @property
    def ok(self) -> bool:
        return self.with_sparkonce.proved and self.with_sparkonce.exactly_once

"""What must never be, whatever the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from simulation.engine import Broken, Simulation
from sparkonce import errors
from sparkonce.protocol.records import Amend, Commit, Record

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle

Key = tuple[object, ...]
"""A transaction: its sink, and what the system calls it."""

Rows = tuple[int, int, str, int]
"""Batch, slot, sink, and how many of the slot's two parts."""


class Violation(str, Enum):
    """What must never be."""

    TWICE = "a row is visible twice"
    MISSING = "a batch is done and a row is not visible"
    TORN = "a part of a transaction is visible without the rest"
    MIXED = "rows of different executions of a batch are visible"
    UNDECIDED = "rows are visible that no decision names"
    UNDONE = "a transaction that a decision names was aborted by request"
    DECIDED_TWICE = "a batch was decided by two commits"
    SHARED_EPOCH = "a copy wrote on in an epoch whose transaction had ended"
    LINGERING = "something is left open after a fresh run has swept"
    STRANDED = "a fresh run, left in peace, could not finish"
    WRONG_STOP = "a run stopped for a reason that did not exist"
    FAILED = "the product's own code failed"


_MAY_STOP = (
    errors.SupersededError,
    errors.StaleBatchError,
    errors.PrepareError,
    errors.UnknownOutcomeError,
)
"""What a run may stop for while things go wrong."""


class Oracle:
    """Sees everything, and knows no mercy."""

    def __init__(self, simulation: Simulation, identify: Mapping[str, Callable[[Handle], Key]]) -> None:
        self._simulation = simulation
        self._identify = identify
        self.violation: Violation | None = None
        self.visible: dict[tuple[int, int, str], int] = {}
        self.named: set[Key] = set()
        self.undone: set[Key] = set()
        self.decided: set[int] = set()
        self.executions: dict[Key, int] = {}
        self._shown: dict[int, int] = {}

    def broken(self, violation: Violation, *words: object) -> None:
        """Ends the schedule."""
        if self.violation is None:
            self.violation = violation
            self._simulation.say("BROKEN:", violation.value, *words)
        raise Broken(violation.value)

    def shown(self, key: Key, rows: Rows) -> None:
        """Readers see these rows from now on."""
        batch, slot, sink, parts = rows
        where = (batch, slot, sink)
        times = self.visible[where] = self.visible.get(where, 0) + 1
        if times > 1:
            self.broken(Violation.TWICE, where)
        if parts != 2:
            self.broken(Violation.TORN, where)
        if key not in self.named:
            self.broken(Violation.UNDECIDED, where, key)
        if not self._simulation.config.deterministic:
            execution = self.executions[key]
            if self._shown.setdefault(batch, execution) != execution:
                self.broken(Violation.MIXED, where)

    def prepared(self, handle: Handle, execution: int) -> None:
        """A copy of this execution has made rows that have a handle."""
        self.executions[self._identify[handle.sink](handle)] = execution

    def aborted(self, key: Key) -> None:
        """Somebody's request ended this transaction, which could have been committed."""
        self.undone.add(key)
        if key in self.named:
            self.broken(Violation.UNDONE, key)

    def landed(self, record: Record) -> None:
        """A record stands in the log, not below its floor."""
        if not isinstance(record, Commit | Amend):
            return
        if isinstance(record, Commit):
            if record.batch in self.decided:
                self.broken(Violation.DECIDED_TWICE, record.batch)
            self.decided.add(record.batch)
        for handle in record.handles:
            if handle.transaction:
                key = self._identify[handle.sink](handle)
                self.named.add(key)
                if key in self.undone:
                    self.broken(Violation.UNDONE, key)

    def done(self, batch: int) -> None:
        """A run has told Spark that the batch is committed."""
        config = self._simulation.config
        for sink in config.sinks:
            for slot in range(config.slots):
                if self.visible.get((batch, slot, sink), 0) != 1:
                    self.broken(Violation.MISSING, batch, slot, sink)

    def is_lost_for_good(self, error: BaseException) -> bool:
        """Whether a run may say so: only rows that cannot be made again are lost."""
        return isinstance(error, errors.TransactionLostError) and not self._simulation.config.deterministic

    def stopped(self, error: BaseException) -> None:
        """A run has stopped by itself."""
        self._simulation.say("stops:", type(error).__name__, str(error).partition(" Next:")[0][:150])
        unwritable = type(error) is errors.LogError and "could not be " in str(error)
        if not (isinstance(error, _MAY_STOP) or unwritable or self.is_lost_for_good(error)):
            self.broken(Violation.WRONG_STOP, repr(error)[:300])

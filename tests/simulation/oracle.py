"""Detects what must never happen in any schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from simulation.config import COMMIT_DEADLINE_S
from simulation.engine import Broken, Simulation
from sparkonce import errors
from sparkonce.protocol.view import Claim, Commit, Record, Void

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle
    from sparkonce.protocol.ownership import Token
    from sparkonce.sink import Owner

Key = tuple[object, ...]
"""A transaction: its sink, and its name in the system."""

Place = tuple[int, int, str]
"""The batch, the row and the sink. A slot has the row with the slot's number, unless `Config.spreads` is set."""

Rows = tuple[int, int, str, int]
"""The batch, the slot, the sink, and which of the slot's two parts it is."""


class Violation(str, Enum):
    """Something that must never happen."""

    TWICE = "a row is visible twice"
    MISSING = "a batch is done and a row is not visible"
    VANISHED = "rows that were visible are gone"
    TORN = "a part of a transaction is visible without the rest"
    MIXED = "rows of different executions of a batch are visible"
    NO_FOLD = "a table is not what its batches make of it, one after the other"
    UNDECIDED = "rows are visible that no decision names"
    UNDONE = "a transaction that a decision names was aborted by request"
    OUTLIVED = "a batch was decided that its server had given up while it was written, for longer than half of its life"
    DECIDED_TWICE = "a batch was decided by two commits"
    SHARED_EPOCH = "a copy wrote on in an epoch whose transaction had ended"
    BLUNT_ABORT = "an abort that compares no epoch was sent where there is one that does"
    UNSWEPT = "a run went on, and did not look for what a copy that lost had left"
    LINGERING = "something is left open after a fresh run has swept"
    STRANDED = "a fresh run, left in peace, could not finish"
    WRONG_STOP = "a run stopped for a reason that did not exist"
    FAILED = "the product's own code failed"


_PUTS_GO_WRONG = frozenset({"put lost", "put refused", "put unreadable", "log away"})
_NOT_ANSWERED_WELL = frozenset({"request lost", "reply lost", "request late", "refused"})
_MAY_FAIL = _NOT_ANSWERED_WELL | {
    "task killed",
    "expired",
    "server restarted",
    "connection ended",
    "no patience",
    "slow",
    "long batch",
    "twins",
}
"""What can make a task fail."""
_MAY_BE_UNKNOWN = _NOT_ANSWERED_WELL | _PUTS_GO_WRONG | {"server restarted", "connection ended", "slow call"}
"""What can leave an outcome in doubt."""
MOST_HEALINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When a run began: what happened afterwards may explain why it stops.

    Attributes:
        run: Its id.
        requests: The number of requests so far.
        claims: The number of claims in the log.
        clock_s: The time.
    """

    run: str
    requests: int
    claims: int
    clock_s: float


class Oracle:
    """Sees everything, and checks all invariants."""

    def __init__(self, simulation: Simulation, identify: Mapping[str, Callable[[Handle], Key]]) -> None:
        self._simulation = simulation
        self._identify = identify
        self.violation: Violation | None = None
        self.visible: dict[Place, int] = {}
        self.named: dict[Key, int] = {}
        self.undone: set[Key] = set()
        self.void: set[Key] = set()
        self.decided: set[int] = set()
        self.executions: dict[Key, int] = {}
        self._rows: dict[Key, tuple[int, ...]] = {}
        self.gone: set[Key] = set()
        self._outlived: set[Key] = set()
        self._shown: dict[int, int] = {}
        self._effective: dict[tuple[int, int, str], Key] = {}
        self._claims: list[str] = []
        self._unswept: dict[Token, set[str]] = {}
        self._asked: set[tuple[Token, str]] = set()

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
        for row in self._rows.get(key, (slot,)):
            times = self.visible[batch, row, sink] = self.visible.get((batch, row, sink), 0) + 1
            if times > 1:
                self.broken(Violation.TWICE, batch, row, sink)
        if parts != 2:
            self.broken(Violation.TORN, where)
        if key not in self.named:
            self.broken(Violation.UNDECIDED, where, key)
        if not self._simulation.config.deterministic or self._simulation.config.power_cuts:
            execution = self.executions[key]
            if self._shown.setdefault(batch, execution) != execution:
                self.broken(Violation.MIXED, where)

    def prepared(self, handle: Handle, execution: int, rows: tuple[int, ...]) -> None:
        """A task attempt of this execution has produced these rows, which have a handle."""
        key = self._identify[handle.sink](handle)
        self.executions[key], self._rows[key] = execution, rows

    def aborted(self, key: Key) -> None:
        """A request ended this transaction, which could have been committed."""
        self.undone.add(key)
        if key in self.named and key not in self.void:
            self.broken(Violation.UNDONE, key)

    def landed(self, record: Record) -> None:
        """A record is in the log, and not below its floor."""
        if isinstance(record, Claim):
            self._claims.append(record.run)
            return
        if isinstance(record, Void):
            for handle in record.handles:
                if handle.key in record.void:
                    self.void.add(self._identify[handle.sink](handle))
            self.gone |= self.void
            return
        if isinstance(record, Commit):
            if record.batch in self.decided:
                self.broken(Violation.DECIDED_TWICE, record.batch)
            self.decided.add(record.batch)
        for handle in record.handles:
            if handle.transaction:
                key = self._identify[handle.sink](handle)
                self.named[key] = record.batch
                if key in self._outlived:
                    self.broken(Violation.OUTLIVED, key)
                self._effective[record.batch, handle.slot, handle.sink] = key
                if key in self.undone - self.void:
                    self.broken(Violation.UNDONE, key)

    def done(self, batch: int) -> None:
        """A run has reported to Spark that the batch is committed."""
        config = self._simulation.config
        for sink in config.sinks:
            for slot in range(config.slots):
                if self.visible.get((batch, slot, sink), 0) != 1:
                    self.broken(Violation.MISSING, batch, slot, sink)

    def recorded(self, batch: int, plan: int) -> None:
        """Spark records a batch as done, with the files of this plan. Nobody reads those files again."""
        if self._simulation.config.power_cuts and self._shown.get(batch, plan) != plan:
            self.broken(Violation.MISSING, batch, "of file", plan)

    def lost(self, key: Key) -> None:
        """The system itself has given up a transaction."""
        self.gone.add(key)

    def has_taken_long(self, handles: Sequence[Handle]) -> None:
        """Writing a batch took so long that its run has to check whether its transactions still exist."""
        keys = (self._identify[handle.sink](handle) for handle in handles if handle.transaction)
        self._outlived.update(key for key in keys if key in self.gone)

    def vanished(self, path: str) -> None:
        """A published file is gone, or was replaced."""
        self.broken(Violation.VANISHED, path)

    def failed(self, error: BaseException) -> None:
        """An error was raised that must never be raised."""
        self.broken(Violation.FAILED, repr(error)[:300])

    def all_done(self, batches: int, lost: frozenset[Place]) -> None:
        """Every row of these batches is visible, except those that a run has rightly reported as lost.

        Lost rows end the schedule: no later batch is requested.
        """
        last = min((batch for batch, _, _ in lost), default=batches)
        for batch in range(last):
            self.done(batch)
        config = self._simulation.config
        for sink in config.sinks if lost else ():
            for slot in range(config.slots):
                where = (last, slot, sink)
                if self.visible.get(where, 0) != (where not in lost):
                    self.broken(Violation.MISSING, *where)

    def lost_for_good(self, error: BaseException) -> frozenset[Place]:
        """Returns what a run reports as permanently lost, if that is justified; otherwise nothing.

        It is justified if the system has given up each of these transactions, other rows of the batch are visible, and
        a rerun of the batch returns different rows, or the same rows in other slots while others of the same sink are
        visible.
        """
        config = self._simulation.config
        if not isinstance(error, errors.TransactionLostError) or (config.deterministic and not config.spreads):
            return frozenset()
        batch = error.details["batch"]
        keys = {self._effective.get((batch, slot, sink)): (slot, sink) for sink, slot, _ in error.details["lost"]}
        lost = frozenset(
            (batch, row, sink) for key, (slot, sink) in keys.items() for row in self._rows.get(key, (slot,))
        )
        is_lost = keys.keys() <= self.gone and not lost & self.visible.keys()
        shown = {sink for number, _, sink in self.visible if number == batch}
        in_part = shown & {sink for _, _, sink in lost} if error.details["same_rows"] else shown
        return lost if is_lost and in_part else frozenset()

    def may_have_lost(self, token: Token) -> None:
        """A stage of this run is over.

        It may have left a task attempt that it does not name, in any sink of the unit.
        """
        self._unswept[token] = set(self._simulation.config.sinks)
        self._forget_asked(token)

    def sweeps(self, sink: str, owners: Sequence[Owner]) -> None:
        """A sink is queried for what these runs have open."""
        self._asked.update((owner.token, sink) for owner in owners)

    def swept(self, sink: str, owners: Sequence[Owner]) -> None:
        """It has responded, and has ended all of it."""
        for owner in owners:
            if owner.token in self._unswept:
                self._unswept[owner.token].discard(sink)

    def has_swept(self, token: Token | None) -> None:
        """A run continues with its next batch, or ends (if a thread sweeps).

        An attempt to sweep must have been made.
        """
        left = {sink for sink in self._unswept.get(token, ()) if (token, sink) not in self._asked}
        if left:
            self.broken(Violation.UNSWEPT, *sorted(left))
        self._forget_asked(token)

    def _forget_asked(self, token: Token | None) -> None:
        self._asked = {(other, sink) for other, sink in self._asked if other != token}

    @property
    def has_claims(self) -> bool:
        """Returns True if any run has claimed the log."""
        return bool(self._claims)

    def start(self, run: str) -> Start:
        """A run begins."""
        return Start(
            run=run,
            requests=self._simulation.requests,
            claims=len(self._claims),
            clock_s=self._simulation.clock_s,
        )

    def stopped(self, start: Start, error: BaseException) -> None:
        """A run has stopped on its own."""
        self._simulation.say("stops:", type(error).__name__, str(error).partition(" Next:")[0][:150])
        if not self._may_stop(start, error):
            self.broken(Violation.WRONG_STOP, repr(error)[:300])

    def _may_stop(self, start: Start, error: BaseException) -> bool:
        """Returns True if the events since the run began are a valid reason for its stop."""
        config = self._simulation.config
        deposed = any(run != start.run for run in self._claims[start.claims :])
        since = self._simulation.gone_wrong(start.requests)
        kind = type(error)
        if kind is errors.SupersededError:
            return deposed
        if kind is errors.StaleBatchError:
            return max(self.decided, default=-1) > error.details["batch"]
        if kind in (errors.PrepareError, errors.OutageError):
            moved = "spread" in since and "in different order each time" in str(error)
            # A batch that began in another process cannot be rewritten before its decision.
            again = config.halves and bool(self.gone) and "has to be written again" in str(error)
            return deposed or moved or again or bool(since & _MAY_FAIL)
        if kind is errors.TransactionTooOldError and "long batch" in since:
            # The second write, for which all rows were computed first, failed as well, or a later run was also too
            # slow.
            others = any(run != start.run for run in self._claims)
            if others or since & (_MAY_FAIL - {"long batch"}):
                return True
        if kind is errors.TransactionTooOldError:
            lost = [key for key in self.gone if self.named.get(key) == error.details["batch"]]
            return len(lost) > MOST_HEALINGS
        if kind is errors.UnknownOutcomeError:
            # If two drivers work on the same transactions, one may pause for so long that it has no time left.
            waited = self._simulation.clock_s - start.clock_s >= COMMIT_DEADLINE_S
            in_turn = waited and "overlap" in self._simulation.config.faults
            # After a coordinator has moved, one request fails. The next attempt finds the coordinator, unless it moves
            # again.
            in_turn |= waited and bool({"moved again", "long batch"} & since)
            return in_turn or bool(self._simulation.gone_wrong() & _MAY_BE_UNKNOWN)
        if kind is errors.LogError and any(
            words in str(error) for words in ("could not be ", "log cannot be read: [Errno")
        ):
            return bool(since & _PUTS_GO_WRONG)
        return bool(self.lost_for_good(error))

"""Counts what a query does, and knows the phase that it is in."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import SparkonceError
from sparkonce.protocol.state import Phase, State

_known: dict[str, Figures] = {}
"""The newest figures of each query that has begun in this process, by the query's id."""

MOST_EVENTS = 100
"""The number of events that are remembered."""
BATCH_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram of batches' wall times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedBatch:
    """A committed batch, with its phases in their order.

    Attributes:
        batch: Spark's batch id.
        rows: Rows written, by sink.
        transactions: Transactions committed.
        recovered: Whether the batch had been decided before this run asked for it.
        healed: Transactions that had been lost and were written again.
        began_ms: When Spark asked for it, in milliseconds since the epoch, by the driver's clock.
        phases: Each phase that it went through, and the milliseconds that it took. A phase may come several times.
    """

    batch: int
    rows: Mapping[str, int]
    transactions: int
    recovered: bool
    healed: int
    began_ms: int
    phases: Sequence[tuple[str, int]]

    @property
    def took_ms(self) -> int:
        """The wall time of all its phases."""
        return sum(took for _, took in self.phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEvent:
    """Something that an operator may want to know of.

    Attributes:
        at_ms: When it was, in milliseconds since the epoch.
        kind: ``started``, ``stopped``, ``healed``, ``swept`` or ``recovered``.
        batch: Spark's batch id; None where it is of no batch.
        text: A sentence.
        next_step: The operator's next step; empty if there is none.
    """

    at_ms: int
    kind: str
    batch: int | None
    text: str
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The transactions that are prepared and not finished.

    Attributes:
        transactions: How many.
        opened_ms: When the oldest was begun, in milliseconds since the epoch; None without one.
    """

    transactions: int = 0
    opened_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts since the process began to run the query.

    Attributes:
        batches: Committed batches.
        recovered: Those of them that an earlier run had decided.
        transactions: Committed transactions.
        healed: Transactions that were lost and written again.
        swept: Transactions that copies or older runs had left open, and that were aborted.
        rows: Rows, by sink.
        stops: Runs that an error ended, by its name.
        phase_s: Wall time by phase, in seconds.
        batch_s: Wall time of all batches, in seconds.
        within: How many batches took at most each of `BATCH_BUCKETS_S`.
    """

    batches: int = 0
    recovered: int = 0
    transactions: int = 0
    healed: int = 0
    swept: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)
    phase_s: Mapping[str, float] = field(default_factory=dict)
    batch_s: float = 0.0
    within: Sequence[int] = (0,) * len(BATCH_BUCKETS_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A query at one moment.

    Attributes:
        query: Spark's query id; empty before its first batch.
        spark_run: Spark's run id.
        name: The query's name; empty without one.
        state: The coordinator's; None before the first batch.
        batch: The batch at work, or else the last one; None before the first.
        phase: The phase.
        since_ms: When it entered the phase, in milliseconds since the epoch.
        last: The last committed batch of this process; None before it.
        in_doubt: What is prepared and not finished.
        totals: The counts.
    """

    query: str
    spark_run: str
    name: str
    state: State | None
    batch: int | None
    phase: Phase
    since_ms: int
    last: WatchedBatch | None
    in_doubt: InDoubt
    totals: Totals


class Figures:
    """The figures of one query, over all of its runs in this process. Any thread may read them.

    Args:
        now_ms: The clock, in milliseconds since the epoch.

    Attributes:
        name: The query's name; empty without one.
        events: The newest events, oldest first.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.now_ms = now_ms
        self._changed = threading.Lock()
        self._query = self._spark_run = ""
        self.name = ""
        self._state: Callable[[], State | None] = lambda: None
        self._seen: State | None = None  # the last one of a run at work: one that has ended forgets what it had
        self._batch: int | None = None
        self._phase, self._since_ms = Phase.IDLE, now_ms()
        self._entered: list[tuple[Phase, int]] = []
        self._last: WatchedBatch | None = None
        self._counts: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._stops: Counter[str] = Counter()
        self._phase_s: dict[str, float] = {}
        self._within = [0] * len(BATCH_BUCKETS_S)
        self._batch_s = 0.0
        self._swept: Callable[[], int] = lambda: 0
        self._swept_before = 0
        self.events: deque[WatchedEvent] = deque(maxlen=MOST_EVENTS)

    def begin_run(
        self, query: str, spark_run: str, state: Callable[[], State | None], swept: Callable[[], int]
    ) -> None:
        """Follows a new run of the query.

        Args:
            query: Spark's query id.
            spark_run: Spark's run id.
            state: Returns the coordinator's state.
            swept: Returns how many transactions the run has swept.
        """
        with self._changed:
            _known[query] = self
            self._swept_before += self._swept()
            self._query, self._spark_run, self._state, self._swept = query, spark_run, state, swept
            self._seen = None
            self._note("started", None, f"Run {spark_run} begins.")

    @staticmethod
    def known() -> list[Figures]:
        """Returns those of the queries that have begun in this process, whether they have ended or not."""
        return list(_known.values())

    def end_run(self) -> None:
        """Keeps the run's last state, and lets go of the run."""
        with self._changed:
            self._at_work()
            state, swept = self._state(), self._swept()
            self._state, self._swept = lambda: state, lambda: swept

    def enter(self, phase: Phase, batch: int) -> None:
        """Takes note of a phase that begins; IDLE ends a batch."""
        with self._changed:
            at_ms = self.now_ms()
            if self._phase in (Phase.IDLE, Phase.STOPPED):
                self._entered = []
            self._entered.append((phase, at_ms))
            self._batch, self._phase, self._since_ms = batch, phase, at_ms
            self._at_work()

    def done(self, progress: BatchProgress) -> WatchedBatch:
        """Takes note of a committed batch, whose phases it has been told of."""
        with self._changed:
            phases = _lasting(self._entered, self.now_ms())
            self._last = done = WatchedBatch(
                batch=progress.batch,
                rows=progress.rows,
                transactions=progress.transactions,
                recovered=progress.recovered,
                healed=progress.healed,
                began_ms=self._entered[0][1] if self._entered else progress.finished_at_ms,
                phases=phases,
            )
            self._counts.update(
                batches=1,
                recovered=int(progress.recovered),
                transactions=progress.transactions,
                healed=progress.healed,
            )
            self._rows.update(progress.rows)
            for phase, seconds in progress.seconds.items():
                self._phase_s[phase] = self._phase_s.get(phase, 0.0) + seconds
            took_s = progress.total_seconds
            self._batch_s += took_s
            self._within = [
                count + (took_s <= bound) for count, bound in zip(self._within, BATCH_BUCKETS_S, strict=True)
            ]
            if progress.recovered:
                self._note("recovered", progress.batch, f"Batch {progress.batch} was decided before, and is finished.")
            if progress.healed:
                lost = f"{progress.healed} transactions of batch {progress.batch} were lost, and written again."
                self._note("healed", progress.batch, lost)
            return done

    def stopped(self, batch: int, error: SparkonceError) -> None:
        """Takes note that an error has ended the run."""
        with self._changed:
            self._phase, self._since_ms = Phase.STOPPED, self.now_ms()
            kind = type(error).__name__
            self._stops[kind] += 1
            self._note("stopped", batch, f"{kind}: {error.message}", error.next_step)

    def watched(self) -> Watched:
        """Returns the query as it is now."""
        with self._changed:
            state = self._at_work()
            return Watched(
                query=self._query,
                spark_run=self._spark_run,
                name=self.name,
                state=state,
                batch=self._batch,
                phase=Phase.STOPPED if self._has_ended() else self._phase,
                since_ms=self._since_ms,
                last=self._last,
                in_doubt=in_doubt(state),
                totals=Totals(
                    batches=self._counts["batches"],
                    recovered=self._counts["recovered"],
                    transactions=self._counts["transactions"],
                    healed=self._counts["healed"],
                    swept=self._swept_before + self._swept(),
                    rows=dict(self._rows),
                    stops=dict(self._stops),
                    phase_s=dict(self._phase_s),
                    batch_s=self._batch_s,
                    within=tuple(self._within),
                ),
            )

    def _at_work(self) -> State | None:
        """Returns the run's state; of one that an error has ended, the last before."""
        if not self._has_ended():
            self._seen = self._state()
        return self._seen

    def _has_ended(self) -> bool:
        state = self._state()
        return state is not None and state.phase is Phase.STOPPED

    def _note(self, kind: str, batch: int | None, text: str, next_step: str = "") -> None:
        self.events.append(WatchedEvent(at_ms=self.now_ms(), kind=kind, batch=batch, text=text, next_step=next_step))


def in_doubt(state: State | None) -> InDoubt:
    """Returns the transactions that a run has prepared and not finished, by its state."""
    if state is None:
        return InDoubt()
    handles = state.finishing.pending if state.finishing is not None else state.writing.handles if state.writing else ()
    opened = [handle.opened_ms for handle in handles if handle.transaction]
    return InDoubt(transactions=len(opened), opened_ms=min((one for one in opened if one), default=None))


def _lasting(entered: Sequence[tuple[Phase, int]], until_ms: int) -> list[tuple[str, int]]:
    """Returns the phases with the milliseconds that they took; one that follows itself is one."""
    found: list[tuple[str, int]] = []
    ends = [at_ms for _, at_ms in entered[1:]] + [until_ms]
    for (phase, at_ms), end_ms in zip(entered, ends, strict=True):
        if phase is Phase.IDLE:
            continue
        if found and found[-1][0] == phase.value:
            found[-1] = phase.value, found[-1][1] + end_ms - at_ms
        else:
            found.append((phase.value, end_ms - at_ms))
    return found

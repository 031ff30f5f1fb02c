"""Counts what a query does, and provides its current state: its phase, totals and open transactions."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import SparkonceError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase, State
from sparkonce.protocol.view import Claim, LogView

_known: dict[str, Figures] = {}
"""The newest figures of each query that was started in this process, by query id."""

MOST_CHARACTERS = 2000
"""The maximum length of an event's text. An error may quote a row, or list thousands of slots."""

MOST_EVENTS = 100
"""The number of events that are remembered."""

BATCH_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram of batches' wall times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The open transactions.

    Attributes:
        transactions: The number of transactions that are prepared but not finished.
        opened_ms: When the oldest one began, in milliseconds since the epoch; None if there are none. While slots are
            being prepared, the earliest time at which a transaction may have started.
    """

    transactions: int = 0
    opened_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedBatch:
    """A committed batch, with its phases in order.

    Attributes:
        batch: Spark's batch id.
        rows: The number of rows written, by sink.
        transactions: The number of committed transactions.
        recovered: True if the batch was already decided when Spark passed it to this run.
        healed: The number of lost transactions that were rewritten.
        began_ms: When Spark asked for the batch, in milliseconds since the epoch by the driver's clock.
        phases: The batch's phases, each with its duration in milliseconds. A phase may occur several times.
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
        """The wall time of all phases, in milliseconds."""
        return sum(took for _, took in self.phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEvent:
    """An event of interest to operators.

    Attributes:
        at_ms: When the event happened, in milliseconds since the epoch.
        kind: ``started``, ``recovered``, ``healed``, ``swept``, ``stopped`` (by an error) or ``ended`` (normally).
        batch: Spark's batch id; None for an event that is not about a batch.
        text: A sentence.
        next_step: The operator's next step; empty if there is none.
    """

    at_ms: int
    kind: str
    batch: int | None
    text: str
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts since the process began to run the query.

    Attributes:
        batches: The number of committed batches.
        recovered: The number of committed batches that an earlier run had decided.
        transactions: The number of committed transactions.
        healed: The number of lost transactions that were rewritten.
        swept: The number of transactions of losing task attempts or older runs that were aborted.
        rows: The number of rows, by sink.
        stops: The number of runs that ended with an error, by the error's name.
        phase_s: Wall time by phase, in seconds.
        batch_s: Wall time of all batches, in seconds.
        within: For each bound in `BATCH_BUCKETS_S`, the number of batches that took at most that long.
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


class WatchedRun(Protocol):
    """A run of the query, as implemented by `sparkonce.driver.run.RunDriver`."""

    @property
    def state(self) -> State:
        """The coordinator's state."""

    @property
    def swept(self) -> int:
        """The number of transactions that the run has swept."""

    @property
    def opened_s(self) -> float | None:
        """The earliest time (`time.monotonic`) at which the batch may have opened a transaction; None before that."""

    def lifetimes_s(self) -> Mapping[str, float]:
        """Returns how long the transactions of each sink may live, in seconds. Sinks without a timeout are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A query at one moment.

    Attributes:
        query: Spark's query id.
        spark_run: Spark's run id; empty before the run's first batch.
        name: The query's name; empty if it has none.
        state: The coordinator's state; None before the first batch. For a stopped run, the last state before it
            stopped.
        batch: The current batch or, between batches, the last one; None before the first.
        phase: The current phase.
        since_ms: When the query entered the phase, in milliseconds since the epoch.
        phase_age_s: How long the query has been in the phase, in seconds.
        last: The last batch that this process committed; None before the first.
        in_doubt: The open transactions, by sink.
        lifetimes_s: How long transactions may live, in seconds, by sink.
        totals: The counts.
        events: The newest events of the run, oldest first.
    """

    query: str
    spark_run: str
    name: str
    state: State | None
    batch: int | None
    phase: Phase
    since_ms: int
    phase_age_s: float
    last: WatchedBatch | None
    in_doubt: Mapping[str, InDoubt]
    lifetimes_s: Mapping[str, float]
    totals: Totals
    events: Sequence[WatchedEvent]


class Figures:
    """The figures of one query, across all of its runs in this process. Any thread may read them.

    `query` is empty before the query has started, `spark_run` before its first batch, and `name` if the query has none.
    """

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._changed = threading.Lock()
        self.query = self.spark_run = self.name = ""
        self._run: WatchedRun | None = None
        self._seen: State | None = None  # This is the run's last state, which the run forgets when it stops.
        self._lifetimes_s: Mapping[str, float] = {}
        self._end_noted = False
        self._batch: int | None = None
        self._last: WatchedBatch | None = None
        self._counts: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._stops: Counter[str] = Counter()
        self._phase_s: defaultdict[str, float] = defaultdict(float)
        self._within = [0] * len(BATCH_BUCKETS_S)
        self._batch_s = 0.0
        self._swept = self._swept_before = 0
        self._events: deque[WatchedEvent] = deque(maxlen=MOST_EVENTS)
        self._entered: list[tuple[Phase, float]] = []
        self._phase = Phase.IDLE
        self._rest(self._phase)

    @staticmethod
    def known() -> list[Figures]:
        """Returns the figures of all queries that this process has started, including ended ones."""
        return list(_known.values())

    def start(self, query: str, name: str = "") -> None:
        """Records that Spark has started the query."""
        with self._changed:
            _known[query] = self
            self.query, self.name = query, name
            if self._run is None:  # Otherwise, the query's first batch has already started.
                self.spark_run, self._end_noted = "", False
                self._rest(Phase.IDLE)

    def begin_run(self, query: str, spark_run: str, run: WatchedRun) -> None:
        """Starts tracking a new run of the query."""
        with self._changed:
            _known[query] = self
            self._update()
            self._swept_before, self._swept = self._swept_before + self._swept, 0
            self.query, self.spark_run, self._run, self._seen = query, spark_run, run, None
            self._end_noted = False
            self._events.clear()
            self._rest(Phase.IDLE)
            self._note("started", None, f"Run {spark_run} begins.")

    def end_run(self, spark_run: str, failure: str = "") -> None:
        """Records that a run has ended with Spark's error or normally, unless another run has started since then."""
        with self._changed:
            if self.spark_run not in ("", spark_run):
                return
            self._update()
            self._run = None
            if self._seen is not None:
                self._seen = replace(self._seen, view=LogView())  # A view may hold the handles of a hundred batches.
            if self._end_noted:
                return
            self._end_noted = True
            if failure:
                self._stops["StreamingQueryException"] += 1
                self._note("stopped", self._batch, failure)
                self._rest(Phase.STOPPED)
            else:
                self._note("ended", self._batch, "The query has ended.")
                self._rest(Phase.IDLE)

    def enter(self, phase: Phase, batch: int) -> None:
        """Records that a phase begins. IDLE ends a batch."""
        with self._changed:
            if self._phase in (Phase.IDLE, Phase.STOPPED):
                self._entered, self._began_ms = [], self.now_ms()
            self._batch, self._phase, self._since_ms = batch, phase, self.now_ms()
            self._since_s = self._monotonic_s()
            self._entered.append((phase, self._since_s))
            if self._run is not None:
                self._seen = self._run.state
                self._note_swept()

    def done(self, progress: BatchProgress) -> WatchedBatch:
        """Records a committed batch, after all of its phases have been recorded."""
        with self._changed:
            self._last = done = WatchedBatch(
                batch=progress.batch,
                rows=progress.rows,
                transactions=progress.transactions,
                recovered=progress.recovered,
                healed=progress.healed,
                began_ms=self._began_ms,
                phases=_lasting(self._entered, self._monotonic_s()),
            )
            self._counts.update(
                batches=1, recovered=int(progress.recovered), transactions=progress.transactions, healed=progress.healed
            )
            self._rows.update(progress.rows)
            for phase, seconds in progress.seconds.items():
                self._phase_s[phase] += seconds
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
        """Records that an error has ended the run."""
        with self._changed:
            self._update()
            self._rest(Phase.STOPPED)
            kind, self._end_noted = type(error).__name__, True
            self._stops[kind] += 1
            self._note("stopped", batch, f"{kind}: {error.message}", error.next_step)

    def watched(self) -> Watched:
        """Returns the current state of the query."""
        with self._changed:
            self._update()
            seen, writing_since_ms = self._seen, self._writing_since_ms()
            now = Watched(
                query=self.query,
                spark_run=self.spark_run,
                name=self.name,
                state=self._seen,
                batch=self._batch,
                phase=self._phase,
                since_ms=self._since_ms,
                phase_age_s=self._monotonic_s() - self._since_s,
                last=self._last,
                in_doubt={},
                lifetimes_s=self._lifetimes_s,
                totals=Totals(
                    batches=self._counts["batches"],
                    recovered=self._counts["recovered"],
                    transactions=self._counts["transactions"],
                    healed=self._counts["healed"],
                    swept=self._swept_before + self._swept,
                    rows=dict(self._rows),
                    stops=dict(self._stops),
                    phase_s=dict(self._phase_s),
                    batch_s=self._batch_s,
                    within=tuple(self._within),
                ),
                events=tuple(self._events),
            )
        # Do this without holding the lock: there may be thousands of handles.
        return replace(now, in_doubt=in_doubt(seen, writing_since_ms))

    def _writing_since_ms(self) -> int | None:
        opened_s = self._run.opened_s if self._run is not None and self._phase is Phase.WRITING else None
        if opened_s is None:
            return None
        return max(self._since_ms, self.now_ms() - round((self._monotonic_s() - opened_s) * 1000))

    def _rest(self, phase: Phase) -> None:
        """Enters a phase without a current batch."""
        self._phase, self._since_ms, self._since_s = phase, self.now_ms(), self._monotonic_s()
        self._entered, self._began_ms = [], self._since_ms

    def _note_swept(self) -> None:
        swept = 0 if self._run is None else self._run.swept
        if swept > self._swept:
            self._note("swept", None, f"{swept - self._swept} transactions that were left open are aborted.")
            self._swept = swept

    def _update(self) -> None:
        """Reads the run's state. A run that has stopped counts as failed, even if no error was reported."""
        if self._run is None:
            return
        self._note_swept()
        state = self._run.state
        if state.phase is not Phase.STOPPED:
            self._seen, self._lifetimes_s = state, self._run.lifetimes_s()
        elif self._phase is not Phase.STOPPED:
            self._rest(Phase.STOPPED)

    def _note(self, kind: str, batch: int | None, text: str, next_step: str = "") -> None:
        event = WatchedEvent(
            at_ms=self.now_ms(),
            kind=kind,
            batch=batch,
            text=text[:MOST_CHARACTERS],
            next_step=next_step[:MOST_CHARACTERS],
        )
        self._events.append(event)


def _lasting(entered: Sequence[tuple[Phase, float]], until_s: float) -> list[tuple[str, int]]:
    """Returns the phases with their durations in milliseconds. Consecutive entries of the same phase are merged."""
    found: list[tuple[str, float]] = []
    ends = [at_s for _, at_s in entered[1:]] + [until_s]
    for (phase, at_s), end_s in zip(entered, ends, strict=True):
        if phase is Phase.IDLE:
            continue
        if found and found[-1][0] == phase.value:
            found[-1] = phase.value, found[-1][1] + end_s - at_s
        else:
            found.append((phase.value, end_s - at_s))
    return [(phase, round(took_s * 1000)) for phase, took_s in found]


def in_doubt(state: State | None, writing_since_ms: int | None) -> Mapping[str, InDoubt]:
    """Returns a run's open transactions that its state knows about, by sink.

    A slot that is being prepared may have started a transaction since ``writing_since_ms``, in milliseconds since the
    epoch; None if there can be no such transaction.
    """
    # During an abort, nothing is in doubt: whether or not the abort succeeds, the run or the attempt is over.
    if state is None or state.phase is Phase.ABORTING:
        return {}
    handles = dict.fromkeys(handle for handle in _open(state) if handle.transaction)
    is_writing = state.phase is Phase.WRITING and writing_since_ms is not None
    found = {sink: InDoubt(opened_ms=writing_since_ms) for sink in state.transactional if is_writing}
    for handle in handles:
        known = found.get(handle.sink, InDoubt())
        times = [one for one in (known.opened_ms, handle.opened_ms) if one]
        found[handle.sink] = InDoubt(transactions=known.transactions + 1, opened_ms=min(times, default=None))
    return found


def _open(state: State) -> Iterable[Handle]:
    if state.finishing is not None:
        yield from state.finishing.pending
    if state.writing is not None:
        yield from state.writing.handles
    if state.putting is not None and not isinstance(state.putting.record, Claim):
        yield from state.putting.record.handles

"""Numbers a query's batches and events, so that a browser fetches each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkonce.operate.checkpoint import LogEntry
from sparkonce.ui.state import TOLD_WITHIN_MS, sentence
from sparkonce.watch.figures import WatchedBatch, WatchedEvent
from sparkonce.watch.timeline import TimelineSegment

MOST_KEPT = 12_000
"""The number of batches that are retained. A checkpoint's timeline has 10,000."""
MOST_TOLD = 500
"""How many items from the log are remembered until the timeline reports them. A log has about 100 batches."""
BY_THE_LOG = "from the first transaction to the decision, according to the log"
"""The only phase of a batch that is known from the log alone."""
_OF_THE_LOG = {
    "claim": ("started", "Run {run} begins on {host}, according to the log."),
    "amend": ("healed", "Lost transactions of batch {batch} were written again, according to the log."),
    "void": ("void", "Rows of batch {batch} are gone: some of its transactions are void, according to the log."),
}


class _Names:
    """Numbers strings that occur repeatedly."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


class PageTimeline:
    """A query's batches and events, numbered from `first` + 1 to `last`.

    Not thread-safe.
    """

    def __init__(self, last: int = 0) -> None:
        self.first = self.last = last
        self._runs, self._sinks, self._phases = _Names(), _Names(), _Names()
        # Items that were taken from the log, as pairs of a run and either a batch or a kind of event. The run's
        # timeline may report such an item again later.
        self._told: dict[tuple[str, int | str], None] = {}
        self._batches: dict[tuple[Any, ...], list[Any]] = {}  # The keys are the values that identify a batch.
        self._events: dict[tuple[Any, ...], list[Any]] = {}

    def add(self, segments: Sequence[TimelineSegment], entries: Sequence[LogEntry], now_ms: int = 0) -> None:
        """Adds the new items of a timeline and a log, both read at ``now_ms``, in milliseconds since the epoch.

        A batch is taken from the log if it is older than the timeline, or if its run has no timeline or died before it
        wrote the batch to one. The timeline may report a decided batch up to `TOLD_WITHIN_MS` late. An item that was
        taken from the log is not added again if the run's timeline reports it later.
        """
        first = min((one.batch for segment in segments for one in segment.batches), default=None)
        runs = {segment.run for segment in segments}
        written = {one.batch for segment in segments for one in segment.batches}
        newest = entries[-1].run if entries else ""
        claimed_ms = next((one.at_ms for one in entries if one.run == newest), 0)
        left = max((one.batch for one in entries if one.run != newest and one.batch is not None), default=None)
        for entry in entries:
            if entry.kind == "commit" and entry.batch is not None and entry.batch not in written:
                # The newest run's timeline will soon report its own batches, and also the previous run's last batch if
                # the newest run has to finish it.
                is_own = entry.run == newest
                is_told = newest in runs if is_own else entry.batch == left
                is_soon = now_ms - (entry.at_ms if is_own else claimed_ms) < TOLD_WITHIN_MS
                if first is not None and entry.batch >= first and is_told and is_soon:
                    continue
                self._add_batch(entry.run, _of_log(entry), by_log=True)
                self._tell((entry.run, entry.batch))
            if entry.kind in _OF_THE_LOG and entry.run not in runs:
                kind, text = _OF_THE_LOG[entry.kind]
                self._tell((entry.run, kind))
                said = text.format(run=entry.run, host=entry.host or "an unknown host", batch=entry.batch)
                self._add_event(WatchedEvent(at_ms=entry.at_ms, kind=kind, batch=entry.batch, text=said))
        for segment in segments:
            for batch in segment.batches:
                if (segment.run, batch.batch) not in self._told:
                    self._add_batch(segment.run, batch, by_log=False)
            for event in segment.events:
                if event.kind != "started" or (segment.run, event.kind) not in self._told:
                    self._add_event(event)

    def _tell(self, told: tuple[str, int | str]) -> None:
        self._told.setdefault(told)
        if len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]  # Delete the oldest item.

    def newer(self, than: int) -> dict[str, Any]:
        """Returns the batches and events with numbers above this one as plain lists, with the names that they refer to.

        The fields of a batch are: number, run, id, begin, transactions, recovered, healed, 1 if it is known only from
        the log, rows as alternating sinks and counts, and phases as alternating phases and milliseconds. The fields of
        an event are: number, time, kind, batch, text, and next step.
        """
        return {
            "first": self.first,
            "last": self.last,
            "runs": list(self._runs.known),
            "sinks": list(self._sinks.known),
            "phases": list(self._phases.known),
            "batches": [one for one in self._batches.values() if one[0] > than],
            "events": [one for one in self._events.values() if one[0] > than],
        }

    def _add_batch(self, run: str, one: WatchedBatch, *, by_log: bool) -> None:
        key = (run, one.batch, one.began_ms)
        if key in self._batches:
            return
        rows = [part for sink, count in one.rows.items() for part in (self._sinks(sink), count)]
        phases = [part for phase, took_ms in one.phases for part in (self._phases(phase), took_ms)]
        fields = [self._runs(run), one.batch, one.began_ms, one.transactions, int(one.recovered), one.healed]
        self._keep(self._batches, key, [*fields, int(by_log), rows, phases])

    def _add_event(self, one: WatchedEvent) -> None:
        key = (one.at_ms, one.kind, one.batch, one.text)
        if key not in self._events:
            self._keep(self._events, key, [*key, sentence(one.next_step)])

    def _keep(self, entries: dict[tuple[Any, ...], list[Any]], key: tuple[Any, ...], fields: list[Any]) -> None:
        self.last += 1
        entries[key] = [self.last, *fields]
        if len(entries) > MOST_KEPT:
            del entries[next(iter(entries))]  # Delete the oldest entry.


def _of_log(entry: LogEntry) -> WatchedBatch:
    began_ms = min(entry.opened_ms or entry.at_ms, entry.at_ms)
    return WatchedBatch(
        batch=entry.batch if entry.batch is not None else -1,
        rows=entry.rows,
        transactions=sum(entry.transactions.values()),
        recovered=False,
        healed=0,
        began_ms=began_ms,
        phases=[(BY_THE_LOG, entry.at_ms - began_ms)],
    )

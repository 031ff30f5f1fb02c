"""Polls the checkpoints and systems of the page in the background, as long as somebody has the page open.

- `Poller`: polls one checkpoint or system in its own thread, with pauses
- `WatchedCheckpoint`: reads the timeline each time, and the log and Spark's files when file names have changed
- `WatchedSystem`: lists the open transactions, and judges them with their queries' logs
- `PageWatcher`: holds all pollers, and returns the state of the page
"""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sparkonce.decision_log import FOLDER
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.operate.checkpoint import LogEntry, read_checkpoint, read_log_of
from sparkonce.operate.systems import NamedSystem, OperatorFile, SystemKind
from sparkonce.operate.transactions import OpenTransaction, judge, targets_of
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import LogView
from sparkonce.sinks._shared.orphans import Orphan
from sparkonce.sinks.kafka.orphans import HeldPartition, KafkaOrphan, Target, list_blocking, list_held
from sparkonce.storage.files import CheckpointFiles
from sparkonce.ui.state import (
    TOLD_WITHIN_MS,
    CheckpointReading,
    PageState,
    ShownSystem,
    ShownTransaction,
    sentence,
    show_query,
)
from sparkonce.watch.figures import WatchedBatch, WatchedEvent
from sparkonce.watch.timeline import TimelineReader, TimelineSegment

logger = logging.getLogger("sparkonce")

MOST_OF_ITS_TIME = 4
"""The pause after a poll is this many times the poll's duration, to spare a slow store."""

WATCHED_FOR_S = 120.0
"""If the page has sent no request for this long, it counts as closed. Background tabs still send one per minute."""

CHECKPOINTS_EVERY_S, SYSTEMS_EVERY_S = 2.0, 10.0

READ_AGAIN_S = 30.0
"""A checkpoint whose file names are unchanged is read again after this time."""

LOG_WITHIN_S = 20.0
"""How long a verdict waits for the log to be read after the system responded. After that, the verdict uses the last
read."""

MOST_DESCRIBED = 20
"""The number of Kafka's transactions, oldest first, whose partitions are looked up."""

HELD_WITHIN_S = 20.0
"""After this time, the partitions of no more transactions are looked up."""

_SECRET = re.compile(r"pass|secret|token|credential|jaas|key", re.IGNORECASE)

_IN_TEXTS = re.compile(
    r"(?:://[^:/@\s]*:([^@\s]+)@|(?:pass\w*|secret\w*|token\w*|\w*key)\s*=\s*('[^']*'|\"[^\"]*\"|\S+))"
)


class Poller(ABC):
    """Polls one thing repeatedly in its own thread.

    Args:
        every_s: The time between two polls, in seconds.
        now_ms: The clock, in milliseconds since the epoch.
        changed: The condition to notify when a poll has ended. All pollers of a page share it.
    """

    def __init__(self, every_s: float, now_ms: Callable[[], int], changed: threading.Condition) -> None:
        self.every_s, self.now_ms, self.changed = every_s, now_ms, changed
        self.began_ms: int | None = None
        self._polls = 0
        self._wanted_until_s = 0.0
        self._is_closed = False
        self._thread = threading.Thread(target=self._keep_polling, name="sparkonce-page", daemon=True)

    def want(self) -> None:
        """Records that somebody has the page open."""
        with self.changed:
            self._wanted_until_s = time.monotonic() + WATCHED_FOR_S
            if not self._is_closed and not self._thread.is_alive():
                self._thread.start()
            self.changed.notify_all()

    def wait_for_poll(self, timeout_s: float) -> bool:
        """Waits until a poll that begins after this call has ended. Returns False if the timeout comes first."""
        self.want()
        with self.changed:
            number = self.next_poll()
            return self.changed.wait_for(lambda: self.has_polled(number), timeout_s)

    def next_poll(self) -> int:
        """Returns the number of the first poll that begins after this call."""
        with self.changed:
            return self._polls + (1 if self.began_ms is None else 2)

    def has_polled(self, number: int) -> bool:
        """Returns True if the poll with this number has ended."""
        return self._polls >= number

    @property
    def silent_s(self) -> float:
        """How long the current poll has been running, in seconds; 0 if there is none."""
        began_ms = self.began_ms
        return max(0.0, (self.now_ms() - began_ms) / 1000) if began_ms is not None else 0.0

    @abstractmethod
    def poll(self) -> None:
        """Polls once."""

    def close(self) -> None:
        """Ends the thread, after a poll in progress."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()

    def _keep_polling(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._is_closed or time.monotonic() < self._wanted_until_s)
                if self._is_closed:
                    return
                self.began_ms = self.now_ms()
            began_s = time.monotonic()
            self.poll()
            with self.changed:
                self.began_ms = None
                self._polls += 1
                self.changed.notify_all()
            self._pause(max(self.every_s, MOST_OF_ITS_TIME * (time.monotonic() - began_s)))

    def _pause(self, pause_s: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._is_closed, pause_s)


def as_ours(error: Exception, what: str) -> SparkonceError:
    """Converts an error to one with a message and a next step. Names a client's error, but omits its text."""
    if isinstance(error, SparkonceError):
        return error
    if isinstance(error, OSError):
        return SparkonceError(
            f"{what}: {error.strerror or error}.", next_step="Check that it can be reached from here."
        )
    logger.debug("%s", what, exc_info=error)
    return SparkonceError(f"{what}: {type(error).__name__}.", next_step="Check that it can be reached from here.")


class WatchedCheckpoint(Poller):
    """A checkpoint that is polled.

    Args:
        location: The location that the operator passed.
        files: The checkpoint's files.
        every_s: The time between two polls, in seconds.
        now_ms: The clock.
        changed: See `Poller`.
        moved: True to check a start with ``checkpoint_moved=True``.
    """

    def __init__(
        self,
        location: str,
        files: CheckpointFiles,
        every_s: float,
        now_ms: Callable[[], int],
        changed: threading.Condition,
        *,
        moved: bool = False,
    ) -> None:
        super().__init__(every_s, now_ms, changed)
        self._files, self._reader, self._moved = files, TimelineReader(files), moved
        self._timeline = PageTimeline()
        self._last = CheckpointReading(location=location)
        self._names: object = None
        self._query: str | None = None
        self.view: LogView | None = None

    @property
    def last(self) -> CheckpointReading:
        """The checkpoint as it was last read."""
        return replace(self._last, silent_s=self.silent_s)

    def is_of(self, query: str) -> bool:
        """Returns True if the log belongs to the query with this short id."""
        run = self.view.newest_run if self.view is not None else None
        return run is not None and short_query(run.query) == query

    def may_be_of(self, query: str) -> bool:
        """Returns True if the log belongs to the query with this short id, or has not been read yet."""
        return self.is_of(query) or (self.view is None and self._last.error is None)

    def newer(self, than: int) -> dict[str, Any]:
        """Returns the batches and events with numbers above this one; see `PageTimeline.newer`."""
        with self.changed:
            return self._timeline.newer(than)

    def poll(self) -> None:
        """Reads the timeline, and also the log and Spark's files if file names have changed."""
        try:
            polled_ms = self.now_ms()
            segments = self._reader.read()
            found, is_read = self._last, self._last.read_ms or 0
            names = [sorted(self._files.names(one)) for one in (f"{FOLDER}/records", "offsets", "commits")]
            if found.status is None or names != self._names or self.now_ms() - is_read > READ_AGAIN_S * 1000:
                status = read_checkpoint(self._files, moved=self._moved)
                _, self.view, entries = read_log_of(self._files)
                found = replace(found, status=status, entries=entries, read_ms=self.now_ms())
                self._names = names
                if status.query is not None and self._query not in (None, status.query):
                    with self.changed:  # Another query has started in this folder.
                        # The page then fetches the new timeline and drops the old one.
                        self._timeline = PageTimeline(self._timeline.last + 1)
                self._query = status.query or self._query
            segments = [one for one in segments if self._query in (None, one.query)]
            with self.changed:
                self._timeline.add(segments, found.entries, polled_ms)
            self._last = replace(found, segments=segments, error=None, last=self._timeline.last, polled_ms=polled_ms)
        except Exception as error:  # noqa: BLE001 - the page shows any error from the store
            self._names = None
            self._last = replace(self._last, error=as_ours(error, f"{self._last.location!r} cannot be read"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """A query's open transactions on a system, while the query's log has not been read yet.

    Once each checkpoint has completed the poll of this number, its log is newer than the system's answer.
    """

    found: Sequence[Orphan]
    answered_ms: int
    polls: Sequence[int]


class WatchedSystem(Poller):
    """A system whose open transactions are polled. Verdicts on a query's transactions wait only for the query's log."""

    def __init__(
        self,
        system: NamedSystem,
        checkpoints: Sequence[WatchedCheckpoint],
        every_s: float,
        now_ms: Callable[[], int],
        changed: threading.Condition,
    ) -> None:
        super().__init__(every_s, now_ms, changed)
        self._system, self._checkpoints = system, checkpoints
        self._unjudged: dict[str, Unjudged] = {}  # The keys are short query ids.
        # The first value is the time of the system's response.
        self._judged: dict[str, tuple[int, Sequence[OpenTransaction]]] = {}
        self._held: Mapping[str, Sequence[HeldPartition]] = {}
        self._seen_ms: dict[str, int] = {}
        self._answered_ms: int | None = None
        self._error: SparkonceError | None = None

    def shown(self) -> ShownSystem:
        """Returns what is currently known about the system."""
        now_ms, error, held = self.now_ms(), self._error, self._held
        with self.changed:
            judged = list(self._judged.values())
        return ShownSystem(
            name=self._system.name,
            kind=self._system.kind.value,
            answered_ms=self._answered_ms,
            silent_s=self.silent_s,
            error=without_secrets(error.message, self._system) if error is not None else "",
            error_step=without_secrets(sentence(error.next_step), self._system) if error is not None else "",
            open=[
                ShownTransaction.of(one, (now_ms - answered_ms) / 1000, held.get(one.found.name, ()))
                for answered_ms, found in judged
                for one in found
            ],
        )

    def poll(self) -> None:
        """Lists the open transactions. Verdicts follow during the pause, as soon as the logs have been read."""
        try:
            found = self._system.list_open()
            blockers = self._blockers()
            answered_ms, polls = self.now_ms(), [one.next_poll() for one in self._checkpoints]
            held = {one.name: parts for one, parts in blockers}
            self._held = held | self._held_by([one for one in found if one.name not in held])
            listed = {one.name for one in found}
            found += [one for one, _ in blockers if one.name not in listed]
            self._answered_ms, self._error = answered_ms, None
        except Exception as error:  # noqa: BLE001 - the page shows any error from the client
            self._error = as_ours(error, f"System {self._system.name!r} cannot be queried")
            return
        theirs: dict[str, list[Orphan]] = {}
        for one in found:
            theirs.setdefault(one.query, []).append(one)
        # Keep transactions that are still waiting for a verdict. If every listing replaced the previous one, a log that
        # is slow to read would never produce a verdict in time.
        self._unjudged = {
            query: self._unjudged.get(query) or Unjudged(found=of_query, answered_ms=answered_ms, polls=polls)
            for query, of_query in theirs.items()
        }
        with self.changed:
            self._judged = {query: known for query, known in self._judged.items() if query in theirs}

    def _pause(self, pause_s: float) -> None:
        until_s = time.monotonic() + pause_s
        while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
            with self.changed:
                self.changed.wait_for(lambda: self._is_closed or self._with_logs(), left_s)
            for query in self._with_logs():
                self._judge(query, self._unjudged.pop(query))

    def _with_logs(self) -> Sequence[str]:
        """Returns the queries whose log was read after the system responded, or whose log has taken too long."""
        return [query for query, one in self._unjudged.items() if self._has_log(query, one)]

    def _has_log(self, query: str, waits: Unjudged) -> bool:
        if not query or self.now_ms() - waits.answered_ms > LOG_WITHIN_S * 1000:
            return True  # A transaction without a query belongs to another application.
        return all(
            one.has_polled(number) or one.silent_s > LOG_WITHIN_S
            for one, number in zip(self._checkpoints, waits.polls, strict=True)
            if one.may_be_of(query)
        )

    def _judge(self, query: str, waits: Unjudged) -> None:
        views = [one.view for one in self._checkpoints if one.view is not None and one.is_of(query)]
        newest = max(views, key=lambda view: view.end, default=None)  # There may be several copies of a checkpoint.
        judged = [judge(self._system.name, one, newest) for one in waits.found]
        with self.changed:
            self._judged[query] = (waits.answered_ms, judged)

    def _blockers(self) -> list[tuple[KafkaOrphan, Sequence[HeldPartition]]]:
        """Lists the open transactions of all applications in the topics of the page's queries."""
        views = [one.view for one in self._checkpoints if one.view is not None]
        targets = set[Target]().union(*map(targets_of, views))
        if self._system.kind is not SystemKind.KAFKA or not targets:
            return []
        blockers = list_blocking(self._system.settings, targets).found
        now_ms = self.now_ms()
        self._seen_ms = {one.orphan.name: self._seen_ms.get(one.orphan.name, now_ms) for one in blockers}
        return [  # An unknown age counts from the time when the page first saw the transaction.
            (
                replace(one.orphan, age_s=max(one.orphan.age_s, (now_ms - self._seen_ms[one.orphan.name]) / 1000)),
                one.partitions,
            )
            for one in blockers
        ]

    def _held_by(self, found: Sequence[Orphan]) -> dict[str, Sequence[HeldPartition]]:
        """Lists the partitions of Kafka's oldest transactions. Leaves out partitions that cannot be determined."""
        held: dict[str, Sequence[HeldPartition]] = {}
        give_up_at_s = time.monotonic() + HELD_WITHIN_S
        for one in found[:MOST_DESCRIBED]:
            if isinstance(one, KafkaOrphan) and time.monotonic() < give_up_at_s:
                with suppress(SparkonceError):
                    held[one.name] = list_held(self._system.settings, one)
        return held


def without_secrets(text: str, system: NamedSystem) -> str:
    """Redacts anything in a message that may be a secret from a system's settings.

    This is only a precaution, since messages should not contain secrets.
    """
    settings = system.settings
    pairs = settings.items() if isinstance(settings, Mapping) else []
    found = [str(value) for name, value in pairs if _SECRET.search(name)]
    for one in [settings] if isinstance(settings, str) else [str(value) for _, value in pairs]:
        found += [part.strip("'\"") for match in _IN_TEXTS.finditer(one) for part in match.groups() if part]
    for secret in sorted(filter(None, found), key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


class PageWatcher:
    """All checkpoints and systems of the page.

    Args:
        checkpoints: The files of the checkpoints, by the locations that the operator passed.
        file: The operator's file.
        moved: True to check starts with ``checkpoint_moved=True``.
        now_ms: The clock, in milliseconds since the epoch.
        checkpoints_every_s: The time between two polls of a checkpoint, in seconds.
        systems_every_s: The time between two polls of a system, in seconds.
    """

    def __init__(
        self,
        checkpoints: Mapping[str, CheckpointFiles],
        file: OperatorFile,
        *,
        moved: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        checkpoints_every_s: float = CHECKPOINTS_EVERY_S,
        systems_every_s: float = SYSTEMS_EVERY_S,
    ) -> None:
        self._now_ms, self._config, self._moved = now_ms, file.path, moved
        changed = threading.Condition()
        self.checkpoints = [
            WatchedCheckpoint(location, files, checkpoints_every_s, now_ms, changed, moved=moved)
            for location, files in checkpoints.items()
        ]
        self.systems = [
            WatchedSystem(one, self.checkpoints, systems_every_s, now_ms, changed) for one in file.systems.values()
        ]

    def state(self) -> PageState:
        """Returns what is currently known without waiting, and requests new polls."""
        for one in (*self.checkpoints, *self.systems):
            one.want()
        now_ms = self._now_ms()
        return PageState(
            now_ms=now_ms,
            queries=[show_query(one.last, now_ms) for one in self.checkpoints],
            systems=[one.shown() for one in self.systems],
            config=self._config,
            moved=self._moved,
        )

    def close(self) -> None:
        """Ends the polls."""
        for one in (*self.checkpoints, *self.systems):
            one.close()

    def refuse_what_is_no_checkpoint(self, timeout_s: float) -> None:
        """Waits for the first poll of each checkpoint; raises ConfigurationError if a folder is not a checkpoint.

        A store that does not respond in time is not an error here: the page shows it.
        """
        for one in self.checkpoints:
            if one.wait_for_poll(timeout_s) and isinstance(one.last.error, ConfigurationError):
                raise one.last.error


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
        # Items that came from the log, as pairs of a run and either a batch or a kind of event. The run's timeline may
        # report them again later.
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

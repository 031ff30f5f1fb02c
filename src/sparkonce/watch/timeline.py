"""The newest batches and events of a query, stored in its checkpoint next to the log, for any process to read.

The guarantee does not depend on the timeline. A thread writes the timeline in the background, and drops entries that
cannot be written.

Layout, under ``<checkpoint>/sparkonce``::

    timeline/00000000000000000007-ab12cd34.000000003.json    a segment: run 7-ab12cd34, part 3

A segment has at most `BATCHES_A_SEGMENT` batches. A run's newest segment is rewritten when there is news, but at most
every `WRITTEN_EVERY_S` seconds on a disk and every `STORED_EVERY_S` seconds in a store. The newest segment is also
rewritten once a minute without news. Older segments do not change. The newest `SEGMENTS_KEPT` segments of all runs are
retained.
"""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkonce.decision_log import FOLDER
from sparkonce.protocol.ownership import Token
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.watch.figures import Figures, InDoubt, Watched, WatchedBatch, WatchedEvent

logger = logging.getLogger("sparkonce")

BATCHES_A_SEGMENT = 250
SEGMENTS_KEPT = 40
"""Enough for the newest 10,000 batches, or fewer if runs are short."""
WRITTEN_EVERY_S = 5.0
STORED_EVERY_S = 15.0
"""The time between two writes to a store, where every write costs money, and is retained if the bucket is versioned."""
FORMAT = 1
_SUBFOLDER = "timeline"
_CLOSED_WITHIN_S = 5.0
_HEARTBEAT_S = 60.0
"""The timeline is also written this often without news, so that readers know that the driver is alive."""
_SILENT_MS = 3 * int(_HEARTBEAT_S) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run at the time when its newest segment was written. Times are in milliseconds since the epoch.

    Between batches, `batch` is the last one; it is None before the first. `in_doubt` has the transactions that were
    prepared but not finished.
    """

    written_ms: int
    batch: int | None
    phase: str
    since_ms: int
    in_doubt: InDoubt


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSegment:
    """A part of a run's timeline.

    Attributes:
        run: The run's token, as ``position-nonce``.
        number: The segment's number within the run, from 0.
        query: Spark's query id.
        spark_run: Spark's run id.
        name: The query's name; empty if it has none.
        host: The driver's host.
        timeout_ms: How long the transactions of each sink may live. Sinks without a timeout are left out.
        now: The run at the time when the segment was written.
        batches: Committed batches, oldest first.
        events: The run's newest events at that time, oldest first.
    """

    run: str
    number: int
    query: str
    spark_run: str
    name: str
    host: str
    timeout_ms: Mapping[str, int]
    now: RunNow
    batches: Sequence[WatchedBatch] = ()
    events: Sequence[WatchedEvent] = field(default=())

    def encoded(self) -> bytes:
        """Serializes the segment as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, data: bytes) -> TimelineSegment | None:
        """Deserializes a segment. Returns None if it has a different format or is damaged."""
        try:
            plain: dict[str, Any] = json.loads(data)
            if plain.pop("format") != FORMAT:
                return None
            int(plain["run"].partition("-")[0])
            now = plain.pop("now")
            return cls(
                **{
                    **plain,
                    "now": RunNow(**{**now, "in_doubt": InDoubt(**now["in_doubt"])}),
                    "batches": [
                        WatchedBatch(**{**one, "phases": [(str(name), int(ms)) for name, ms in one["phases"]]})
                        for one in plain["batches"]
                    ],
                    "events": [WatchedEvent(**one) for one in plain["events"]],
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class TimelineWriter:
    """Writes the timeline of one run in a background thread, or nothing if there are no files.

    The time ``every_s`` between two writes defaults to a value that suits the store.
    """

    def __init__(
        self, files: CheckpointFiles | None, figures: Figures, spark_run: str, *, every_s: float | None = None
    ) -> None:
        self._files = files and files.inside(FOLDER)
        self._figures = figures
        self._spark_run = spark_run
        is_local = isinstance(files, LocalFiles)
        self._every_s = every_s if every_s is not None else WRITTEN_EVERY_S if is_local else STORED_EVERY_S
        self._changed = threading.Condition()
        self._batches: deque[WatchedBatch] = deque(maxlen=BATCHES_A_SEGMENT * SEGMENTS_KEPT)
        self._number = 0
        self._is_new = self._is_closed = self._said = self._has_begun = False
        self._thread: threading.Thread | None = None

    def add(self, batch: WatchedBatch) -> None:
        """Adds a committed batch, which is written soon."""
        if self._files is None:
            return
        with self._changed:
            self._batches.append(batch)
        self.tell()

    def tell(self) -> None:
        """Signals news, such as a new phase. Does nothing while earlier news is still waiting to be written."""
        if self._files is None or self._is_new:
            return
        with self._changed:
            self._is_new = True
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(
                    target=self._keep_writing, args=(self._files,), name="sparkonce-timeline", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # No more threads can be started, or the interpreter is exiting.
                    self._is_closed = True
                    logger.warning("The timeline is not written: %s", error)
                    return
                self._thread = thread
            self._changed.notify_all()

    def close(self, spark_run: str | None = None) -> None:
        """Writes the run's end, and ends the thread. Waits a few seconds at most, even if the store takes longer.

        If ``spark_run`` is not None, closes only the timeline of that run.
        """
        if spark_run not in (None, self._spark_run):
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSED_WITHIN_S)

    def _keep_writing(self, files: CheckpointFiles) -> None:
        is_closed = False
        while not is_closed:
            with self._changed:
                self._changed.wait_for(lambda: self._is_new or self._is_closed, _HEARTBEAT_S)
                self._is_new, is_closed = False, self._is_closed
            try:
                if not self._write(files):
                    continue  # The timeline is written once the run has claimed the log.
            except Exception as error:  # noqa: BLE001 - no error from the store may affect the query
                level = logging.DEBUG if self._said else logging.WARNING
                logger.log(level, "The timeline in %s cannot be written: %s", files.location, error)
                self._said = self._is_new = True
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._every_s)

    def _write(self, files: CheckpointFiles) -> bool:
        """Writes the newest segment and any full ones before it. Returns False if there is nothing to write yet."""
        now = self._figures.watched()
        if now.spark_run != self._spark_run or now.state is None or (token := now.state.token) is None:
            return False  # The run has not claimed the log yet, or was superseded.
        if not self._has_begun:
            _forget_old(files)
            self._has_begun = True
        while True:
            with self._changed:
                batches = tuple(itertools.islice(self._batches, BATCHES_A_SEGMENT))
            segment = self._segment(now, token, batches)
            name = f"{token.position:020d}-{token.nonce}.{self._number:09d}.json"
            files.replace(f"{_SUBFOLDER}/{name}", segment.encoded())
            if len(batches) < BATCHES_A_SEGMENT:
                return True
            with self._changed:
                for _ in batches:
                    self._batches.popleft()
            self._number += 1
            _forget_old(files)

    def _segment(self, now: Watched, token: Token, batches: Sequence[WatchedBatch]) -> TimelineSegment:
        opened = [one.opened_ms for one in now.in_doubt.values() if one.opened_ms is not None]
        return TimelineSegment(
            run=f"{token.position}-{token.nonce}",
            number=self._number,
            query=now.query,
            spark_run=now.spark_run,
            name=now.name,
            host=socket.gethostname(),
            timeout_ms={name: int(life_s * 1000) for name, life_s in now.lifetimes_s.items()},
            now=RunNow(
                written_ms=self._figures.now_ms(),
                batch=now.batch,
                phase=now.phase.value,
                since_ms=now.since_ms,
                in_doubt=InDoubt(
                    transactions=sum(one.transactions for one in now.in_doubt.values()),
                    opened_ms=min(opened, default=None),
                ),
            ),
            batches=batches,
            events=now.events,
        )


class TimelineReader:
    """Reads the timeline of a checkpoint repeatedly. Segments that no longer change are read only once."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files.inside(FOLDER)
        self._last: dict[str, TimelineSegment] = {}  # The values are segments that no longer change.

    def read(self) -> Sequence[TimelineSegment]:
        """Returns the segments, oldest first. Segments that are damaged or in a newer version's format are left out."""
        names = sorted(name for name in self._files.names(_SUBFOLDER) if name.endswith(".json"))
        found: dict[str, TimelineSegment] = {}
        for name in names:
            if (segment := self._last.get(name)) is None:
                data = self._files.read(f"{_SUBFOLDER}/{name}")
                segment = TimelineSegment.decoded(data) if data is not None else None
            if segment is not None:
                found[name] = segment
        newest_ms = max((segment.now.written_ms for segment in found.values()), default=0)
        self._last = {
            name: found[name]
            for name, following in zip(names, [*names, ""][1:], strict=True)
            if name in found
            and following
            and (_run_in(name) == _run_in(following) or newest_ms - found[name].now.written_ms > _SILENT_MS)
        }
        return list(found.values())


def _forget_old(files: CheckpointFiles) -> None:
    """Deletes the oldest segments, to make room for one more."""
    files.tidy(_SUBFOLDER)
    names = sorted(files.names(_SUBFOLDER))
    files.delete([f"{_SUBFOLDER}/{name}" for name in names[: 1 - SEGMENTS_KEPT]])


def _run_in(name: str) -> str:
    return name.partition(".")[0]

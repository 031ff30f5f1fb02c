"""The newest batches and events of a query, in its checkpoint beside the log, for any process that looks at it.

Nothing of the guarantee depends on it: it is written in the background, and what cannot be written is left out.

Layout, under ``<checkpoint>/sparkonce``::

    timeline/00000000000000000007-ab12cd34.000003.json    a segment: run 7-ab12cd34, its part 3

A segment has at most `BATCHES_A_SEGMENT` batches. The newest of a run is replaced whenever there is news, every
`WRITTEN_EVERY_S` at most; the others stay as they are. The newest `SEGMENTS_KEPT` are kept, of all runs together.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.log.base import FOLDER
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim
from sparkonce.watch.figures import Figures, InDoubt, Watched, WatchedBatch, WatchedEvent

logger = logging.getLogger("sparkonce")

BATCHES_A_SEGMENT = 250
SEGMENTS_KEPT = 40
"""The newest 10,000 batches are there."""
WRITTEN_EVERY_S = 5.0
FORMAT = 1
_SUBFOLDER = "timeline"
_CLOSED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run at the moment when its newest segment was written.

    Attributes:
        written_ms: That moment, in milliseconds since the epoch.
        batch: The batch at work, or else the last one; None before the first.
        phase: The phase.
        since_ms: When it entered the phase.
        in_doubt: What was prepared and not finished.
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
        number: The part's number, from 0.
        query: Spark's query id.
        spark_run: Spark's run id.
        name: The query's name; empty without one.
        host: The driver's host.
        timeout_ms: How long the transactions of each sink may live; without those that do not time out.
        now: The run when this was written.
        batches: Committed batches, oldest first.
        events: The run's newest events when this was written, oldest first.
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
        """Returns it as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, data: bytes) -> TimelineSegment | None:
        """Reads it from JSON; None if it is of another format, or damaged: others may still be read."""
        try:
            plain: dict[str, Any] = json.loads(data)
            if plain.pop("format") != FORMAT:
                return None
            now = plain.pop("now")
            return cls(
                **{
                    **plain,
                    "now": RunNow(**{**now, "in_doubt": InDoubt(**now["in_doubt"])}),
                    "batches": [WatchedBatch(**one) for one in plain["batches"]],
                    "events": [WatchedEvent(**one) for one in plain["events"]],
                }
            )
        except (ValueError, TypeError, KeyError):
            return None


class TimelineWriter:
    """Writes the timeline of one run, in a thread of its own.

    Args:
        files: The query's checkpoint; None to write nothing.
        figures: The query's figures.
        every_s: The time between two writes.
    """

    def __init__(self, files: CheckpointFiles | None, figures: Figures, *, every_s: float = WRITTEN_EVERY_S) -> None:
        self._files = files and files.inside(FOLDER)
        self._figures = figures
        self._every_s = every_s
        self._changed = threading.Condition()
        self._pending: deque[WatchedBatch] = deque()
        self._batches: list[WatchedBatch] = []
        self._number = 0
        self._is_new = self._is_closed = False
        self._said = self._has_begun = False
        self._thread: threading.Thread | None = None

    def add(self, batch: WatchedBatch) -> None:
        """Takes a committed batch, which is written soon."""
        if self._files is None:
            return
        with self._changed:
            self._pending.append(batch)
        self.tell()

    def tell(self) -> None:
        """Notes that there is news, such as another phase."""
        if self._files is None:
            return
        with self._changed:
            self._is_new = True
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._keep_writing, args=(self._files,), name="sparkonce-timeline", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Writes what is new, and ends the thread: a store that is away may take longer than it waits, some seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSED_WITHIN_S)

    def _keep_writing(self, files: CheckpointFiles) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_new or self._is_closed)
                if not self._is_new:
                    return
                self._is_new = False
            try:
                self._write(files)
            except Exception as error:  # noqa: BLE001 - of any store: the query must not depend on it
                level = logging.DEBUG if self._said else logging.WARNING
                logger.log(level, "The timeline in %s cannot be written: %s", files.location, error)
                self._said = True
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._every_s)

    def _write(self, files: CheckpointFiles) -> None:
        """Writes the newest segment, and those that are full before it."""
        now = self._figures.watched()
        if now.state is None or (token := now.state.token) is None:
            return  # it has claimed nothing yet
        if not self._has_begun:
            _forget_old(files)
            self._has_begun = True
        with self._changed:
            self._batches += self._pending
            self._pending.clear()
        while True:
            segment = self._segment(now, now.state.claim, token, self._batches[:BATCHES_A_SEGMENT])
            files.replace(_path(segment.run, self._number), segment.encoded())
            if len(self._batches) < BATCHES_A_SEGMENT:
                break
            del self._batches[:BATCHES_A_SEGMENT]
            self._number += 1
            _forget_old(files)

    def _segment(self, now: Watched, claim: Claim, token: Token, batches: Sequence[WatchedBatch]) -> TimelineSegment:
        timeouts = {name: dict(facts).get("transaction_timeout_ms") for name, facts in claim.sinks}
        return TimelineSegment(
            run=f"{token.position}-{token.nonce}",
            number=self._number,
            query=now.query,
            spark_run=now.spark_run,
            name=now.name,
            host=socket.gethostname(),
            timeout_ms={name: int(timeout) for name, timeout in timeouts.items() if timeout},
            now=RunNow(
                written_ms=self._figures.now_ms(),
                batch=now.batch,
                phase=now.phase.value,
                since_ms=now.since_ms,
                in_doubt=now.in_doubt,
            ),
            batches=tuple(batches),
            events=tuple(self._figures.events),
        )


class TimelineReader:
    """Reads the timeline of a checkpoint again and again, and each segment that no longer changes only once.

    Args:
        files: The query's checkpoint.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files.inside(FOLDER)
        self._last: dict[str, TimelineSegment] = {}  # what was behind another one when it was read

    def read(self) -> Sequence[TimelineSegment]:
        """Returns the segments, oldest first. Leaves out one that is damaged, or of a newer version's format.

        Raises:
            OSError: if the checkpoint's store cannot be read.
        """
        names = sorted(name for name in self._files.names(_SUBFOLDER) if name.endswith(".json"))
        found: dict[str, TimelineSegment] = {}
        for name in names:
            if (segment := self._last.get(name)) is None:
                data = self._files.read(f"{_SUBFOLDER}/{name}")
                segment = TimelineSegment.decoded(data) if data is not None else None
            if segment is not None:
                found[name] = segment
        self._last = {name: found[name] for name in names[:-1] if name in found}
        return list(found.values())


def _forget_old(files: CheckpointFiles) -> None:
    names = sorted(files.names(_SUBFOLDER))
    files.delete([f"{_SUBFOLDER}/{name}" for name in names[:-SEGMENTS_KEPT]])


def _path(run: str, number: int) -> str:
    position, _, nonce = run.partition("-")
    return f"{_SUBFOLDER}/{int(position):020d}-{nonce}.{number:06d}.json"

"""Reads a checkpoint of the page: its timeline at each look, log and Spark's files when their names have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.log.base import FOLDER
from sparkonce.operate.checkpoint import read_checkpoint, read_log_of
from sparkonce.page.kept import KeptTimeline
from sparkonce.page.looks import PageLook, as_ours
from sparkonce.page.state import Look
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import LogView
from sparkonce.watch.timeline import TimelineReader

READ_AGAIN_S = 30.0
"""A checkpoint whose files have the same names is read again after this time."""


class WatchedCheckpoint(PageLook):
    """A checkpoint, read again and again.

    Args:
        location: As the operator gave it.
        files: Its files.
        every_s: The time between two looks.
        now_ms: The clock.
        changed: See `PageLook`.
        moved: True to ask about a start with ``checkpoint_moved=True``.
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
        self._kept = KeptTimeline()
        self._last = Look(location=location)
        self._names: object = None
        self._query: str | None = None
        self.view: LogView | None = None

    @property
    def last(self) -> Look:
        """The last look."""
        return replace(self._last, silent_s=self.silent_s)

    def is_of(self, query: str) -> bool:
        """Tells if its log is that of a query, by the short form of its id."""
        run = self.view.newest_run if self.view is not None else None
        return run is not None and short_query(run.query) == query

    def may_be_of(self, query: str) -> bool:
        """Tells the same, also if its first look has not ended."""
        return self.is_of(query) or (self.view is None and self._last.error is None)

    def newer(self, than: int) -> dict[str, Any]:
        """Returns the batches and events with numbers above one. See `KeptTimeline.newer`."""
        with self.changed:
            return self._kept.newer(than)

    def look(self) -> None:
        """Reads its timeline, and its log and Spark's files if their names have changed."""
        try:
            looked_ms = self.now_ms()
            segments = self._reader.read()
            found, is_read = self._last, self._last.read_ms or 0
            names = [sorted(self._files.names(one)) for one in (f"{FOLDER}/records", "offsets", "commits")]
            if found.status is None or names != self._names or self.now_ms() - is_read > READ_AGAIN_S * 1000:
                status = read_checkpoint(self._files, moved=self._moved)
                _, self.view, entries = read_log_of(self._files)
                found = replace(found, status=status, entries=entries, read_ms=self.now_ms())
                self._names = names
                if status.query is not None and self._query not in (None, status.query):
                    with self.changed:  # somebody has begun anew in this folder
                        self._kept = KeptTimeline(self._kept.last + 1)  # so that the page asks, and forgets the other
                self._query = status.query or self._query
            segments = [one for one in segments if self._query in (None, one.query)]
            with self.changed:
                self._kept.add(segments, found.entries, looked_ms)
            self._last = replace(found, segments=segments, error=None, last=self._kept.last, looked_ms=looked_ms)
        except Exception as error:  # noqa: BLE001 - of any store: the page shows it
            self._names = None
            self._last = replace(self._last, error=as_ours(error, f"{self._last.location!r} cannot be read"))

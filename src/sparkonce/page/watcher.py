"""Reads checkpoints and systems in the background, as long as somebody looks at the page."""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.log.base import FOLDER
from sparkonce.operate.checkpoint import read_checkpoint, read_log_of
from sparkonce.operate.systems import NamedSystem, OperatorFile
from sparkonce.operate.transactions import OpenTransaction, judge
from sparkonce.page.kept import KeptTimeline
from sparkonce.page.state import Look, PageState, ShownSystem, ShownTransaction, sentence, show_query
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import LogView
from sparkonce.sinks._shared.orphans import Orphan
from sparkonce.sinks.kafka.orphans import HeldPartition, KafkaOrphan, list_held
from sparkonce.watch.timeline import TimelineReader

logger = logging.getLogger("sparkonce")

CHECKPOINTS_EVERY_S, SYSTEMS_EVERY_S = 2.0, 10.0
MOST_OF_ITS_TIME = 4
"""A look is followed by a pause of so many times its own length, so that a slow store is spared."""
LOOKED_AT_FOR_S = 120.0
"""The page is taken to be closed when it has not asked for so long. Browsers ask once a minute in the background."""
READ_AGAIN_S = 30.0
"""A checkpoint whose files have the same names is read again after this time."""
LOG_WITHIN_S = 20.0
"""A verdict waits so long for a log that is read after the systems were asked; else the last reading counts."""
MOST_DESCRIBED = 20
"""The number of transactions of Kafka, the oldest, whose partitions are asked for."""
_SECRET = re.compile(r"pass|secret|token|credential|jaas|key", re.IGNORECASE)
_IN_TEXTS = re.compile(
    r"(?:://[^:/@\s]*:([^@\s]+)@|(?:pass\w*|secret\w*|token\w*|\w*key)\s*=\s*('[^']*'|\"[^\"]*\"|\S+))"
)


class PageLook(ABC):
    """Looks at one thing again and again, in a thread of its own.

    Args:
        every_s: The time between two looks.
        now_ms: The clock.
    """

    def __init__(self, every_s: float, now_ms: Callable[[], int]) -> None:
        self.every_s, self.now_ms = every_s, now_ms
        self.changed = threading.Condition()
        self.began_ms: int | None = None
        self._looks = 0
        self._wanted_until_s = 0.0
        self._is_closed = False
        self._thread = threading.Thread(target=self._keep_looking, name="sparkonce-page", daemon=True)

    def want(self) -> None:
        """Notes that somebody looks at the page."""
        with self.changed:
            self._wanted_until_s = time.monotonic() + LOOKED_AT_FOR_S
            if not self._is_closed and not self._thread.is_alive():
                self._thread.start()
            self.changed.notify_all()

    def wait_for_look(self, timeout_s: float) -> bool:
        """Waits until a look that begins from now on has ended. Returns False if none has within the time."""
        self.want()
        with self.changed:
            wanted = self._looks + (1 if self.began_ms is None else 2)
            return self.changed.wait_for(lambda: self._looks >= wanted, timeout_s)

    @property
    def silent_s(self) -> float:
        """The time that the look under way takes already; 0 if there is none."""
        began_ms = self.began_ms
        return max(0.0, (self.now_ms() - began_ms) / 1000) if began_ms is not None else 0.0

    @abstractmethod
    def look(self) -> None:
        """Looks once."""

    def close(self) -> None:
        """Ends the thread, after a look that is under way."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()

    def _keep_looking(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._is_closed or time.monotonic() < self._wanted_until_s)
                if self._is_closed:
                    return
                self.began_ms = self.now_ms()
            began_s = time.monotonic()
            self.look()
            with self.changed:
                self.began_ms = None
                self._looks += 1
                self.changed.notify_all()
                pause_s = max(self.every_s, MOST_OF_ITS_TIME * (time.monotonic() - began_s))
                self.changed.wait_for(lambda: self._is_closed, pause_s)


class WatchedCheckpoint(PageLook):
    """A checkpoint, read again and again.

    Args:
        location: As the operator gave it.
        files: Its files.
        every_s: The time between two looks.
        now_ms: The clock.
    """

    def __init__(self, location: str, files: CheckpointFiles, every_s: float, now_ms: Callable[[], int]) -> None:
        super().__init__(every_s, now_ms)
        self._files, self._reader = files, TimelineReader(files)
        self._kept = KeptTimeline()
        self._last = Look(location=location)
        self._names: object = None
        self.view: LogView | None = None

    @property
    def last(self) -> Look:
        """The last look."""
        return replace(self._last, silent_s=self.silent_s)

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
                status = read_checkpoint(self._files)
                _, self.view, entries = read_log_of(self._files)
                is_another = found.status is not None and found.status.query not in (None, status.query)
                found = replace(found, status=status, entries=entries, read_ms=self.now_ms())
                self._names = names
                if is_another:  # somebody has begun anew in this folder
                    with self.changed:
                        self._kept = KeptTimeline(self._kept.last)
            with self.changed:
                self._kept.add(segments, found.entries)
            self._last = replace(found, segments=segments, error=None, last=self._kept.last, looked_ms=looked_ms)
        except Exception as error:  # noqa: BLE001 - of any store: the page shows it
            self._names = None
            self._last = replace(self._last, error=_as_ours(error, f"{self._last.location!r} cannot be read"))


class WatchedSystem(PageLook):
    """A system, asked again and again what it has open.

    Args:
        system: The system.
        view_of: Returns the newest log of a query by the short form of its id, read after this call.
        every_s: The time between two looks.
        now_ms: The clock.
    """

    def __init__(
        self, system: NamedSystem, view_of: Callable[[str], LogView | None], every_s: float, now_ms: Callable[[], int]
    ) -> None:
        super().__init__(every_s, now_ms)
        self._system, self._view_of = system, view_of
        self._found: Sequence[tuple[OpenTransaction, Sequence[HeldPartition]]] = ()
        self._answered_ms: int | None = None
        self._error: SparkonceError | None = None

    def shown(self) -> ShownSystem:
        """Returns what is known of it now."""
        since_s = (self.now_ms() - self._answered_ms) / 1000 if self._answered_ms is not None else 0.0
        error = self._error
        return ShownSystem(
            name=self._system.name,
            kind=self._system.kind.value,
            answered_ms=self._answered_ms,
            silent_s=self.silent_s,
            error=without_secrets(error.message, self._system) if error is not None else "",
            error_step=without_secrets(sentence(error.next_step), self._system) if error is not None else "",
            open=[ShownTransaction.of(one, since_s, held) for one, held in self._found],
        )

    def look(self) -> None:
        """Asks it, and then the logs."""
        try:
            found = self._system.list_open()
            answered_ms = self.now_ms()
            self.began_ms = None  # it has answered, and what follows may wait for a log
            held = self._held(found)
            views = {query: self._view_of(query) for query in {one.query for one in found}}
            judged = [judge(self._system.name, one, views[one.query]) for one in found]
            self._found = [(one, held.get(one.found.name, ())) for one in judged]
            self._answered_ms, self._error = answered_ms, None
        except Exception as error:  # noqa: BLE001 - of any client: the page shows it
            self._error = _as_ours(error, f"System {self._system.name!r} cannot be asked")

    def _held(self, found: Sequence[Orphan]) -> dict[str, Sequence[HeldPartition]]:
        """Asks for the partitions of the oldest transactions of Kafka; those that cannot be told are left out."""
        held: dict[str, Sequence[HeldPartition]] = {}
        with suppress(SparkonceError):
            for one in found[:MOST_DESCRIBED]:
                if isinstance(one, KafkaOrphan):
                    held[one.name] = list_held(self._system.settings, one)
        return held


class PageWatcher:
    """All checkpoints and systems of the page.

    Args:
        checkpoints: Their files, by the locations that the operator gave.
        file: The operator's file.
        now_ms: The clock.
        checkpoints_every_s: The time between two looks at a checkpoint.
        systems_every_s: The time between two looks at a system.
    """

    def __init__(
        self,
        checkpoints: Mapping[str, CheckpointFiles],
        file: OperatorFile,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        checkpoints_every_s: float = CHECKPOINTS_EVERY_S,
        systems_every_s: float = SYSTEMS_EVERY_S,
    ) -> None:
        self._now_ms, self._config = now_ms, file.path
        self.checkpoints = [
            WatchedCheckpoint(location, files, checkpoints_every_s, now_ms) for location, files in checkpoints.items()
        ]
        self.systems = [WatchedSystem(one, self._view_of, systems_every_s, now_ms) for one in file.systems.values()]

    def state(self) -> PageState:
        """Returns what is known now, without waiting, and has everything looked at again soon."""
        for one in (*self.checkpoints, *self.systems):
            one.want()
        now_ms = self._now_ms()
        return PageState(
            now_ms=now_ms,
            queries=[show_query(one.last, now_ms) for one in self.checkpoints],
            systems=[one.shown() for one in self.systems],
            config=self._config,
        )

    def close(self) -> None:
        """Ends the looks."""
        for one in (*self.checkpoints, *self.systems):
            one.close()

    def refuse_what_is_no_checkpoint(self, timeout_s: float) -> None:
        """Waits for the first look at each checkpoint, and raises the error of one that is none.

        A store that does not answer in time is no error here: the page shows it.

        Raises:
            ConfigurationError: if a folder is not a checkpoint.
        """
        for one in self.checkpoints:
            if one.wait_for_look(timeout_s) and isinstance(one.last.error, ConfigurationError):
                raise one.last.error

    def _view_of(self, query: str) -> LogView | None:
        deadline_s = time.monotonic() + LOG_WITHIN_S
        for one in self.checkpoints:
            if one.view is None or _is_of(one.view, query):
                one.wait_for_look(max(0.0, deadline_s - time.monotonic()))
        views = [one.view for one in self.checkpoints if one.view is not None and _is_of(one.view, query)]
        return max(views, key=lambda view: view.end, default=None)  # of several copies the newest


def _is_of(view: LogView, query: str) -> bool:
    return view.newest_run is not None and short_query(view.newest_run.query) == query


def without_secrets(text: str, system: NamedSystem) -> str:
    """Returns a message without what may be a secret in a system's settings. Messages have none: this makes sure."""
    settings = system.settings
    pairs = settings.items() if isinstance(settings, Mapping) else []
    found = [str(value) for name, value in pairs if _SECRET.search(name)]
    for one in [settings] if isinstance(settings, str) else [str(value) for _, value in pairs]:
        found += [part.strip("'\"") for match in _IN_TEXTS.finditer(one) for part in match.groups() if part]
    for secret in sorted(filter(None, found), key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _as_ours(error: Exception, what: str) -> SparkonceError:
    """Returns an error with a message and a next step; one of a client's is named, and not repeated."""
    if isinstance(error, SparkonceError):
        return error
    if isinstance(error, OSError):
        return SparkonceError(f"{what}: {error.strerror or error}.", next_step="See if it can be reached from here.")
    logger.debug("%s", what, exc_info=error)
    return SparkonceError(f"{what}: {type(error).__name__}.", next_step="See if it can be reached from here.")

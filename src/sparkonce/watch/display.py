"""Shows a query's progress: on a terminal, as one line that is updated in place; otherwise, as one line per batch."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sparkonce.driver.progress import BatchProgress
from sparkonce.protocol.state import Phase

if TYPE_CHECKING:
    from rich.console import Console

    from sparkonce.watch.terminal import Line

logger = logging.getLogger("sparkonce")

_STDERR = 2
_TERMINAL_MAY_BE_GONE = suppress(OSError, ValueError)
"""Suppresses the errors of a closed terminal or of a pipe without a reader, so that the query continues."""
_EACH_SHOWN_S = 3.0
"""The time for which each query is shown if there are several."""


class ProgressDisplay:
    """Shows one query, from its start to its end.

    Args:
        wanted: False to show nothing. Otherwise, a terminal gets a line that is updated in place. Without a terminal,
            each batch gets a line on standard error: with True, unless the logger shows it already; with None, only if
            logging is not set up.
        screen: The screen. By default, all queries of this process share one.
    """

    def __init__(self, wanted: bool | None, screen: Screen | None = None) -> None:
        self._wanted = wanted
        self._screen = screen or _shared
        self._name = ""
        self._state = ""
        self._batch: int | None = None
        self._committed = self._recovered = self._healed = 0
        self._committed_s = 0.0
        self._read = self._source = ""

    @contextmanager
    def starting(self, name: str | None) -> Iterator[None]:
        """Shows that the query is starting. If the start fails, ends the display."""
        self._name, self._batch, self._read, self._source = name or "", None, "", ""
        self._committed = self._recovered = self._healed = 0
        self._state = "starting: checking the servers"
        if self.is_live:
            self._screen.add(self)
        try:
            yield
        except BaseException:
            self.end()
            raise

    def say(self, sentence: str) -> None:
        """Writes a sentence that stays on the screen."""
        if self.is_live:
            if not _logged():
                self._screen.write(f"{self._name}: {sentence}" if self._name else sentence)
        else:
            self._write(sentence)

    def end(self) -> None:
        """Removes the query's line from the terminal."""
        self._screen.remove(self)

    @property
    def is_live(self) -> bool:
        """True if a line on the terminal is updated in place."""
        return self._wanted is not False and self._screen.is_terminal

    def enter(self, phase: Phase, batch: int) -> None:
        """Shows the phase of a batch."""
        self._batch, self._state = (None, "waiting") if phase is Phase.IDLE else (batch, phase.value)
        if self.is_live:
            self._screen.add(self)

    def show(self, done: BatchProgress, line: str) -> None:
        """Counts a committed batch, and writes its line unless a line is updated in place."""
        self._committed += 1
        self._recovered += done.recovered
        self._healed += done.healed
        self._committed_s = time.monotonic()
        if not self.is_live:
            self._write(line)

    def show_query(self, status: str, progress: Mapping[str, Any] | None) -> None:
        """Shows Spark's status of the query between batches, and the rows and lag from its last progress report."""
        if self._batch is None:
            self._state = status[:1].lower() + status[1:]
        if progress is None:
            return
        if progress.get("numInputRows"):
            self._read = f"{progress['numInputRows']:,} rows read"
        if not self._read:
            return
        lags = [
            int(source["metrics"]["maxOffsetsBehindLatest"])
            for source in progress.get("sources", ())
            if "maxOffsetsBehindLatest" in (source.get("metrics") or {})
        ]
        rate = (progress.get("processedRowsPerSecond") or 0.0) if progress.get("numInputRows") else 0.0
        self._source = f"{self._read}, {rate:,.0f} rows/s"
        if lags:
            self._source += f", {max(lags):,} behind"

    def line(self) -> str:
        """Returns the line to show now."""
        batch = self._state if self._batch is None else f"batch {self._batch}: {self._state}"
        parts = [f"{self._name} {batch}".strip(), self._source]
        if self._committed:
            parts.append(f"{self._committed:,} committed, the last {_ago(time.monotonic() - self._committed_s)} ago")
        parts.append(f"{self._recovered} recovered" if self._recovered else "")
        parts.append(f"{self._healed} healed" if self._healed else "")
        return "  ·  ".join(filter(None, parts))

    def _write(self, line: str) -> None:
        """Writes a line to standard error, in the logger's form, if it is wanted and logging does not show it."""
        if not _logged() if self._wanted else self._wanted is None and not logger.hasHandlers():
            at = time.strftime("%Y-%m-%d %H:%M:%S")
            with _TERMINAL_MAY_BE_GONE:
                sys.stderr.write(f"{at} INFO sparkonce: {line}\n")


class Screen:
    """The terminal's last line, which the displays of all queries share by taking turns."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._lock = threading.RLock()
        self._displays: list[ProgressDisplay] = []
        self._live: Line | None = None

    @property
    def is_terminal(self) -> bool:
        """True if a line on this stream can be rewritten."""
        if self._console is None and (sys.stderr is None or not sys.stderr.isatty()):
            return False
        console = self._the_console()
        return console.is_terminal and not console.is_dumb_terminal

    def add(self, display: ProgressDisplay) -> None:
        """Shows a query from now on."""
        with self._lock:
            if display not in self._displays:
                self._displays.append(display)
            if self._live is None:
                from sparkonce.watch.terminal import Line

                self._live = Line(self._the_console(), self._now)
                with _TERMINAL_MAY_BE_GONE:
                    self._live.start()

    def remove(self, display: ProgressDisplay) -> None:
        """Stops showing a query. Removes the line if no other query is shown."""
        with self._lock:
            if display in self._displays:
                self._displays.remove(display)
            if not self._displays:
                self.end()

    def end(self) -> None:
        """Releases the terminal."""
        with self._lock:
            self._displays.clear()
            live, self._live = self._live, None
        if live is not None:
            with _TERMINAL_MAY_BE_GONE:
                live.stop()

    def write(self, sentence: str) -> None:
        """Writes a sentence above the line."""
        with _TERMINAL_MAY_BE_GONE:
            self._the_console().print(f"sparkonce: {sentence}", markup=False, highlight=False, emoji=False)

    def refresh(self) -> None:
        """Redraws the line immediately."""
        if self._live is not None:
            with _TERMINAL_MAY_BE_GONE:
                self._live.refresh()

    def _the_console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            # Even with FORCE_COLOR, it may not be possible to rewrite a line.
            self._console = Console(stderr=True, force_terminal=sys.stderr is not None and sys.stderr.isatty())
        return self._console

    def _now(self) -> str:
        shown = list(self._displays)
        return shown[int(time.monotonic() / _EACH_SHOWN_S) % len(shown)].line() if shown else ""


def end_displays() -> None:
    """Releases the terminal before something else writes to it."""
    _shared.end()


def _logged() -> bool:
    return logger.hasHandlers() and logger.isEnabledFor(logging.INFO)


def leave_terminal() -> None:
    """Shows the cursor again before the process exits abruptly. Takes no lock, since another thread may hold it."""
    with suppress(OSError):
        if os.isatty(_STDERR):
            os.write(_STDERR, b"\r\x1b[2K\x1b[?25h")


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


class _WithOrigin(logging.Formatter):
    """Adds time, level and logger name to sparkonce's lines, like the handlers of a program that sets up logging."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.partition(".")[0] != logger.name:
            return text
        return f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {record.levelname} {record.name}: {text}"


_shared = Screen()
if logging.lastResort is not None and logging.lastResort.formatter is None:
    # This is the handler that writes warnings if nobody has set up logging.
    logging.lastResort.setFormatter(_WithOrigin())
atexit.register(end_displays)

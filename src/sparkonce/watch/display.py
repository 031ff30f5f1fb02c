"""Writes a query's progress to standard error, one line per batch."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress

logger = logging.getLogger("sparkonce")


class ProgressDisplay:
    """Writes the lines of one query, in the logger's form.

    Args:
        wanted: With True, lines are written unless the logger shows them already; with None, only if logging is not set
            up; with False, never.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted

    def write(self, line: str) -> None:
        """Writes a line, if it is wanted and logging does not show it."""
        is_logged = logger.hasHandlers() and logger.isEnabledFor(logging.INFO)
        if not is_logged if self._wanted else self._wanted is None and not logger.hasHandlers():
            at = time.strftime("%Y-%m-%d %H:%M:%S")
            with suppress(OSError, ValueError):  # The terminal is gone, or the pipe has no reader.
                sys.stderr.write(f"{at} INFO sparkonce: {line}\n")


class _WithOrigin(logging.Formatter):
    """Adds time, level and logger name to sparkonce's lines, like the handlers of a program that sets up logging."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.partition(".")[0] != logger.name:
            return text
        return f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {record.levelname} {record.name}: {text}"


if logging.lastResort is not None and logging.lastResort.formatter is None:
    # This is the handler that writes warnings if nobody has set up logging.
    logging.lastResort.setFormatter(_WithOrigin())

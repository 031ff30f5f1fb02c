"""A terminal's last line, updated in place.

Imported only if there is a terminal, so jobs on a cluster do not need rich.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

_REFRESHED_PER_S = 2


class Line(Live):
    """A live line that leaves the cursor at its start, so that output from Spark's JVM is not appended to it."""

    def __init__(self, console: Console, shown: Callable[[], str]) -> None:
        super().__init__(
            console=console,
            get_renderable=lambda: Text(shown(), no_wrap=True, overflow="ellipsis"),
            refresh_per_second=_REFRESHED_PER_S,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # Never redirect output that the job writes to a file.
        )

    def refresh(self) -> None:
        """Draws the line."""
        with self._lock, self.console:
            super().refresh()
            self.console.control(Control(ControlType.CARRIAGE_RETURN))

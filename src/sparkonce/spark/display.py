"""One line on the terminal that says what the query is doing."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from sparkonce.driver.progress import BatchProgress
from sparkonce.protocol.state import Phase


class ProgressDisplay:
    """A status line on standard error: batch, phase, rows and rate.

    Args:
        wanted: True or False; None shows it if standard error is a terminal.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._console = Console(stderr=True)
        self._wanted = self._console.is_terminal if wanted is None else wanted
        self._status: Status | None = None
        self._rows = 0
        self._batches = 0
        self._began = time.monotonic()

    def enter(self, phase: Phase, batch: int) -> None:
        """Shows the phase, or nothing more once the batch is done."""
        if not self._wanted:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        rate = self._rows / max(time.monotonic() - self._began, 1e-9)
        waiting = "waiting for the next batch" if phase is Phase.IDLE else phase.value
        self._status.update(
            f"batch [bold]{batch}[/]  {waiting}  ·  {self._batches} committed, {self._rows:,} rows, {rate:,.0f} rows/s"
        )

    def show(self, done: BatchProgress) -> None:
        """Counts a committed batch."""
        self._batches += 1
        self._rows += sum(done.rows.values())
        self.enter(Phase.IDLE, done.batch)

"""Looks at something again and again in the background, as long as somebody looks at the page."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from sparkonce.errors import SparkonceError

logger = logging.getLogger("sparkonce")

MOST_OF_ITS_TIME = 4
"""A look is followed by a pause of so many times its own length, so that a slow store is spared."""
LOOKED_AT_FOR_S = 120.0
"""The page is taken to be closed when it has not asked for so long. Browsers ask once a minute in the background."""


class PageLook(ABC):
    """Looks at one thing again and again, in a thread of its own.

    Args:
        every_s: The time between two looks.
        now_ms: The clock.
        changed: Told when a look has ended; all looks of a page share it.
    """

    def __init__(self, every_s: float, now_ms: Callable[[], int], changed: threading.Condition) -> None:
        self.every_s, self.now_ms, self.changed = every_s, now_ms, changed
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
            number = self.next_look()
            return self.changed.wait_for(lambda: self.has_looked(number), timeout_s)

    def next_look(self) -> int:
        """Returns the number of the first look that begins from now on."""
        with self.changed:
            return self._looks + (1 if self.began_ms is None else 2)

    def has_looked(self, number: int) -> bool:
        """Tells if the look with a number has ended."""
        return self._looks >= number

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
            self._pause(max(self.every_s, MOST_OF_ITS_TIME * (time.monotonic() - began_s)))

    def _pause(self, pause_s: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._is_closed, pause_s)


def as_ours(error: Exception, what: str) -> SparkonceError:
    """Returns an error with a message and a next step; one of a client's is named, and not repeated."""
    if isinstance(error, SparkonceError):
        return error
    if isinstance(error, OSError):
        return SparkonceError(f"{what}: {error.strerror or error}.", next_step="See if it can be reached from here.")
    logger.debug("%s", what, exc_info=error)
    return SparkonceError(f"{what}: {type(error).__name__}.", next_step="See if it can be reached from here.")

"""Waiting for a system that cannot be reached, or has no room, until it is back or the patience is over."""

from __future__ import annotations

import logging
import time

from sparkonce import errors

logger = logging.getLogger("sparkonce")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0


class Outage:
    """Waits for what one step of a run cannot do now.

    Args:
        patience_s: How long, from the first pause on.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._began_s = 0.0
        self._pauses = 0

    def pause(self, reason: str) -> bool:
        """Waits before the next try, longer each time; says so once.

        Returns:
            False if the patience is over: there is no next try.
        """
        if not self._pauses:
            self._began_s = time.monotonic()
            logger.warning("waiting for at most %.0f s until it can be done: %s", self._patience_s, reason)
        left_s = self._patience_s - (time.monotonic() - self._began_s)
        if left_s <= 0:
            return False
        time.sleep(min(left_s, doubled(FIRST_PAUSE_S, self._pauses, LONGEST_PAUSE_S)))
        self._pauses += 1
        return True

    def is_over(self) -> None:
        """Says that the run goes on, if it has waited."""
        if self._pauses:
            logger.warning("going on after %.0f s, in which it was tried %d times", *self._passed())

    def in_vain(self) -> str:
        """For how long it was waited, and why no longer."""
        waited_s, tries = self._passed()
        return f"tried {tries} times in {waited_s:.0f} s, outage_patience_s={self._patience_s:g}"

    def _passed(self) -> tuple[float, int]:
        return time.monotonic() - self._began_s, self._pauses + 1


def is_outage(error: BaseException | None) -> bool:
    """Tells if a write failed because a system could not be reached, or had no room."""
    return isinstance(error, errors.OutageError | errors.UnknownOutcomeError)


def doubled(first_s: float, times: int, longest_s: float) -> float:
    """A pause that doubles up to a limit. Attempts may be thousands, and a float cannot be doubled as often."""
    return min(longest_s, first_s * 2.0 ** min(times, 16))

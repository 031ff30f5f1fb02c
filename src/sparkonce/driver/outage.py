"""The one loop that tries again: what cannot be done now is waited for, with a deadline, and the log says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sparkonce import durable, errors

logger = logging.getLogger("sparkonce")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0

Answer = TypeVar("Answer")


def is_outage(error: BaseException | None) -> bool:
    """Tells if a system could not be reached, or had no room: the same call may succeed later."""
    return isinstance(error, errors.OutageError | errors.UnknownOutcomeError)


def is_store_outage(error: BaseException | None) -> bool:
    """Tells if the store of checkpoint and log was away or had no room: the same call may succeed later."""
    return isinstance(error, OSError) and durable.is_outage(error)


def never() -> bool:
    """Stands for a wait that nobody cuts short."""
    return False


class Outage:
    """The patience of one step of a run, for all of its calls together.

    Args:
        patience_s: How long calls are repeated, from the first failure on. 0: none is.
        is_stopped: Tells if the query was stopped meanwhile: no call is repeated then.
        first_pause_s: The first pause between two tries; each further one is twice as long.
        longest_pause_s: The longest pause.
        silent_s: How long a wait stays unsaid: many a server asks for a moment's patience.
    """

    def __init__(
        self,
        patience_s: float,
        *,
        is_stopped: Callable[[], bool] = never,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        silent_s: float = 0.0,
    ) -> None:
        self._patience_s = patience_s
        self._is_stopped = is_stopped
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._silent_s = silent_s
        self._began_s: float | None = None
        self._pauses = 0
        self._said = False

    def retry(
        self, call: Callable[[], Answer], doing: str = "", *, again: Callable[[Exception], bool] = is_outage
    ) -> Answer:
        """Calls until the call returns, or raises what does not pass by itself, or the patience is over.

        Args:
            call: What is to be done.
            doing: What cannot go on meanwhile, for the log.
            again: Tells of an error whether the same call may succeed later.

        Raises:
            Exception: what the last call raised.
        """
        while True:
            try:
                answer = call()
            except Exception as error:  # noqa: PERF203 - a failed try is followed by a pause
                if not again(error) or not self.pause(f"{doing}: {_told(error)}" if doing else _told(error)):
                    raise
            else:
                self.is_over()
                return answer

    def pause(self, reason: str) -> bool:
        """Waits before the next try. Says so once.

        Returns:
            False if there is no next try: the patience is over, or the query was stopped.
        """
        now_s = time.monotonic()
        began_s = now_s if self._began_s is None else self._began_s
        left_s = self._patience_s - (now_s - began_s)
        if left_s <= 0 or self._is_stopped():
            return False
        self._began_s = began_s
        if not self._said and now_s - began_s >= self._silent_s:
            self._said = True
            logger.warning("Waiting for at most %.0f s: %s", self._patience_s, reason)
        time.sleep(min(left_s, doubled(self._first_pause_s, self._pauses, self._longest_pause_s)))
        self._pauses += 1
        return True

    def is_over(self) -> None:
        """Says that the run goes on, if it had said that it waits. What waits next shares the same patience."""
        if self._said:
            logger.warning("Going on after %.0f s, in which it was tried %d times.", *self._passed())
        self._said, self._pauses = False, 0

    @property
    def has_waited(self) -> bool:
        """Tells if there was a pause since the last success."""
        return self._pauses > 0

    def in_vain(self) -> str:
        """Words how often and how long it was tried, and which setting ended it."""
        waited_s, tries = self._passed()
        return f"tried {tries} times in {waited_s:.0f} s, outage_patience_s={self._patience_s:g}"

    def _passed(self) -> tuple[float, int]:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s, self._pauses + 1


def doubled(first_s: float, times: int, longest_s: float) -> float:
    """Returns a pause that has doubled so many times, up to a limit. A float cannot be doubled thousands of times."""
    return min(longest_s, first_s * 2.0 ** min(times, 16))


def _told(error: Exception) -> str:
    return error.message if isinstance(error, errors.SparkonceError) else str(error)

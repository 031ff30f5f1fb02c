"""The one retry loop: it waits for a system that is unreachable or full, up to a deadline, and logs the wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparkonce import errors
from sparkonce.storage.files import may_pass

logger = logging.getLogger("sparkonce")
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
Answer = TypeVar("Answer")


def is_outage(error: BaseException | None) -> bool:
    """Returns True if a retry may succeed because a system was only unreachable or full."""
    return isinstance(error, errors.OutageError | errors.UnknownOutcomeError)


def is_store_outage(error: BaseException | None) -> bool:
    """Returns True if a retry may succeed because the checkpoint's store was only unreachable or full."""
    return isinstance(error, OSError) and may_pass(error)


def never() -> bool:
    """Returns False. Used for waits during which the query cannot be stopped."""
    return False


class Outage:
    """Retries the calls of one step of a run, within a time limit that they share.

    Args:
        patience_s: The time limit in seconds, counted from the first failure. With 0, nothing is retried.
        is_stopped: Returns True if the query was stopped, which ends the retries.
        first_pause_s: The first pause between two attempts. It doubles with each attempt.
        longest_pause_s: The longest pause.
        silent_s: The seconds after which a wait is logged. Servers often need only a moment.
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
        """Repeats a call until it succeeds, raises an error that a retry cannot fix, or the time limit is reached.

        Args:
            call: The call.
            doing: What the failure prevents, as a clause for the log.
            again: Returns True if a retry may succeed after this error.

        Raises:
            Exception: The last call's error.
        """
        while True:
            try:
                answer = call()
            except Exception as error:  # noqa: PERF203 - a failed attempt is followed by a pause
                if not again(error) or not self.pause(f"{doing}: {_told(error)}" if doing else _told(error)):
                    raise
            else:
                self.is_over()
                return answer

    def pause(self, reason: str) -> bool:
        """Waits before the next attempt, and logs the first wait.

        Returns:
            False if there is no next attempt, because the time limit is reached or the query was stopped.
        """
        now_s = time.monotonic()
        began_s = now_s if self._began_s is None else self._began_s
        left_s = self._patience_s - (now_s - began_s)
        if left_s <= 0 or self._is_stopped():
            return False
        self._began_s = began_s
        if not self._said and now_s - began_s >= self._silent_s:
            self._said = True
            logger.warning("Waiting for up to %.0f s: %s", self._patience_s, reason)
        time.sleep(min(left_s, doubled(self._first_pause_s, self._pauses, self._longest_pause_s)))
        self._pauses += 1
        return True

    def is_over(self) -> None:
        """Logs that the run continues, if a wait was logged. Later waits share the same time limit."""
        if self._said:
            logger.warning("Continuing after %.0f s and %d tries.", *self._passed())
        self._said, self._pauses = False, 0

    @property
    def has_waited(self) -> bool:
        """True if there has been a pause since the last success."""
        return self._pauses > 0

    def in_vain(self) -> str:
        """Returns the number of attempts, the time waited, and the setting that ended the wait, as text."""
        waited_s, tries = self._passed()
        return f"tried {tries} times in {waited_s:.0f} s, outage_patience_s={self._patience_s:g}"

    def _passed(self) -> tuple[float, int]:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s, self._pauses + 1


def doubled(first_s: float, times: int, longest_s: float) -> float:
    """Returns the pause after this many doublings, with an upper limit. Unlimited doubling would overflow a float."""
    return min(longest_s, first_s * 2.0 ** min(times, 16))


def _told(error: Exception) -> str:
    return error.message if isinstance(error, errors.SparkonceError) else str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time limits and intervals of a run, in seconds.

    Attributes:
        outage_patience_s: The longest wait for a system that is unreachable or full, in each phase of a batch. Then the
            query stops. No row is lost: the next run continues. At a start, sinks have at most a minute to list their
            traces.
        sweep_every_s: The time between two sweeps of the run's own transactions if there is no sign of a losing
            attempt. With 0, each batch ends with a sweep.
        sweep_in_background: True to sweep in a thread, so that batches do not wait for it.
        monitor_every_s: The time between two checks for other applications' transactions that block the readers of the
            sinks. With 0, there are no checks.
    """

    outage_patience_s: float = 300.0
    sweep_every_s: float = 10.0
    sweep_in_background: bool = False
    monitor_every_s: float = 0.0

"""The pauses between repeated requests to Kafka, and the line in the log that tells why."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sparkonce.sinks.kafka.outcomes import BrokerAnswer

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_SAY_AFTER_S = 2.0
_SAY_EVERY_S = 60.0

Again = Callable[[BrokerAnswer], bool]
"""Takes the reason why a request failed, pauses, and returns whether to ask again: not if the deadline is near."""


class Waiting:
    """Logs what one client waits for: once it takes long, and then rarely, over all calls."""

    def __init__(self) -> None:
        self._say_at = 0.0

    def until(self, deadline_s: float, what: str) -> Again:
        """Begins to wait.

        Args:
            deadline_s: When to stop, by `time.monotonic`.
            what: The thing that Kafka is to do, for the log.
        """
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S

        def again(why: BrokerAnswer) -> bool:
            nonlocal pause_s
            now_s = time.monotonic()
            if now_s - began_s >= _SAY_AFTER_S and now_s >= self._say_at:
                self._say_at = now_s + _SAY_EVERY_S
                log.warning("Waiting for Kafka to %s: %s.", what, why)
            if now_s + pause_s >= deadline_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return True

        return again

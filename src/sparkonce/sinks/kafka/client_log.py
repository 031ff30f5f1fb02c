"""Thins out librdkafka's log, in which each producer reports an unreachable broker several times a second."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

PAUSE_S = 1.0
_STARTING = "Coordinator load in progress: retrying"
"""A broker that has just started says so, and librdkafka asks again: nobody needs to do anything."""
_ABOUT = re.compile(r"^(?P<what>\S+) \[[^]]*\] \[thrd:(?P<broker>[^]]*)\]")
"""librdkafka's name of the event, of the producer and of the broker."""


class OncePerBroker(logging.Filter):
    """Passes one line a second of each kind and broker, over all producers of the process.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line is shown; the next line that is shown tells how many were not."""
        text = record.getMessage()
        if _STARTING in text and not client_log.isEnabledFor(logging.DEBUG):
            return False
        about = _ABOUT.match(text)
        kind = " ".join(about.groups()) if about is not None else text
        said_s, left_out = self._said.get(kind, (-PAUSE_S, 0))
        if self._now() - said_s < PAUSE_S:
            self._said[kind] = said_s, left_out + 1
            return False
        self._said[kind] = self._now(), 0
        if left_out:
            record.msg, record.args = f"{text} ({left_out} like it left out)", ()
        return True


client_log = logging.getLogger("sparkonce.librdkafka")
client_log.addFilter(OncePerBroker())

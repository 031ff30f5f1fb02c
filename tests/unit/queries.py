from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException

from eventually import eventually

TRACES = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised by the Python Proxy. "
    'Return Message: Traceback (most recent call last):\n  File "run.py", line 1, in run\n'
    "sparkonce.errors.PrepareError: no room. Next: make room.\n SQLSTATE: 39000\n=== Streaming Query ==="
)
TOLD = "The query 'totals' has failed. PrepareError: no room.\nNext: Make room.\n"


class Failed(StreamingQueryException):
    """Spark's exception, of which only the text matters."""

    def __init__(self) -> None:
        Exception.__init__(self, TRACES)

    __str__ = Exception.__str__


def send(number: int, until: Callable[[], bool] = lambda: True) -> None:
    before = signal.getsignal(number)

    def run() -> None:
        eventually(lambda: signal.getsignal(number) != before and until(), "the time for the signal has come")
        os.kill(os.getpid(), number)

    threading.Thread(target=run, daemon=True).start()


class FakeQuery:
    def __init__(self, name: str = "totals", error: Exception | None = None) -> None:
        self.name, self.id, self.runId = name, str(uuid.uuid4()), str(uuid.uuid4())
        self.stops = 0
        self._error = error
        self._ended = threading.Event()
        if error is not None:
            self._ended.set()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return None if timeout is None else ended

    def stop(self) -> None:
        self.stops += 1
        self._ended.set()

    def end(self) -> None:
        self._ended.set()

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    def exception(self) -> Any:
        return self._error

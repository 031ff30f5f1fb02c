"""Lets sinks look, now and then, at what others do to the readers of their rows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from sparkonce.sink import Lookout

logger = logging.getLogger("sparkonce")


class Lookouts:
    """A thread that looks at the start of a run, and then every so often. No batch waits for it, and nor does the end.

    Args:
        make: Makes the lookouts, in the thread.
        every_s: How often they look; 0: there is no thread.

    Attributes:
        batch_s: How long the last batch took.
    """

    def __init__(self, make: Callable[[], Sequence[Lookout]], every_s: float) -> None:
        self._make = make
        self._every_s = every_s
        self._closed = threading.Event()
        self.batch_s = 0.0

    def start(self) -> None:
        """Starts the thread."""
        if self._every_s > 0:
            threading.Thread(target=self._keep_looking, name="sparkonce-lookout", daemon=True).start()

    def close(self) -> None:
        """Ends the thread, after the look that it may be at."""
        self._closed.set()

    def _keep_looking(self) -> None:
        try:
            with ExitStack() as stack:
                lookouts = [stack.enter_context(closing(one)) for one in self._make()]
                while lookouts:
                    for one in lookouts:
                        self._look(one)
                    if self._closed.wait(self._every_s):
                        return
        except Exception as error:  # noqa: BLE001 - nothing of the query depends on it
            logger.debug("Nobody looks at what others do to this query's readers: %s", error)

    def _look(self, lookout: Lookout) -> None:
        try:
            lookout.look(self.batch_s)
        except Exception as error:  # noqa: BLE001 - the next look may do
            logger.debug("What others do to this query's readers could not be looked at: %s", error)

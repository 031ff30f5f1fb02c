"""Looks at all checkpoints and systems of the page, each for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.errors import ConfigurationError
from sparkonce.operate.systems import OperatorFile
from sparkonce.page.checkpoints import WatchedCheckpoint
from sparkonce.page.state import PageState, show_query
from sparkonce.page.systems import WatchedSystem

CHECKPOINTS_EVERY_S, SYSTEMS_EVERY_S = 2.0, 10.0


class PageWatcher:
    """All checkpoints and systems of the page.

    Args:
        checkpoints: Their files, by the locations that the operator gave.
        file: The operator's file.
        moved: True to ask about starts with ``checkpoint_moved=True``.
        now_ms: The clock.
        checkpoints_every_s: The time between two looks at a checkpoint.
        systems_every_s: The time between two looks at a system.
    """

    def __init__(
        self,
        checkpoints: Mapping[str, CheckpointFiles],
        file: OperatorFile,
        *,
        moved: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        checkpoints_every_s: float = CHECKPOINTS_EVERY_S,
        systems_every_s: float = SYSTEMS_EVERY_S,
    ) -> None:
        self._now_ms, self._config, self._moved = now_ms, file.path, moved
        changed = threading.Condition()
        self.checkpoints = [
            WatchedCheckpoint(location, files, checkpoints_every_s, now_ms, changed, moved=moved)
            for location, files in checkpoints.items()
        ]
        self.systems = [
            WatchedSystem(one, self.checkpoints, systems_every_s, now_ms, changed) for one in file.systems.values()
        ]

    def state(self) -> PageState:
        """Returns what is known now, without waiting, and has everything looked at again soon."""
        for one in (*self.checkpoints, *self.systems):
            one.want()
        now_ms = self._now_ms()
        return PageState(
            now_ms=now_ms,
            queries=[show_query(one.last, now_ms) for one in self.checkpoints],
            systems=[one.shown() for one in self.systems],
            config=self._config,
            moved=self._moved,
        )

    def close(self) -> None:
        """Ends the looks."""
        for one in (*self.checkpoints, *self.systems):
            one.close()

    def refuse_what_is_no_checkpoint(self, timeout_s: float) -> None:
        """Waits for the first look at each checkpoint, and raises the error of one that is none.

        A store that does not answer in time is no error here: the page shows it.

        Raises:
            ConfigurationError: if a folder is not a checkpoint.
        """
        for one in self.checkpoints:
            if one.wait_for_look(timeout_s) and isinstance(one.last.error, ConfigurationError):
                raise one.last.error

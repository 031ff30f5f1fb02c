"""A reader that polls continuously, and checks whether rows are visible before they are decided."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from crashes.target import Target
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.view import Amend, Commit
from sparkonce_lab.rig.background import Background

_LEAST_PAUSE_S = 0.005
_LIMIT_S = 60.0


def decided(checkpoint: Path) -> int:
    """The newest batch for which the log has a decision; -1 if there is none."""
    newest = -1
    for path in (checkpoint / "sparkonce" / "records").glob("[0-9]*"):
        try:
            record = decode_record(path.read_bytes())
        except FileNotFoundError:  # tidied meanwhile
            continue
        if isinstance(record, Commit | Amend):
            newest = max(newest, record.batch)
    return newest


class Watcher(Background):
    """Polls a target continuously.

    Attributes:
        seen: Every number that was ever seen.
        early: Numbers that were seen before their batch was decided.
        turn: Held by whoever queries the target, whose connection is not thread-safe.
    """

    def __init__(self, target: Target, checkpoint: Path) -> None:
        super().__init__("watcher", _LIMIT_S)
        self.seen: set[int] = set()
        self.early: set[int] = set()
        self._target = target
        self._checkpoint = checkpoint
        self.turn = threading.Lock()

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self._thread.is_alive(), "the witness hangs"

    def poll(self, *, whole: bool = False) -> list[int]:
        """What is currently visible. Raises an error if the server does not respond."""
        with self.turn:
            found = sorted(self._target.visible() if whole else self._target.glance())
            # Read the log after the rows: a batch that is not in the log by now was not in it when its rows were seen.
            if new := set(found) - self.seen:
                newest = decided(self._checkpoint)
                self.early |= {number for number in new if number // 1000 > newest}
                self.seen |= new
            return found

    def work(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            with suppress(Exception):  # a server under attack may refuse
                self.poll()
            # Leave most of the machine to what is being watched.
            self.stopping.wait(max(_LEAST_PAUSE_S, 2 * (time.monotonic() - began)))

"""The parent's side of one run in a child."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from functools import partial

from crashes.child import ARRIVED, BROKEN, DONE, STOPPED, Order, run
from sparkonce_lab.rig.process import freeze
from striking.points import CONCLUDED
from zygote import LIMIT_S, Zygote


class Run:
    """A running child.

    Args:
        zygote: Forks the child.
        order: What it should do.
        limit_s: How long it may take to reach its point, or its end.

    Attributes:
        done: Batches that it reports as done, which Spark would have recorded.
        concluded: Batches whose sink was told that they are concluded.
        arrived: True if it reached the ordered point.
        stopped: Why it stopped, in the driver's words; empty if it did not.
        broken: An error that did not come from the driver and ended it; empty if there is none.
    """

    def __init__(self, zygote: Zygote, order: Order, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self.order = order
        self.done: list[int] = []
        self.concluded: list[int] = []
        self.arrived = False
        self.stopped = ""
        self.broken = ""
        self.ended = False
        self.pid, self._channel = zygote.fork(partial(run, order))
        self._channel.setblocking(False)
        self._buffer = b""

    def until_arrival(self) -> bool:
        """Waits until it reaches the point, or ends. Returns True if it got there."""
        self._read(lambda: self.arrived)
        return self.arrived

    def finish(self) -> None:
        self._read(lambda: False)

    def finish_within(self, seconds: float) -> bool:
        """Listens for a while. Returns True if it has ended."""
        self._read(lambda: False, seconds)
        return self.ended

    def answer(self, word: str) -> None:
        self._channel.sendall(f"{word}\n".encode())

    def pause(self) -> None:
        freeze(lambda: [self.pid])

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills it wherever it is, unless it has ended. While its connection is open, its process id is its own."""
        if not self.finish_within(0):
            os.kill(self.pid, signal.SIGKILL)
            self.finish()

    def close(self) -> None:
        self.kill()
        self._channel.close()

    def _read(self, enough: Callable[[], bool], limit_s: float | None = None) -> None:
        give_up_at = time.monotonic() + (self._limit_s if limit_s is None else limit_s)
        while not self.ended and not enough():
            left_s = give_up_at - time.monotonic()
            ready = select.select([self._channel], [], [], max(0.0, left_s))[0]
            if not ready:
                if limit_s is not None:
                    return
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"a run hangs for {self._limit_s:g} s; see {self.order.log}")
            self._take()

    def _take(self) -> None:
        try:
            data = self._channel.recv(65_536)
        except ConnectionResetError:
            data = b""
        self.ended = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            kind, what = json.loads(line)
            if kind == DONE:
                self.done.append(what)
            elif kind == CONCLUDED:
                self.concluded.append(what)
            elif kind == ARRIVED:
                self.arrived = True
            elif kind == STOPPED:
                self.stopped = what
            elif kind == BROKEN:
                self.broken = what

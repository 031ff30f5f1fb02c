"""Where the processes of a query say what they are about to do, and go on only when they are told to.

A visitor blocks on a socket until it is answered. So a test knows exactly where a process stands while it kills it or
takes its broker away, and nothing sleeps to get the order of things right.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

GO = "go"
FAIL = "fail"
DIE = "die"

LIMIT_S = 240.0
_LOST_ITS_TEST = 70


def visit(desk: str, point: str, **told: Any) -> str:
    """Says that this process is about to do something, and waits for the answer.

    Args:
        desk: ``host:port`` of a `Desk`.
        point: What it is about to do.
        told: What else is worth knowing.
    """
    host, _, port = desk.rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rw") as lines:
            lines.write(json.dumps({"point": point, "pid": os.getpid(), **told}) + "\n")
            lines.flush()
            answer = lines.readline().strip()
    except OSError:
        answer = ""
    if not answer:  # the test is over: nothing may be done behind its back
        os._exit(_LOST_ITS_TEST)
    return answer


@dataclass(slots=True, eq=False)
class Visit:
    """One visitor at the desk.

    Attributes:
        point: What it is about to do.
        pid: The process.
        told: What else it said.
    """

    point: str
    pid: int
    told: dict[str, Any]
    _connection: socket.socket

    def answer(self, word: str = GO) -> None:
        """Lets it go on, if it still lives."""
        with suppress(OSError), self._connection:
            self._connection.sendall(f"{word}\n".encode())


@dataclass(slots=True, eq=False)
class Hold:
    """Keeps the next visitors of some kind waiting until the test answers them."""

    matches: Callable[[Visit], bool]
    words: str
    left: int
    _desk: Desk
    caught: list[Visit] = field(default_factory=list)

    def give_up(self) -> None:
        """Keeps nobody any more who has not come yet."""
        self.left = 0

    def wait(self, alive: Callable[[], object] | None = None, *, limit_s: float = LIMIT_S) -> Visit:
        """The first visitor kept, once there is one.

        Args:
            alive: Called now and then; raises if the visitor can never come.
            limit_s: How long to wait.
        """
        self._desk.wait_for(lambda: bool(self.caught), self.words, alive, limit_s=limit_s)
        return self.caught[0]


class Desk:
    """Takes visitors from any process on this machine. Use as a context manager.

    Attributes:
        address: What visitors need.
        visits: All so far, in the order in which they came.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.visits: list[Visit] = []
        self._holds: list[Hold] = []
        self._changed = threading.Condition()  # reentrant

    def __enter__(self) -> Desk:
        threading.Thread(target=self._serve, name="desk", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes the thread that accepts; close alone does not.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in self.visits:
            one._connection.close()

    def hold(self, point: str, *, times: int = 1, when: Callable[[Visit], bool] | None = None, **told: Any) -> Hold:
        """Keeps the next visitors at a point waiting, whose words are these, and of whom a condition is true."""

        def matches(one: Visit) -> bool:
            return one.point == point and told.items() <= one.told.items() and (when is None or when(one))

        hold = Hold(matches, f"a visitor at {point!r} {told or ''}", times, self)
        with self._changed:
            self._holds.append(hold)
        return hold

    def wait_for(
        self,
        holds: Callable[[], bool],
        what: str,
        alive: Callable[[], object] | None = None,
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Waits until something holds that visits change."""
        give_up_at = time.monotonic() + limit_s
        with self._changed:
            while not holds():
                assert time.monotonic() < give_up_at, f"not after {limit_s:.0f} s: {what}; last: {self.visits[-5:]}"
                if not self._changed.wait(0.2) and alive is not None:
                    alive()

    def at(self, point: str, **told: Any) -> list[Visit]:
        """The visits at a point so far."""
        with self._changed:
            return [one for one in self.visits if one.point == point and told.items() <= one.told.items()]

    def last(self, *points: str) -> Visit | None:
        """The newest visit, at one of these points if any are named."""
        with self._changed:
            return next((one for one in reversed(self.visits) if not points or one.point in points), None)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("r") as lines:
                told = json.loads(lines.readline() or "{}")
        except (OSError, ValueError):
            told = {}
        if not told:
            connection.close()
            return
        one = Visit(told.pop("point"), told.pop("pid"), told, connection)
        with self._changed:
            self.visits.append(one)
            hold = next((each for each in self._holds if each.left and each.matches(one)), None)
            if hold is not None:
                hold.left -= 1
                hold.caught.append(one)
            self._changed.notify_all()
        if hold is None:
            one.answer()

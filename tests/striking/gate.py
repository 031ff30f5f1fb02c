"""A gate at which the processes of a query stop at certain points, until the test lets them continue.

A process that arrives at a point blocks on a socket until it gets an answer. So a test knows exactly where a process is
when it kills the process or its broker, without sleeping to get the timing right.
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

from eventually import LIMIT_S

_LOST_ITS_TEST = 70


def arrive(gate: str, point: str, **told: Any) -> None:
    """Reports to the gate that this process is at a point, with more details, and waits for the gate's answer."""
    host, _, port = gate.rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rw") as lines:
            lines.write(json.dumps({"point": point, "pid": os.getpid(), **told}) + "\n")
            lines.flush()
            answered = lines.readline()
    except OSError:
        answered = ""
    if not answered:  # the test is over, so this process must not do anything more
        os._exit(_LOST_ITS_TEST)


def come_to(gate: str, point: str, **told: Any) -> None:
    """Arrives from a Spark query, and reports the attempt number of the task as well."""
    from pyspark import TaskContext

    if (task := TaskContext.get()) is not None:
        told["attempt"] = task.attemptNumber()
    arrive(gate, point, **told)


@dataclass(slots=True, eq=False)
class Arrival:
    """A process that has arrived at a point, and the details that it reported."""

    point: str
    pid: int
    told: dict[str, Any]
    _connection: socket.socket

    def answer(self) -> None:
        """Lets the process continue, if it is still alive."""
        with suppress(OSError), self._connection:
            self._connection.sendall(b"go\n")


@dataclass(slots=True, eq=False)
class Hold:
    """A request to hold the next matching arrivals until the test releases them."""

    matches: Callable[[Arrival], bool]
    words: str
    left: int
    gate: Gate
    arrivals: list[Arrival] = field(default_factory=list)

    def cancel(self) -> None:
        """Cancels the hold for processes that have not arrived yet."""
        self.left = 0

    def wait(self, alive: Callable[[], object] | None = None, *, limit_s: float = LIMIT_S) -> Arrival:
        """Waits for the first held arrival. ``alive`` is called meanwhile, and raises if none can come anymore."""
        self.gate.wait_for(lambda: bool(self.arrivals), self.words, alive, limit_s=limit_s)
        return self.arrivals[0]

    def release(self) -> None:
        """Releases all held arrivals."""
        for one in self.arrivals:
            one.answer()


class Gate:
    """Accepts arrivals from any process on this machine. Use it as a context manager.

    Attributes:
        address: The address that processes connect to.
        arrivals: All arrivals so far, in order.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.arrivals: list[Arrival] = []
        self._holds: list[Hold] = []
        self._changed = threading.Condition()  # reentrant

    def __enter__(self) -> Gate:
        threading.Thread(target=self._serve, name="gate", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes the thread that accepts; close alone does not.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in self.arrivals:
            one._connection.close()

    def hold(self, point: str, *, times: int = 1, when: Callable[[Arrival], bool] | None = None, **told: Any) -> Hold:
        """Holds the next arrivals at a point that report these details and meet the condition."""

        def matches(one: Arrival) -> bool:
            return one.point == point and told.items() <= one.told.items() and (when is None or when(one))

        hold = Hold(matches, f"an arrival at {point!r} {told or ''}", times, self)
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
        """Waits until a condition that depends on the arrivals is true."""
        give_up_at = time.monotonic() + limit_s
        with self._changed:
            while not holds():
                assert time.monotonic() < give_up_at, f"not after {limit_s:.0f} s: {what}; last: {self.arrivals[-5:]}"
                if not self._changed.wait(0.2) and alive is not None:
                    alive()

    def at(self, *points: str, pid: int = 0, **told: Any) -> list[Arrival]:
        """Returns the arrivals at these points so far that reported these details, optionally of one process."""
        with self._changed:
            return [
                one
                for one in self.arrivals
                if one.point in points and pid in {0, one.pid} and told.items() <= one.told.items()
            ]

    def last(self, *points: str) -> Arrival | None:
        """Returns the latest arrival at one of these points."""
        return next(reversed(self.at(*points)), None)

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
                told = json.loads(lines.readline())
        except (OSError, ValueError):  # the process was killed before it could report anything
            connection.close()
            return
        one = Arrival(told.pop("point"), told.pop("pid"), told, connection)
        with self._changed:
            self.arrivals.append(one)
            hold = next((each for each in self._holds if each.left and each.matches(one)), None)
            if hold is not None:
                hold.left -= 1
                hold.arrivals.append(one)
            self._changed.notify_all()
        if hold is None:
            one.answer()

"""A pool of idle connections, which are reused if the server has kept them open."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

C = TypeVar("C", bound=Any)


@contextmanager
def closed_on_error(connection: C) -> Iterator[C]:
    """Closes a connection after an error."""
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


class IdlePool(Generic[C]):
    """Idle connections to one server, at most `most`. Thread-safe.

    `is_idle` returns True if a connection is not in a transaction, and neither side has closed it.
    """

    def __init__(self, connect: Callable[[], C], *, is_idle: Callable[[C], bool], most: int = 8) -> None:
        self._connect = connect
        self._is_idle = is_idle
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[C] = []

    @contextmanager
    def lent(self) -> Iterator[C]:
        """Lends a connection. It is kept for reuse unless an error occurs."""
        with closed_on_error(self.take()) as connection:
            yield connection
        self.give_back(connection)

    def take(self) -> C:
        """Returns an idle connection that the server has kept open, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if self._is_idle(connection):
                return connection
            connection.close()

    def give_back(self, connection: C) -> None:
        """Keeps a connection that can be reused; otherwise closes it."""
        is_idle = self._is_idle(connection)
        with self._lock:
            if is_idle and len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections, and from now on those that other threads give back."""
        self._most = 0
        self.drop()


def has_nothing_to_read(descriptor: int) -> bool:
    """Returns True if nothing has arrived on an idle session's socket.

    A server only sends something to an idle session when it ends the session.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as wire:
            wire.setblocking(False)
            try:
                wire.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return True
    except OSError:
        pass
    return False

"""Idle connections that are used again, once it is seen that the server has kept them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Closes it. Never raises, also where it is closed already."""


C = TypeVar("C", bound=Closable)


class IdlePool(Generic[C]):
    """Idle connections to one place. Safe to use from several threads.

    Args:
        connect: Opens a connection.
        is_idle: Returns whether a connection is open and in no transaction, so that it may be used again.
        is_alive: Returns whether the server has kept it while it was idle, see `has_nothing_to_read`.
        most: How many are kept.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        *,
        is_idle: Callable[[C], bool],
        is_alive: Callable[[C], bool],
        most: int = 8,
    ) -> None:
        self._connect = connect
        self._is_idle = is_idle
        self._is_alive = is_alive
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[C]:
        """Lends a connection. It is kept for the next use unless something fails on it."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)

    def take(self) -> C:
        """Returns an idle connection that the server has kept, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if self._is_alive(connection):
                return connection
            connection.close()

    def give_back(self, connection: C) -> None:
        """Keeps a connection that may be used again; closes any other."""
        is_idle = self._is_idle(connection)
        with self._lock:
            if is_idle and not self._closed and len(self._idle) < self._most:
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
        """Closes the idle connections, and keeps none from now on: another thread may still use one."""
        with self._lock:
            self._closed = True
        self.drop()


def has_nothing_to_read(descriptor: int) -> bool:
    """Returns True if nothing has arrived on an idle session's socket.

    A server speaks to an idle session only to end it, or by having ended it.
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

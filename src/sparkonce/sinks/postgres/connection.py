"""Connections to the server: what each is opened with, a deadline for every call, and idle ones that are used again.

All settings of a session are made by ``SET LOCAL`` inside transactions, so that a connection can be used again, and
that a pooler which gives a server's session to another client after each transaction does not carry them over.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from sparkonce.sinks.postgres.settings import Connecting, Limits

Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

_IDLE_AT_MOST = 8


def connect(to: Connecting) -> Connection:
    """Opens a connection in autocommit: transactions are begun and ended by statements of ours.

    Raises:
        psycopg.OperationalError: if the server cannot be reached or refuses.
    """
    return psycopg.connect(**dict(to.settings), autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]


_LOCAL = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1|[/@].*")
_ASKED = frozenset({"host", "hostaddr", "sslmode", "gssencmode"})


def warn_of_wire(connection: Connection) -> None:
    """Says so if the server is another machine and need not prove who it is: libpq's default asks for no proof."""
    options = {option.keyword.decode(): option.val or b"" for option in connection.pgconn.info}
    # Not the others: a password need not be text.
    given = {name: options.get(name, b"").decode(errors="replace") for name in _ASKED}
    host, mode = given["host"] or given["hostaddr"], given["sslmode"]
    if mode == "verify-full" or given["gssencmode"] == "require":
        return
    if not host or all(_LOCAL.fullmatch(one) for one in host.split(",")):
        return
    log.warning(
        "sslmode=%s: the connection to %s is %s, and whoever answers there is taken for the server. "
        "sslmode=verify-full with sslrootcert has it prove who it is.",
        *(mode, host, "encrypted" if connection.pgconn.ssl_in_use else "not encrypted"),
    )


@contextmanager
def within(connection: Connection, limit_s: float) -> Iterator[None]:
    """Cuts the connection when the time is up, so that the call that waits on it fails.

    The server's own timeouts do not help when the whole server stands still.
    """
    timer = threading.Timer(limit_s, _cut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(connection: Connection) -> None:
    # A descriptor of its own: the connection may be closed, and its number used again, at this very moment.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class Connections:
    """Idle connections to one place. Safe to use from several threads.

    Args:
        to: Where.
        look: Called with each new connection, before it is used for anything else.
    """

    def __init__(self, to: Connecting, look: Callable[[Connection], None] | None = None) -> None:
        self._to = to
        self._look = look
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """An open connection, which is kept for the next use unless something failed on it."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)

    def take(self) -> Connection:
        """An idle connection, which the server may have left meanwhile, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if _is_alive(connection):
                return connection
            connection.close()

    def _connect(self) -> Connection:
        connection = connect(self._to)
        if self._look is not None:
            try:
                self._look(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection that is in no transaction; closes any other."""
        idle = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if idle and not self._closed and len(self._idle) < _IDLE_AT_MOST:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes the idle ones, and keeps none from now on: a thread nobody waits for may still have one."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()


def _is_alive(connection: Connection) -> bool:
    """Whether nothing has arrived on it: to an idle session a server speaks only to end it, or that it has ended."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.setblocking(False)
            try:
                wire.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return True
    except (OSError, psycopg.Error):
        pass
    return False


_of_process: dict[tuple[int, Connecting], Connections] = {}
_of_process_lock = threading.Lock()


def of_process(to: Connecting) -> Connections:
    """The connections of this process: a Python worker runs one task after another."""
    with _of_process_lock:
        return _of_process.setdefault((os.getpid(), to), Connections(to))


@atexit.register
def close_all() -> None:
    """Closes the idle connections of this process."""
    with _of_process_lock:
        own = [key for key in _of_process if key[0] == os.getpid()]
        for key in own:
            _of_process.pop(key).close()


def begin(limits: Limits, statement_s: float, application_name: str, idle_s: float) -> sql.Composed:
    """Begins a transaction whose settings do not depend on the server's, the role's or the database's.

    Args:
        limits: For how long a lock is waited for.
        statement_s: How long one statement may take.
        application_name: What the session is called meanwhile.
        idle_s: How long the server waits for the next statement of a client that may be gone, with all locks held.
    """
    settings = {
        "statement_timeout": _ms(statement_s),
        "lock_timeout": _ms(limits.lock_s),
        "idle_in_transaction_session_timeout": _ms(idle_s),
        "application_name": application_name,
    }
    parts: list[sql.Composable] = [
        sql.SQL("set_config({}, {}, true)").format(name, value) for name, value in settings.items()
    ]
    # Whoever has it lower, such as remote_write, keeps it: only 'off' loses what the server has confirmed.
    parts.append(
        sql.SQL(
            "CASE current_setting('synchronous_commit') WHEN 'off' "
            "THEN set_config('synchronous_commit', 'on', true) END"
        )
    )
    # Since PostgreSQL 17. It counts whatever the transaction does.
    parts.append(
        sql.SQL(
            "CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL "
            "THEN set_config('transaction_timeout', {}, true) END"
        ).format(_ms(2 * statement_s))
    )
    return sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT {};").format(sql.SQL(", ").join(parts))


def _ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"

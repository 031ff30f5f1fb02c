"""Connections to the server: their settings, a deadline for every call, and this process's idle connections.

All settings of a session are made with ``SET LOCAL`` inside transactions, so connections can be reused. A pooler that
passes the server's session to another client after each transaction does not carry these settings over.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from sparkonce.sinks.sql.pool import IdlePool, has_nothing_to_read
from sparkonce.sinks.sql.postgres.settings import Conninfo
from sparkonce.sinks.sql.settings import Limits

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(conninfo: Conninfo) -> Connection:
    """Opens a connection in autocommit mode, because explicit statements begin and end the transactions."""
    return psycopg.connect(**dict(conninfo.settings), autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]


@contextmanager
def within(connection: Connection, limit_s: float) -> Iterator[None]:
    """Cuts the connection when the time is up, so that a pending call fails."""
    # The server's own timeouts do not help if the whole server is blocked.
    timer = threading.Timer(limit_s, _cut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(connection: Connection) -> None:
    # Use a duplicated descriptor: the connection could be closed, and its number reused, at this very moment.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def is_idle(connection: Connection) -> bool:
    """Returns True if a connection is not in a transaction, and neither side has closed it."""
    try:
        return connection.info.transaction_status == TransactionStatus.IDLE and has_nothing_to_read(connection.fileno())
    except psycopg.Error:
        return False


_pools: dict[tuple[int, Conninfo], IdlePool[Connection]] = {}
_pools_lock = threading.Lock()


def pool_of_process(conninfo: Conninfo) -> IdlePool[Connection]:
    """Returns the idle connections of this process: a Python worker runs one task after another."""
    with _pools_lock:
        made = IdlePool(lambda: connect(conninfo), is_idle=is_idle)
        return _pools.setdefault((os.getpid(), conninfo), made)


@atexit.register
def close_all() -> None:
    """Closes the idle connections of this process."""
    with _pools_lock:
        own = [key for key in _pools if key[0] == os.getpid()]
        for key in own:
            _pools.pop(key).close()


def begin(limits: Limits, statement_s: float, application_name: str, idle_s: float) -> sql.SQL:
    """Returns the statements that begin a transaction. Its settings do not depend on server, role or database.

    A statement may take `statement_s`. The server waits `idle_s` for the next one, with all locks held.
    """
    settings = {
        "statement_timeout": _ms(statement_s),
        "lock_timeout": _ms(limits.lock_s),
        "idle_in_transaction_session_timeout": _ms(idle_s),
        "application_name": application_name,
    }
    parts = [f"set_config('{name}', '{value}', true)" for name, value in settings.items()]
    # Replace only 'off', with which the server can lose commits that it has confirmed. Keep any other value that is set
    # for the server or the role, such as remote_write.
    parts.append(
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
    )
    # PostgreSQL 17 added transaction_timeout. At BEGIN, the server starts its timer with the role's or the database's
    # value, and never extends it. Turn it off before setting a different value.
    parts += [
        "CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL "
        f"THEN set_config('transaction_timeout', '{value}', true) END"
        for value in ("0", _ms(2 * statement_s))
    ]
    return sql.SQL(f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT {', '.join(parts)};")


def _ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"

"""What PostgreSQL itself says, by a connection of the tests' own, and one server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sparkonce.testing.servers.postgres import PostgresServer, find_postgres

needs_postgres = pytest.mark.skipif(
    find_postgres() is None, reason="PostgreSQL is not installed (apt install postgresql)"
)


@contextmanager
def running(**settings: str) -> Iterator[PostgresServer]:
    with PostgresServer(settings) as server:
        yield server


def ask(server: PostgresServer, query: str | sql.Composable, *values: Any, **where: str) -> list[tuple[Any, ...]]:
    """One statement by a connection of its own."""
    with psycopg.connect(server.conninfo(**where), autocommit=True) as connection:
        cursor = connection.execute(query, values or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def prepared(server: PostgresServer) -> list[str]:
    return [gid for (gid,) in ask(server, "SELECT gid FROM pg_prepared_xacts ORDER BY gid")]


def staging_tables(server: PostgresServer) -> list[str]:
    found = ask(
        server, r"SELECT relname::text FROM pg_class WHERE relname ~ '^sparkonce_[0-9a-f]{12}_' AND relkind = 'r'"
    )
    return sorted(name for (name,) in found)


def fresh_database(server: PostgresServer, *statements: str) -> None:
    """Takes away what an earlier test left in the database ``postgres``."""
    for gid in prepared(server):
        ask(server, sql.SQL("ROLLBACK PREPARED {}").format(gid))
    ask(server, "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC")
    for statement in statements:
        ask(server, statement)

"""What PostgreSQL itself says, by a connection of the tests' own, and one server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from shared_servers import postgres_server
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.rig.servers.postgres import PostgresServer, find_postgres
from sparkonce.sink import Facts, Owner, SinkWriter, WriterContext
from sparkonce.sinks.postgres.connection import close_all
from sparkonce.sinks.postgres.sink import PostgresSink

needs_postgres = pytest.mark.skipif(
    find_postgres() is None, reason="PostgreSQL is not installed (apt install postgresql)"
)


@contextmanager
def running(**settings: str) -> Iterator[PostgresServer]:
    with PostgresServer(settings) as server:
        yield server


def server_fixture(**settings: str) -> Any:
    """A fixture ``server``: the one that all modules share, or one of the module's own with these settings."""

    @pytest.fixture(scope="module", name="server")
    def started() -> Iterator[PostgresServer]:
        if settings:
            with running(**settings) as server:
                yield server
        else:
            yield empty_server()
            close_all()

    return started


def empty_server() -> PostgresServer:
    """The server of all modules, without what the one before has left in it."""
    server = postgres_server()
    close_all()
    for gid in prepared(server):
        ask(server, sql.SQL("ROLLBACK PREPARED {}").format(gid))
    for (name,) in ask(server, "SELECT datname FROM pg_database WHERE datname <> 'postgres' AND NOT datistemplate"):
        ask(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    ours = r"SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'"
    for (name,) in ask(server, ours):
        ask(server, sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
    for (name,) in ask(server, r"SELECT rolname::text FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> 'postgres'"):
        ask(server, sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))
    fresh_database(server)
    return server


def database_fixture(*statements: str) -> Any:
    """A fixture that gives every test of the module that has it an empty database after these statements."""

    @pytest.fixture(autouse=True)
    def emptied(server: PostgresServer) -> None:
        fresh_database(server, *statements)

    return emptied


def new_sink(server: PostgresServer, table: str = "t", *, user: str = "postgres", **more: Any) -> PostgresSink:
    return PostgresSink(server.conninfo(user=user), table=table, **more)


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
    close_all()  # a role that is made again is another one to the sessions of the first
    for gid in prepared(server):
        ask(server, sql.SQL("ROLLBACK PREPARED {}").format(gid))
    ask(server, "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC")
    for statement in statements:
        ask(server, statement)


QUERY = "0123456789ab"
RUN = Token(3, "0badcafe")


def owner(sink: PostgresSink, *, token: Token = RUN, recorded: Facts | None = None) -> Owner:
    """A run of the sink, after its preflight."""
    return Owner(query=QUERY, token=token, facts=sink.preflight(QUERY, recorded))


def open_writer(
    sink: PostgresSink, rows: pa.RecordBatch, *, run: Owner | None = None, batch: int = 0, slot: int = 0
) -> SinkWriter:
    """A writer that has begun and written."""
    writer = sink.writer(WriterContext(owner=run or owner(sink), batch=batch, slot=slot, copy="1.0.0"))
    try:
        writer.begin()
        writer.write(rows.select(list(sink.columns(rows.schema))))
    except BaseException:
        writer.abort()
        raise
    return writer


def prepare(
    sink: PostgresSink, rows: pa.RecordBatch, *, run: Owner | None = None, batch: int = 0, slot: int = 0
) -> Handle:
    """A handle whose writer is closed; a writer that fails is aborted, as in a task."""
    writer = open_writer(sink, rows, run=run, batch=batch, slot=slot)
    try:
        fields = writer.prepare()
    except BaseException:
        writer.abort()
        raise
    writer.close()
    return Handle(sink=sink.name, slot=slot, rows=rows.num_rows, transaction=transaction_fields(fields))


def finish(sink: PostgresSink, *handles: Handle, commit: bool = True) -> list[Finished]:
    """One attempt, by a committer of its own."""
    with closing(sink.committer()) as committer:
        return list(committer.commit(handles) if commit else committer.abort(handles))


def outcomes(found: list[Finished]) -> list[Outcome]:
    return [one.outcome for one in found]

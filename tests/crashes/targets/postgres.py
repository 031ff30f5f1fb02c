"""PostgreSQL, by prepared transactions and by staged copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from crashes.disk import SmallDisk, cannot_mount
from crashes.matchers import after
from crashes.target import ServerTarget, new_name
from sparkonce.sinks.base import TwoPhaseCommitSink
from sparkonce.sinks.postgres.sink import PostgresSink
from sparkonce.testing.proxy import Request
from sparkonce.testing.servers.postgres import PostgresServer, find_postgres
from sparkonce.testing.servers.process import HOST

_MEGABYTES = 160
_SETTINGS = {"max_prepared_transactions": "100", "max_wal_size": "32MB", "min_wal_size": "32MB"}


class PostgresTarget(ServerTarget):
    preload = (
        "psycopg",
        "sparkonce.sinks.postgres.writer",
        "sparkonce.sinks.postgres.committer",
        "sparkonce.sinks.postgres.preflight",
    )
    shows_within_s = 0.5
    server: PostgresServer

    def __init__(self, name: str, commit: str, requests: dict[str, Request], **settings: object) -> None:
        self.name = name
        self.requests = requests
        self._settings = {"commit": commit, **settings}
        self._witness: psycopg.Connection[tuple[object, ...]] | None = None

    def missing(self) -> str:
        return "" if find_postgres() else "PostgreSQL is not installed (apt install postgresql)"

    @property
    def can_fill(self) -> bool:  # type: ignore[override]
        return not cannot_mount()

    def make_server(self, folder: Path) -> PostgresServer:
        server = PostgresServer(_SETTINGS)
        self._disk = SmallDisk(server.folder, _MEGABYTES)
        return server

    def stop(self) -> None:
        self._close_witness()
        super().stop()
        self._disk.close()
        self.server.delete()

    def new_place(self) -> None:
        self.schema = new_name()
        key = "PRIMARY KEY" if self._settings.get("mode") == "upsert" else ""
        self._ask(f"CREATE SCHEMA {self.schema}")
        self._ask(f"CREATE TABLE {self.schema}.numbers (number bigint {key})")

    def make_sink(self) -> TwoPhaseCommitSink:
        to = f"host={HOST} port={self.proxy.port} dbname=postgres user=postgres connect_timeout=2"
        return PostgresSink(to, table="numbers", schema=self.schema, lock_timeout_s=2.0, **self._settings)  # type: ignore[arg-type]

    def visible(self) -> Sequence[int]:
        return [int(str(number)) for (number,) in self._ask(f"SELECT number FROM {self.schema}.numbers")]  # noqa: S608 - ours

    def lingering(self) -> Sequence[str]:
        tables = sql.SQL(
            "SELECT relname::text FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind = 'r' "
            "AND nspname = {} AND relname NOT IN ('numbers', 'sparkonce_commits')"
        ).format(self.schema)
        questions: list[sql.Composable | str] = [
            "SELECT gid FROM pg_prepared_xacts",
            tables,
            f"SELECT name FROM {self.schema}.sparkonce_commits WHERE state <> 'committed'",  # noqa: S608 - ours
            "SELECT application_name FROM pg_stat_activity WHERE datname IS NOT NULL AND xact_start IS NOT NULL "
            "AND pid <> pg_backend_pid()",
        ]
        return [str(found) for question in questions for (found,) in self._ask(question)]

    def fill_disk(self) -> None:
        self._disk.fill()

    def free_disk(self) -> None:
        self._disk.free()
        if not self.server.is_up():
            self.server.restart()

    def _ask(self, question: str | sql.Composable) -> list[tuple[object, ...]]:
        try:
            if self._witness is None:
                self._witness = psycopg.connect(self.server.conninfo(), autocommit=True)
            cursor = self._witness.execute(question)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error:
            self._close_witness()
            raise

    def _close_witness(self) -> None:
        found, self._witness = self._witness, None
        if found is not None:
            found.close()


COPIED = after(b"SET LOCAL statement_timeout", b"COMMIT\x00")
MOVED = b"SET state = 'committed'"
DROPPED = b"DELETE FROM"

POSTGRES = (
    PostgresTarget(
        "postgres-two-phase",
        "two_phase",
        {"prepare": b"PREPARE TRANSACTION", "commit": b"COMMIT PREPARED", "abort": b"ROLLBACK PREPARED"},
    ),
    PostgresTarget("postgres-staged", "staged", {"prepare": COPIED, "commit": MOVED, "abort": DROPPED}),
)

"""PostgreSQL, by prepared transactions and by staged copies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from crashes.target import ServerOnSmallDisk, keyed_rows, new_name
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.proxy import Request
from sparkonce.rig.servers.postgres import PostgresServer, find_postgres
from sparkonce.rig.servers.process import HOST
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.postgres.sink import PostgresSink
from sparkonce.testing.matchers import after

_MEGABYTES = 160
_SETTINGS = {"max_prepared_transactions": "100", "max_wal_size": "32MB", "min_wal_size": "32MB"}


class PostgresTarget(ServerOnSmallDisk):
    server_kind = "postgres"
    preload = (
        "psycopg",
        "sparkonce.sinks.postgres.writer",
        "sparkonce.sinks.postgres.committer",
        "sparkonce.sinks.postgres.preflight",
    )
    shows_within_s = 0.5
    server: PostgresServer

    def __init__(
        self, name: str, commit: str, requests: dict[str, Request], ends_sessions: Collection[str], **settings: object
    ) -> None:
        self.name = name
        self.requests = requests
        self.ends_sessions = ends_sessions
        self._settings = {"commit": commit, **settings}
        self._witness: psycopg.Connection[tuple[object, ...]] | None = None

    def missing(self) -> str:
        return "" if find_postgres() else "PostgreSQL is not installed (apt install postgresql)"

    def make_server(self, folder: Path) -> PostgresServer:
        server = PostgresServer(_SETTINGS)
        self.disk = SmallDisk(server.folder, _MEGABYTES)
        return server

    def leave(self) -> None:
        self._close_witness()
        super().leave()

    def stop(self) -> None:
        super().stop()
        self.server.delete()

    def new_place(self) -> None:
        self.schema = new_name()
        self._ask(f"CREATE SCHEMA {self.schema}")
        self._ask(f"CREATE TABLE {self.schema}.numbers (number bigint)")

    def make_sink(self) -> TwoPhaseCommitSink:
        to = f"host={HOST} port={self.proxy.port} dbname=postgres user=postgres connect_timeout=2"
        return PostgresSink(to, table="numbers", schema=self.schema, lock_timeout_s=2.0, **self._settings)  # type: ignore[arg-type]

    def visible(self) -> Sequence[int]:
        return [int(str(number)) for (number,) in self._ask(f"SELECT number FROM {self.schema}.numbers")]  # noqa: S608 - ours

    def lingering(self) -> Sequence[str]:
        sessions = (
            "SELECT application_name FROM pg_stat_activity WHERE datname IS NOT NULL AND xact_start IS NOT NULL "
            "AND pid <> pg_backend_pid()"
        )
        return [*self._kept(), *(str(name) for (name,) in self._ask(sessions))]

    def state(self) -> object:
        """With the markers, of which there is one for each transaction."""
        markers = self._ask(f"SELECT name::text, state::text FROM {self.schema}.sparkonce_commits")  # noqa: S608 - ours
        return sorted(self.visible()), sorted(self._kept()), sorted(map(str, markers))

    def _kept(self) -> list[str]:
        """What is open and outlives its session."""
        tables = sql.SQL(
            "SELECT relname::text FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind = 'r' "
            "AND nspname = {} AND relname NOT IN ('numbers', 'history', 'sparkonce_commits')"
        ).format(self.schema)
        open_ = f"SELECT name FROM {self.schema}.sparkonce_commits WHERE state <> 'committed'"  # noqa: S608 - ours
        questions: list[sql.Composable | str] = ["SELECT gid FROM pg_prepared_xacts", tables, open_]
        return [str(found) for question in questions for (found,) in self._ask(question)]

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


class PostgresUpsertTarget(PostgresTarget):
    """Every batch writes the same keys. A trigger notes what is written, in the transaction that writes it."""

    choice = "few"
    rows = staticmethod(keyed_rows)

    def new_place(self) -> None:
        self.schema = new_name()
        self._ask(f"CREATE SCHEMA {self.schema}")
        self._ask(f"SET search_path TO {self.schema}")
        self._ask("CREATE TABLE numbers (key bigint PRIMARY KEY, number bigint)")
        self._ask("CREATE TABLE history (key bigint, number bigint)")
        body = f"BEGIN INSERT INTO {self.schema}.history VALUES (NEW.key, NEW.number); RETURN NULL; END"  # noqa: S608 - ours
        self._ask(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
        self._ask("CREATE TRIGGER noted AFTER INSERT OR UPDATE ON numbers FOR EACH ROW EXECUTE FUNCTION note()")
        self._ask("RESET search_path")

    def visible(self) -> Sequence[int]:
        """All that was written, and a number that no batch has for each key that has not got its newest."""
        found = self._ask(
            f"SELECT number FROM {self.schema}.history UNION ALL "  # noqa: S608 - ours
            "SELECT -1 - key FROM (SELECT key, max(number) AS newest "
            f"FROM {self.schema}.history GROUP BY key) AS h LEFT JOIN {self.schema}.numbers AS n USING (key) "
            "WHERE n.number IS DISTINCT FROM h.newest"
        )
        return [int(str(number)) for (number,) in found]


COPIED = after(b"SET LOCAL statement_timeout", b"COMMIT\x00")
MOVED = b"SET state = 'committed'"
DROPPED = b"DELETE FROM"
STAGED = {"prepare": COPIED, "commit": MOVED, "abort": DROPPED}

POSTGRES = (
    PostgresTarget(
        "postgres-two-phase",
        "two_phase",
        {"prepare": b"PREPARE TRANSACTION", "commit": b"COMMIT PREPARED", "abort": b"ROLLBACK PREPARED"},
        {"prepare"},
    ),
    PostgresTarget("postgres-staged", "staged", STAGED, STAGED),
    PostgresUpsertTarget("postgres-upsert", "staged", STAGED, STAGED, mode="upsert", key_columns=["key"]),
)

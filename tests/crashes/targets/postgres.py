"""PostgreSQL, by prepared transactions and by staged copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from crashes.target import ServerOnSmallDisk, keyed_rows, new_name
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.proxy import Request
from sparkonce.rig.servers.postgres import PostgresServer, find_postgres
from sparkonce.rig.servers.process import HOST
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.postgres.sink import PostgresSink
from sparkonce.testing.systems.postgres import PostgresWitness

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
    columns: Sequence[str] = ("number bigint",)
    witness: PostgresWitness
    server: PostgresServer

    def __init__(
        self,
        name: str,
        commit: str,
        requests: Mapping[str, Request],
        ends_sessions: Collection[str],
        **settings: object,
    ) -> None:
        self.name = name
        self.requests = requests
        self.ends_sessions = ends_sessions
        self._settings = {"commit": commit, **settings}

    def missing(self) -> str:
        return "" if find_postgres() else "PostgreSQL is not installed (apt install postgresql)"

    def make_server(self, folder: Path) -> PostgresServer:
        server = PostgresServer(_SETTINGS)
        self.disk = SmallDisk(server.folder, _MEGABYTES)
        return server

    def _start_proxy(self) -> None:
        super()._start_proxy()
        self.witness = PostgresWitness(self.server.conninfo(), answers_within_s=20.0)

    def leave(self) -> None:
        self.witness.close()
        super().leave()

    def stop(self) -> None:
        super().stop()
        self.server.delete()

    def new_place(self) -> None:
        self.schema = self.witness.schema = new_name()
        self.witness.make_place(*self.columns, table="numbers")

    def make_sink(self) -> TwoPhaseCommitSink:
        to = f"host={HOST} port={self.proxy.port} dbname=postgres user=postgres connect_timeout=2"
        return PostgresSink(to, table="numbers", schema=self.schema, lock_timeout_s=2.0, **self._settings)  # type: ignore[arg-type]

    def visible(self) -> Sequence[int]:
        return self.witness.column(f"SELECT number FROM {self.schema}.numbers")  # noqa: S608 - ours

    def lingering(self) -> Sequence[str]:
        return self.witness.left_open()

    def state(self) -> object:
        """With the markers, of which there is one for each transaction."""
        return sorted(self.visible()), sorted(self.witness.kept()), sorted(self.witness.markers())


class PostgresUpsertTarget(PostgresTarget):
    """Every batch writes the same keys. A trigger notes what is written, in the transaction that writes it."""

    choice = "few"
    rows = staticmethod(keyed_rows)

    columns = ("key bigint PRIMARY KEY", "number bigint")

    def new_place(self) -> None:
        super().new_place()
        self.witness.tables.add("history")
        self.witness.ask(f"SET search_path TO {self.schema}")
        self.witness.ask("CREATE TABLE history (key bigint, number bigint)")
        body = f"BEGIN INSERT INTO {self.schema}.history VALUES (NEW.key, NEW.number); RETURN NULL; END"  # noqa: S608 - ours
        self.witness.ask(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
        self.witness.ask("CREATE TRIGGER noted AFTER INSERT OR UPDATE ON numbers FOR EACH ROW EXECUTE FUNCTION note()")
        self.witness.ask("RESET search_path")

    def visible(self) -> Sequence[int]:
        """All that was written, and a number that no batch has for each key that has not got its newest."""
        return self.witness.column(
            f"SELECT number FROM {self.schema}.history UNION ALL "  # noqa: S608 - ours
            "SELECT -1 - key FROM (SELECT key, max(number) AS newest "
            f"FROM {self.schema}.history GROUP BY key) AS h LEFT JOIN {self.schema}.numbers AS n USING (key) "
            "WHERE n.number IS DISTINCT FROM h.newest"
        )


TWO_PHASE, STAGED = (PostgresWitness.requests[commit] for commit in ("two_phase", "staged"))

POSTGRES = (
    PostgresTarget("postgres-two-phase", "two_phase", TWO_PHASE, {"prepare"}),
    PostgresTarget("postgres-staged", "staged", STAGED, STAGED),
    PostgresUpsertTarget("postgres-upsert", "staged", STAGED, STAGED, mode="upsert", key_columns=["key"]),
)

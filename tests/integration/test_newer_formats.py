"""A table of markers that a newer version has changed is refused by this one, which then does nothing there."""

from __future__ import annotations

import pytest

from integration import test_mysql_preflight as on_mysql
from mariadb_witness import Witness, shared_server
from postgres_witness import QUERY, ask, database_fixture, needs_postgres, new_sink, server_fixture
from sparkonce.errors import PreflightError
from sparkonce.rig.servers.postgres import PostgresServer

NEXT_STEP = "Run the newer version of sparkonce again, which has added them, or upgrade this one"

server = server_fixture(max_prepared_transactions="2")
_database = database_fixture("CREATE TABLE t (id bigint, text text)")


@needs_postgres
@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_postgres(server: PostgresServer, commit: str) -> None:
    facts = new_sink(server, commit=commit).preflight(QUERY, None)
    ask(server, "ALTER TABLE sparkonce_commits ADD sparkonce_lease bigint")
    ask(server, "ALTER TABLE sparkonce_commits ADD audited_by text")  # somebody else's, which was never refused
    for recorded in (None, facts):
        with pytest.raises(
            PreflightError, match=r"public\.sparkonce_commits has columns .* not know: sparkonce_lease"
        ) as told:
            new_sink(server, commit=commit).preflight(QUERY, recorded)
        assert NEXT_STEP in told.value.next_step
    ask(server, "ALTER TABLE sparkonce_commits DROP sparkonce_lease")
    assert new_sink(server, commit=commit).preflight(QUERY, facts) == facts


@pytest.mark.parametrize("table", ["sparkonce_commits", "sparkonce_servers"])
def test_mariadb(table: str) -> None:
    witness = Witness(shared_server())
    witness.run("CREATE TABLE target (number BIGINT PRIMARY KEY, word TEXT) ENGINE=InnoDB")
    facts = on_mysql.check(witness)
    witness.run(f"ALTER TABLE {table} ADD sparkonce_lease BIGINT")
    for recorded in (None, facts):
        with pytest.raises(PreflightError, match=rf"{table} has columns .* does not know: sparkonce_lease") as told:
            on_mysql.check(witness, recorded=recorded)
        assert NEXT_STEP in told.value.next_step
    witness.run(f"ALTER TABLE {table} DROP sparkonce_lease")
    assert on_mysql.check(witness, recorded=facts) == facts

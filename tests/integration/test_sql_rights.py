"""PostgreSQL and MariaDB with exactly the documented privileges: a complete job, and jobs that lose one privilege.

test_postgres_preflight.py and test_mysql_preflight.py test what is missing at the start. Here, privileges are revoked
while the query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shared_servers import needs_postgres
from small_job import SmallJob
from sparkonce.errors import PreflightError, SparkonceError
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.sql.mysql.orphans import list_open as list_mysql_orphans
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.orphans import list_open as list_orphans
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem

SLOW = pytest.mark.slow
MODES: dict[str, dict[str, Any]] = {
    "two_phase": {"commit": "two_phase"},
    "staged": {"commit": "staged"},
    "upsert": {"commit": "staged", "mode": "upsert", "key_columns": ["id"]},
}


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([10 * batch + slot], pa.int64()), "text": ["a"]})


def wanted(batches: int) -> list[int]:
    return [10 * batch + slot for batch in range(batches) for slot in range(2)]


def new_job(checkpoint: Path, make: Callable[[], TwoPhaseCommitSink]) -> SmallJob:
    return SmallJob(checkpoint, lambda: [make()], rows, deadline_s=1.5)


def live(job: SmallJob, orphans: Callable[[], list[Any]]) -> None:
    job.live(lambda: len(orphans()) == 2 or pytest.fail("the command sees other than the 2 slots"))
    assert orphans() == []


def taken_away(job: SmallJob, phase: Phase, take: Callable[[], None], give: Callable[[], None], words: str) -> None:
    """Revokes a privilege in a phase, checks the errors then and at the next start, grants it again, and continues."""
    job.run(0)
    took: list[int] = []

    def listen(entered: Phase, batch: int) -> None:
        if entered is phase and not took:
            took.append(batch)
            take()

    with pytest.raises(SparkonceError, match=words):
        job.run(1, listener=listen)
    with pytest.raises(SparkonceError, match=words):
        job.run(1)
    give()
    job.run(1, 2)


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


def least(postgres: PostgresSystem, mode: str) -> Callable[[], PostgresSink]:
    """The markers have a separate schema, so the CREATE privilege is limited to them."""
    postgres.ask("CREATE ROLE least LOGIN; CREATE SCHEMA markers")
    postgres.ask("REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO least")
    postgres.ask("CREATE TABLE t (id bigint PRIMARY KEY, text text)")
    postgres.ask("GRANT INSERT ON t TO least; GRANT USAGE, CREATE ON SCHEMA markers TO least")
    if mode == "upsert":
        postgres.ask("GRANT SELECT, UPDATE ON t TO least")
    return lambda: PostgresSink(
        postgres.server.conninfo(user="least"), table="t", commits_schema="markers", lock_timeout_s=1, **MODES[mode]
    )


def ids(postgres: PostgresSystem) -> list[int]:
    return [number for (number,) in postgres.ask("SELECT id FROM t ORDER BY id")]


@needs_postgres
@pytest.mark.parametrize("mode", MODES)
def test_postgresql_with_the_least_rights(postgres, tmp_path, mode):
    make = least(postgres, mode)
    live(new_job(tmp_path, make), lambda: list_orphans(postgres.server.conninfo(user="least")))
    assert (ids(postgres), postgres.prepared(), postgres.stages()) == (wanted(4), [], [])
    if mode == "two_phase":
        postgres.ask("REVOKE CREATE ON SCHEMA markers FROM least")
        job = new_job(tmp_path / "again", make)
        postgres.ask("TRUNCATE t")
        job.run(0)
        assert ids(postgres) == wanted(1)


@needs_postgres
@pytest.mark.parametrize(
    ("mode", "right", "on", "phase"),
    [
        ("two_phase", "INSERT", "t", Phase.WRITING),
        ("two_phase", "USAGE", "SCHEMA markers", Phase.FINISHING),
        ("staged", "INSERT", "t", Phase.FINISHING),
        pytest.param("two_phase", "DELETE", "markers.sparkonce_commits", Phase.FINISHING, marks=SLOW),
        pytest.param("staged", "UPDATE", "markers.sparkonce_commits", Phase.FINISHING, marks=SLOW),
        pytest.param("staged", "CREATE", "SCHEMA markers", Phase.WRITING, marks=SLOW),
        pytest.param("upsert", "UPDATE", "t", Phase.FINISHING, marks=SLOW),
    ],
)
def test_a_right_of_postgresql_that_goes(postgres, tmp_path, mode, right, on, phase):
    make = least(postgres, mode)
    taken_away(
        new_job(tmp_path, make),
        phase,
        lambda: postgres.ask(f"REVOKE {right} ON {on} FROM least"),
        lambda: postgres.ask(f"GRANT {right} ON {on} TO least"),
        f"permission.*{on.removeprefix('SCHEMA ').rpartition('.')[2]}|{on.removeprefix('SCHEMA ')}.*permission",
    )
    assert (ids(postgres), postgres.prepared(), postgres.stages()) == (wanted(3), [], [])


@needs_postgres
@pytest.mark.parametrize(
    ("right", "on", "words"),
    [
        *(
            (right, "markers.sparkonce_commits", "permission denied for table sparkonce_commits")
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
        ),
        ("USAGE", "SCHEMA markers", "permission denied for schema markers"),
        ("USAGE", "SCHEMA public", "permission denied for schema public"),
    ],
)
def test_a_right_of_postgresql_that_is_missing_at_the_start(postgres, tmp_path, right, on, words):
    make = least(postgres, "staged")
    new_job(tmp_path / "first", make).run(0)
    postgres.ask(f"TRUNCATE t; REVOKE {right} ON {on} FROM least")
    job = new_job(tmp_path / "second", make)
    with pytest.raises(PreflightError, match=f"{words}.* Next: (?i:Grant)"):
        job.run(0)
    postgres.ask(f"GRANT {right} ON {on} TO least")
    job.run(0)
    assert ids(postgres) == wanted(1)


# --- MariaDB --------------------------------------------------------------------------------------------------------


@pytest.fixture
def mariadb(mariadb) -> Iterator[MySQLSystem]:
    mariadb.ask("CREATE USER IF NOT EXISTS least")
    mariadb.ask("REVOKE ALL PRIVILEGES, GRANT OPTION FROM least")
    mariadb.ask("CREATE TABLE t (id bigint PRIMARY KEY, text varchar(9)) ENGINE=InnoDB")
    yield mariadb
    mariadb.ask("DROP USER least")


def least_of_mariadb(mariadb: MySQLSystem, mode: str) -> Callable[[], MySQLSink]:
    """An administrator creates the sink's own tables, so the CREATE privilege is only needed for staging tables."""
    MySQLSink(mariadb.settings, table="t", **MODES[mode]).preflight("0123456789ab", None)
    for table in ("sparkonce_commits", "sparkonce_servers"):
        mariadb.ask(f"GRANT SELECT, INSERT, DELETE ON {table} TO least")
    mariadb.ask(f"GRANT SELECT, INSERT{', UPDATE' if mode == 'upsert' else ''} ON t TO least")
    if mode != "two_phase":
        # Staging tables have random names, so privileges on them are privileges on the whole database.
        mariadb.ask(f"GRANT SELECT, INSERT, CREATE, DROP ON {mariadb.database}.* TO least")
    settings = {**mariadb.settings, "user": "least"}
    return lambda: MySQLSink(settings, table="t", commit_timeout_s=2, lock_timeout_s=1, **MODES[mode])


def ids_of_mariadb(mariadb: MySQLSystem) -> list[int]:
    return [number for (number,) in mariadb.ask("SELECT id FROM t ORDER BY id")]


@pytest.mark.parametrize("mode", MODES)
def test_mariadb_with_the_least_rights(mariadb, tmp_path, mode):
    make, of_others = least_of_mariadb(mariadb, mode), mariadb.prepared()
    settings = {**mariadb.settings, "user": "least"}
    live(
        new_job(tmp_path, make),
        lambda: [one for one in list_mysql_orphans(settings) if one.database == mariadb.database],
    )
    assert (ids_of_mariadb(mariadb), mariadb.stages(), mariadb.prepared()) == (wanted(4), [], of_others)


@pytest.mark.parametrize(
    ("mode", "right", "on", "phase"),
    [
        ("two_phase", "INSERT", "t", Phase.WRITING),
        ("upsert", "UPDATE", "t", Phase.FINISHING),
        pytest.param("two_phase", "SELECT", "sparkonce_commits", Phase.FINISHING, marks=SLOW),
    ],
)
def test_a_right_of_mariadb_that_goes(mariadb, tmp_path, mode, right, on, phase):
    make, of_others = least_of_mariadb(mariadb, mode), mariadb.prepared()
    where = f"{mariadb.database}.{on}"
    taken_away(
        new_job(tmp_path, make),
        phase,
        lambda: mariadb.ask(f"REVOKE {right} ON {where} FROM least"),
        lambda: mariadb.ask(f"GRANT {right} ON {where} TO least"),
        f"{right} command denied|1142|grant .*{right}",
    )
    assert (ids_of_mariadb(mariadb), mariadb.stages(), mariadb.prepared()) == (wanted(3), [], of_others)

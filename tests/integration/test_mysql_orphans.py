"""``sparkonce transactions list --system mysql``: it lists all open transactions of sparkonce, without changing any."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing

import pytest
from typer.testing import CliRunner

from integration.mysql_scene import Numbers, name_of
from sparkonce.cli.main import app
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.sql.mysql.orphans import MySQLOrphan, list_open
from sparkonce.sinks.sql.mysql.settings import Xid, lock_name, parse_settings, stage_table
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.scene import Scene
from sparkonce_lab.systems.mysql import MySQLSystem


@pytest.fixture
def mariadb(mariadb) -> MySQLSystem:
    mariadb.ask("CREATE TABLE target (number BIGINT) ENGINE=InnoDB")
    return mariadb


@pytest.fixture
def two_phase(mariadb) -> Iterator[Scene]:
    with closing(Scene(Numbers(), MySQLSink(mariadb.settings, table="target", commit="two_phase"))) as made:
        yield made


@pytest.fixture
def staged(mariadb) -> Iterator[Scene]:
    with closing(Scene(Numbers(), MySQLSink(mariadb.settings, table="target"))) as made:
        yield made


def listed(scene: Scene, mariadb: MySQLSystem) -> list[MySQLOrphan]:
    settings = {name: value for name, value in mariadb.settings.items() if name != "database"}
    return [one for one in list_open(settings) if one.query == scene.query]


def test_all_of_a_batch_under_way_is_listed_with_its_age(two_phase, mariadb):
    handle = two_phase.prepare(0, batch=4, slot=2)
    name = name_of(handle)
    writer = two_phase.open(10, batch=4, slot=3)
    found = {one.kind: one for one in listed(two_phase, mariadb)}
    assert set(found) == {"prepared", "session"}
    one = found["prepared"]
    assert (one.batch, one.slot, one.database) == (4, 2, mariadb.database)
    assert one.run == f"{name.token.position}-{name.token.nonce}"
    assert 0 <= one.age_s < 300
    assert (found["session"].batch, found["session"].slot) == (4, 3)
    with closing(mariadb.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        cursor.execute("SELECT connection FROM sparkonce_commits WHERE slot = 3")  # its uncommitted marker
        assert found["session"].holds == (f"connection {cursor.fetchone()[0]}",)
    writer.abort()
    assert two_phase.commit(handle) == [Outcome.COMMITTED]
    assert listed(two_phase, mariadb) == []


def test_staging_tables_are_listed_until_they_are_dropped(staged, mariadb):
    handle = staged.prepare(0, batch=5, slot=1)
    table = stage_table(name_of(handle).copy)
    # belongs to nobody, since it has no comment
    mariadb.ask("CREATE TABLE sparkonce_stage_000000000000 (number BIGINT)")
    (one,) = listed(staged, mariadb)
    assert (one.kind, one.batch, one.slot, one.name) == ("staged", 5, 1, f"`{mariadb.database}`.`{table}`")
    assert one.holds[0].endswith(" KiB for target")
    assert staged.commit(handle) == [Outcome.COMMITTED]
    assert [one.kind for one in listed(staged, mariadb)] == ["merged"]
    staged.committer.conclude(5, [handle])
    assert listed(staged, mariadb) == []


def test_a_branch_whose_markers_cannot_be_seen_is_listed_without_its_age(two_phase, mariadb):
    handle = two_phase.prepare(0, batch=4)
    user = f"blind_{mariadb.database}"
    mariadb.ask(f"CREATE USER {user}@'127.0.0.1'")
    settings = {**mariadb.settings, "user": user}
    del settings["database"]
    (one,) = (each for each in list_open(settings) if each.query == two_phase.query)
    assert (one.kind, one.batch, one.slot, one.age_s, one.database) == ("prepared", -1, -1, -1, "")
    text = shlex.join(f"{name}={str(value).lower()}" for name, value in settings.items())
    shown = CliRunner().invoke(
        app, ["transactions", "list", "--system", "mysql", "--settings", text, "--older-than-s", "3600"]
    )
    assert one.name in shown.output
    mariadb.ask(f"DROP USER {user}@'127.0.0.1'")
    two_phase.abort(handle)


def test_a_branch_that_mariadb_hides_is_listed(two_phase, mariadb):
    """See `test_an_ok_that_did_nothing_is_not_believed`."""
    handle = two_phase.prepare(0)
    xid = Xid.of(name_of(handle))
    two_phase.abort(handle)
    with closing(mariadb.connect()) as preparing, preparing.cursor() as cursor:
        name = name_of(handle)
        cursor.execute(f"XA START {xid}")
        cursor.execute(
            "INSERT INTO sparkonce_commits VALUES (%s, %s, 0, %s, 0, %s, %s, 'two_phase', 1, 0)",
            (name.prefix, name.query, name.copy, name.token.position, name.token.nonce),
        )
        cursor.execute(f"XA END {xid}")
        cursor.execute(f"XA PREPARE {xid}")
        preparing._execute_command(0x1F, b"")  # COM_RESET_CONNECTION: InnoDB does not release the branch
        preparing._read_ok_packet()
        mariadb.ask(f"XA ROLLBACK {xid}")
        assert [one.kind for one in listed(two_phase, mariadb)] == ["hidden"]
    mariadb.restart()
    assert [one.kind for one in listed(two_phase, mariadb)] == ["prepared"]
    mariadb.ask(f"XA ROLLBACK {xid}")
    assert listed(two_phase, mariadb) == []


def test_what_the_page_says_takes_orphans_of_a_query_away_that_is_gone_for_good(two_phase, staged, mariadb):
    """docs/mysql.md, "Orphans"."""
    held, left, decided = two_phase.prepare(0), staged.prepare(10), two_phase.prepare(20)
    (table,) = [one.name for one in listed(staged, mariadb)]
    mariadb.end_branch("ROLLBACK", Xid.of(name_of(held)))
    mariadb.end_branch("COMMIT", Xid.of(name_of(decided)))
    mariadb.ask(f"DROP TABLE {table}")
    assert (listed(two_phase, mariadb), listed(staged, mariadb)) == ([], [])
    assert two_phase.commit(held, decided) == [Outcome.LOST, Outcome.ALREADY_COMMITTED]
    assert staged.commit(left) == [Outcome.LOST]
    assert sorted(number for (number,) in mariadb.ask("SELECT number FROM target")) == [20, 21]
    assert mariadb.ask("SELECT IS_USED_LOCK(%s)", lock_name(name_of(held).copy)) == [(None,)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host=a pass", "Word 2 of the settings has no '='"),
        ("password='s3cr3t", "cannot be read"),
        ("port=x", "port='x' is not a number"),
        ("ssl_disabled=1", "neither true nor false"),
    ],
)
def test_settings_that_cannot_be_read(text, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        parse_settings(text)
    assert "s3cr3t" not in str(refused.value)


def test_settings_of_one_line():
    assert parse_settings("host=db port=3307 ssl_disabled=false password='a b=c' user=''") == {
        "host": "db",
        "port": 3307,
        "ssl_disabled": False,
        "password": "a b=c",
        "user": "",
    }

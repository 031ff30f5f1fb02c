from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from integration.mysql_scene import MAY_NOT_RECOVER
from one_run import QUERY, finish, prepare
from shared_servers import needs_mariadb, new_mariadb
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Facts
from sparkonce.sinks.sql.mysql import preflight
from sparkonce.sinks.sql.mysql.connection import MARIADB, MYSQL
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce_lab.rig.servers.mariadb import MariaDBServer
from sparkonce_lab.systems.mysql import MySQLSystem

SECRET = "s3cr3t-w0rd"  # noqa: S105 - of a user that the test makes


@pytest.fixture
def mariadb(mariadb) -> MySQLSystem:
    mariadb.ask("CREATE TABLE target (number BIGINT PRIMARY KEY, word TEXT) ENGINE=InnoDB")
    return mariadb


@pytest.fixture
def mysql(monkeypatch) -> Callable[[str], None]:
    """Makes MariaDB report a ``server_uuid``, as MySQL does."""

    def become(uuid: str) -> None:
        said = str(MYSQL.identity).replace("@@server_uuid", f"'{uuid}'")
        like = replace(MARIADB, identity=said)
        for module in ("preflight", "connection"):
            monkeypatch.setattr(f"sparkonce.sinks.sql.mysql.{module}.flavour_of", lambda _: like)

    return become


@pytest.fixture
def user(mariadb) -> Iterator[str]:
    name = f"user_{secrets.token_hex(3)}"
    mariadb.ask(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{SECRET}'")
    yield name
    mariadb.ask(f"DROP USER {name}@'127.0.0.1'")


def check(mariadb: MySQLSystem, *, recorded: Facts | None = None, columns: tuple[str, ...] = (), **more: Any) -> Facts:
    settings = {**mariadb.settings, **more.pop("settings", {})}
    sink = MySQLSink(settings, **{"table": "target", **more})
    if columns:
        types = {"number": pa.int64(), "word": pa.string()}
        sink.columns(pa.schema([(name, types.get(name, pa.string())) for name in columns]))
    return sink.preflight(QUERY, recorded)


def test_what_is_remembered(mariadb):
    facts = check(mariadb)
    assert facts == check(mariadb, recorded=facts)
    assert set(facts) == {"prefix", "server", "database", "table"}
    older = {name: facts[name] for name in ("prefix", "server")}
    assert check(mariadb, recorded=older) == facts
    assert facts["prefix"] == "sparkonce.mysql"
    assert check(mariadb, guarantee=Guarantee.AT_LEAST_ONCE) == {}


def test_a_primary_after_a_failover_goes_on_as_the_one_before(mariadb, mysql):
    mysql("aaaa-1")
    facts = check(mariadb)
    assert facts["server"] == "aaaa-1"
    mysql("bbbb-2")
    with pytest.raises(PreflightError) as refusal:
        check(mariadb, recorded=facts)
    found = re.search(r"ALTER TABLE .*(?=\.)", refusal.value.next_step)
    mariadb.ask(found[0])
    assert check(mariadb, recorded=facts) == facts
    mysql("cccc-3")
    with pytest.raises(PreflightError, match="cccc-3"):
        check(mariadb, recorded=facts)


def test_another_database_of_the_same_server_is_refused(mariadb):
    """A copied database has the server's identity too, and on MySQL any database does. But its markers are missing."""
    facts = check(mariadb)
    other = new_mariadb()
    for table in ("target", "sparkonce_servers"):
        other.ask(f"CREATE TABLE {table} LIKE {mariadb.database}.{table}")
    other.ask(f"INSERT INTO sparkonce_servers SELECT * FROM {mariadb.database}.sparkonce_servers")  # noqa: S608 - ours
    with pytest.raises(PreflightError, match=f"{other.database}.*{mariadb.database}.*markers"):
        check(other, recorded=facts)
    assert other.ask("SHOW TABLES LIKE 'sparkonce_commits'") == []
    assert check(other)["server"] == facts["server"]


def test_a_table_of_markers_that_is_gone_is_not_made_again(mariadb):
    """An empty table would make everything that is committed look lost."""
    facts = check(mariadb)
    mariadb.ask("RENAME TABLE sparkonce_commits TO away")
    with pytest.raises(PreflightError, match=r"sparkonce_commits is gone.* Next: Restore it"):
        check(mariadb, recorded=facts)
    mariadb.ask("RENAME TABLE away TO sparkonce_commits")
    assert check(mariadb, recorded=facts) == facts


@pytest.mark.parametrize("table", ["sparkonce_commits", "sparkonce_servers"])
def test_a_table_that_a_newer_version_has_changed_is_refused(mariadb, table):
    check(mariadb)
    mariadb.ask(f"ALTER TABLE {table} ADD sparkonce_lease BIGINT")
    with pytest.raises(PreflightError, match=rf"{table} has columns .* does not know: sparkonce_lease") as told:
        check(mariadb)
    assert "Run the newer version of sparkonce again" in told.value.next_step


def test_another_server_is_refused(mariadb):
    facts = check(mariadb)
    mariadb.ask("UPDATE sparkonce_servers SET host = 'old-name:3306'")
    with pytest.raises(PreflightError, match="sparkonce_servers") as caught:
        check(mariadb, recorded=facts)
    assert facts["server"] in str(caught.value)
    steps = re.search(r"remove the row '(\w+)' from sparkonce_servers, and set host to '(\S+)'", caught.value.next_step)
    mariadb.ask("DELETE FROM sparkonce_servers WHERE id = %s", steps[1])
    mariadb.ask("UPDATE sparkonce_servers SET host = %s WHERE id = %s", steps[2], facts["server"])
    assert check(mariadb, recorded=facts) == facts


@pytest.mark.parametrize(
    ("variable", "value", "more"),
    [
        ("innodb_flush_log_at_trx_commit", "0", {}),
        ("innodb_flush_log_at_trx_commit", "2", {"commit": "two_phase"}),
        ("read_only", "1", {}),
    ],
)
def test_settings_of_the_server(mariadb, variable, value, more):
    ((before,),) = mariadb.ask(f"SELECT @@GLOBAL.{variable}")
    mariadb.ask(f"SET GLOBAL {variable} = {value}")
    try:
        with pytest.raises(PreflightError, match=variable):
            check(mariadb, **more)
    finally:
        mariadb.ask(f"SET GLOBAL {variable} = {before}")
    check(mariadb, **more)


def test_a_server_that_takes_rows_more_slowly_says_so(mariadb, caplog):
    check(mariadb)
    check(mariadb, settings={"local_infile": False})
    assert caplog.messages == []
    mariadb.ask("SET GLOBAL local_infile = 0")
    try:
        check(mariadb)
    finally:
        mariadb.ask("SET GLOBAL local_infile = 1")
    assert "local_infile=OFF" in caplog.messages[0]


def test_without_local_infile_rows_arrive_all_the_same(mariadb):
    sink = MySQLSink(mariadb.settings, table="target")
    mariadb.ask("SET GLOBAL local_infile = 0")
    try:
        finish(sink, prepare(sink, pa.record_batch({"number": [1], "word": ["x"]})))
    finally:
        mariadb.ask("SET GLOBAL local_infile = 1")
    assert mariadb.ask("SELECT * FROM target") == [(1, "x")]


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        (
            "10.4.34-MariaDB",
            "MariaDB 10.4.34-MariaDB.* 10.5 or newer.*MDEV-742.* Next: Update the server to MariaDB 10.5",
        ),
        ("5.5.5-10.4.34-MariaDB-log", "10.5 or newer"),
        ("10.5.0-MariaDB", ""),
        ("8.0.18", "MySQL 8.0.18.* 8.0.19 or newer"),
        ("5.7.44-log", "8.0.19 or newer.*5.7.7"),
        ("unheard of", "8.0.19 or newer"),
    ],
)
def test_a_server_that_is_too_old_is_refused(mariadb, monkeypatch, version, refused):
    """The server reports that it is too old. Before MariaDB 10.5, a prepared transaction ends with its connection."""
    asked = preflight._variables
    monkeypatch.setattr(preflight, "_variables", lambda link: {**asked(link), "version": version})
    if not refused:
        check(mariadb)
        return
    with pytest.raises(PreflightError, match=refused):
        check(mariadb)
    assert mariadb.ask("SHOW TABLES LIKE 'sparkonce%'") == [], "something was made before the refusal"


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_a_user_who_may_not_list_prepared_transactions_is_refused(mariadb, monkeypatch, commit):
    facts = check(mariadb, commit=commit)
    monkeypatch.setattr("sparkonce.sinks.sql.mysql.preflight.flavour_of", lambda _: MAY_NOT_RECOVER)
    with pytest.raises(PreflightError, match=r"XA RECOVER.* error 1401.* Next: Grant XA_RECOVER_ADMIN to the user"):
        check(mariadb, recorded=facts, commit=commit)
    check(mariadb, guarantee=Guarantee.AT_LEAST_ONCE)


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_tables_without_transactions(mariadb, engine):
    mariadb.ask(f"ALTER TABLE target ENGINE={engine}")
    with pytest.raises(PreflightError, match=engine):
        check(mariadb)


def test_what_is_no_table(mariadb):
    with pytest.raises(PreflightError, match="'nowhere'"):
        check(mariadb, table="nowhere")
    mariadb.ask("CREATE VIEW seen AS SELECT * FROM target")
    with pytest.raises(PreflightError, match="view"):
        check(mariadb, table="seen")


def test_columns_that_do_not_fit(mariadb):
    check(mariadb, columns=("number", "word"))
    with pytest.raises(PreflightError, match="needs a value in \\['number'\\]"):
        check(mariadb, columns=("word",))
    with pytest.raises(PreflightError, match="no column 'more'"):
        check(mariadb, columns=("number", "more"))


def test_keys_of_upserts(mariadb):
    upsert: dict[str, Any] = {"mode": "upsert", "columns": ("number", "word")}
    check(mariadb, key_columns=["number"], **upsert)
    with pytest.raises(PreflightError, match="no unique key of exactly"):
        check(mariadb, key_columns=["word"], **upsert)
    mariadb.ask("ALTER TABLE target ADD UNIQUE KEY by_word (word(20))")
    with pytest.raises(PreflightError, match="by_word"):
        check(mariadb, key_columns=["number"], **upsert)
    with pytest.raises(PreflightError, match="no unique key of exactly"):
        check(mariadb, key_columns=["word"], **upsert)


NEEDED = ["SELECT", "INSERT", "CREATE", "DELETE", "DROP"]


@pytest.mark.parametrize("missing", [*NEEDED, "UPDATE"])
def test_each_right_is_missed_by_name(mariadb, user, missing):
    upsert = missing == "UPDATE"
    rights = [right for right in [*NEEDED, *(["UPDATE"] if upsert else [])] if right != missing]
    mariadb.ask(f"GRANT {', '.join(rights)} ON {mariadb.database}.* TO {user}@'127.0.0.1'")
    more: dict[str, Any] = {"settings": {"user": user, "password": SECRET}}
    if upsert:
        more |= {"mode": "upsert", "key_columns": ["number"]}
    with pytest.raises(PreflightError) as caught:
        check(mariadb, **more)
    assert missing in str(caught.value)
    assert SECRET not in str(caught.value)
    mariadb.ask(f"GRANT {missing} ON {mariadb.database}.* TO {user}@'127.0.0.1'")
    check(mariadb, **more)


@needs_mariadb
def test_statement_based_replication_is_refused(tmp_path):
    options = {"log-bin": "bin", "binlog-format": "STATEMENT", "server-id": "1"}
    with MariaDBServer(tmp_path / "data", options=options) as server:
        mariadb = new_mariadb(server)
        mariadb.ask("CREATE TABLE target (number BIGINT) ENGINE=InnoDB")
        with pytest.raises(PreflightError, match="binlog_format=STATEMENT"):
            check(mariadb)
        mariadb.ask("SET GLOBAL binlog_format = ROW")
        check(mariadb)


@pytest.mark.parametrize("setting", ["charset", "autocommit", "sql_mode", "init_command", "read_timeout", "hosts"])
def test_settings_that_are_ours_or_unknown(setting):
    with pytest.raises(ConfigurationError, match=setting):
        MySQLSink({"database": "d", setting: "x"}, table="target")

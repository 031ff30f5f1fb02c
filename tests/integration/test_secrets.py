"""A secret in the settings of each sink except Kafka's, and the places where it must never appear, see `canary`.

Kafka's is tested in test_kafka_security.py, which has a secured broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from psycopg import sql

from canary import CANARY, check, everything_told, rows, said_of
from integration.kafka_witness import new_name
from shared_servers import needs_postgres, needs_redis, postgres_with_passwords
from small_job import SmallJob
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce.sinks.write_ahead.sink import WriteAheadSink
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.systems.postgres import PostgresSystem


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresSystem]:
    with postgres_with_passwords() as system:
        system.ask(sql.SQL("ALTER ROLE etl PASSWORD {}").format(CANARY))
        yield system


@needs_postgres
@pytest.mark.parametrize(("form", "commit"), [("words", "staged"), ("url", "two_phase")])
def test_postgresql(postgres, tmp_path, caplog, form, commit):
    postgres.ask("DROP TABLE IF EXISTS t, sparkonce_commits; CREATE TABLE t (id bigint, value text)")

    def make(*, user: str = "etl", port: int = postgres.server.port, table: str = "t") -> PostgresSink:
        given: Any = {"host": "127.0.0.1", "port": port, "dbname": "postgres", "user": user, "password": CANARY}
        if form == "words":
            given = " ".join(f"{name}={value}" for name, value in given.items())
        elif form == "url":
            given = f"postgresql://{user}:{CANARY}@127.0.0.1:{port}/postgres"
        return PostgresSink(given, table=table, commit=commit)

    check(make, tmp_path, caplog, user={"user": "nobody"}, nowhere={"port": 1}, table={"table": "none"})


def test_mariadb(mariadb, tmp_path, caplog):
    user = new_name("u")[:20]
    mariadb.ask("CREATE USER %s IDENTIFIED BY %s", user, CANARY)
    mariadb.ask("GRANT ALL ON *.* TO %s", user)
    mariadb.ask("CREATE TABLE t (id bigint, value varchar(9)) ENGINE=InnoDB")

    def make(**changed: Any) -> MySQLSink:
        settings = {**mariadb.settings, "user": user, "password": CANARY, **changed}
        return MySQLSink(settings, table="t")

    check(make, tmp_path, caplog, user={"user": "nobody"}, nowhere={"port": 1}, database={"database": "none"})
    mariadb.ask("DROP USER %s", user)


@needs_redis
@pytest.mark.parametrize("form", ["url", "options"])
def test_redis(tmp_path, caplog, form):
    with RedisServer(tmp_path / "data") as server:
        with redis.Redis(port=server.port, protocol=2) as client:
            client.acl_setuser("etl", enabled=True, passwords=[f"+{CANARY}"], categories=["+@all"], keys=["*"])

        def make(*, user: str = "etl", port: int = server.port) -> RedisSink:
            options = {"username": user, "password": CANARY} if form == "options" else {}
            login = f"{user}:{CANARY}@" if form == "url" else ""
            return RedisSink(f"redis://{login}127.0.0.1:{port}/0", options=options, key="id", value="value")

        check(make, tmp_path / "log", caplog, user={"user": "nobody"}, nowhere={"port": 1})


@pytest.mark.parametrize(
    "url",
    [
        f"redis://u:{CANARY}@h:port/0",
        f"redis://:{CANARY}/x@h:1/0",
        f"redis://u:a?{CANARY}@h:1/0",
        f"http://u:{CANARY}@h",
        f"redis://h/0?db={CANARY}",
        f"redis://h:1?password=x@{CANARY}&db=z",
    ],
)
def test_a_redis_url_that_cannot_be_read(url):
    with pytest.raises(ConfigurationError) as raised:
        RedisSink(url, key="id", value="value").preflight("0123456789ab", None)
    assert CANARY not in said_of(raised.value)


@pytest.mark.parametrize(
    "conninfo",
    [f"postgresql://u:{CANARY}@[", f"passwort={CANARY} host=x", {"passwrd": CANARY, "host": "x"}],
    ids=["url", "words", "mapping"],
)
def test_postgresql_settings_that_cannot_be_read(conninfo):
    with pytest.raises(ConfigurationError) as raised:
        PostgresSink(conninfo, table="t")
    assert CANARY not in said_of(raised.value)


def test_s3(bucket, tmp_path, caplog):
    """The server's own key is the secret, since the server has no other."""
    options = bucket.server.settings()
    secret = str(options["aws_secret_access_key"])

    def make(**changed: Any) -> FilesSink:
        given = {**options, **changed}
        return FilesSink(f"s3://{bucket.name}/out", store_options={**given, "aws_session_token": None})

    caplog.set_level(logging.DEBUG)
    told = everything_told(make(), tmp_path)
    SmallJob(tmp_path, lambda: [make()], rows).live()
    for number, changed in enumerate(
        ({"aws_secret_access_key": CANARY}, {"endpoint_url": "http://127.0.0.1:1", "attempts": 1})
    ):
        with pytest.raises(SparkonceError) as raised:
            SmallJob(tmp_path / str(number), lambda changed=changed: [make(**changed)], rows).run(0)
        told.append(said_of(raised.value))
    ours = [record for record in caplog.records if record.name.startswith("sparkonce")]
    told += [record.getMessage() for record in ours]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for word in (secret, CANARY):
        assert not [one for one in told if word in one]
        assert not [one for one in files if word.encode() in one]


def test_s3_takes_no_credentials_in_its_addresses():
    """They would be stored in the log's facts."""
    for location, more in (
        (f"s3://a:{CANARY}@bucket/x", {}),
        ("s3://bucket/x", {"endpoint_url": f"http://a:{CANARY}@h"}),
    ):
        with pytest.raises(ConfigurationError, match="credentials") as raised:
            FilesSink(location, store_options=more).preflight("0123456789ab", None)
        assert CANARY not in said_of(raised.value)


class Applied:
    """A user's function with a password, like one that writes to another system."""

    def __init__(self) -> None:
        self.password = CANARY

    def __call__(self, batch: Any, token: Any) -> None:
        batch.read_all()


def test_write_ahead(tmp_path, caplog):
    check(lambda: WriteAheadSink(Applied(), applies="idempotent"), tmp_path, caplog)

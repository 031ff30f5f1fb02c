"""PostgreSQL, MariaDB and Redis behind TLS: whole jobs go through, and nothing is written where a proof is missing."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest
import redis

from secured import CLIENT, ELSEWHERE, PASSWORD, SERVER, make_certificate, make_keys
from shared_servers import needs_postgres, needs_redis
from small_job import SmallJob
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.mysql.orphans import list_open as list_mysql_orphans
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.sinks.postgres.connection import close_all
from sparkonce.sinks.postgres.orphans import list_open as list_orphans
from sparkonce.sinks.postgres.sink import PostgresSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.mariadb import MariaDBServer
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.systems.mysql import MySQLSystem

WANTED = [100 * batch + 10 * slot for batch in range(3) for slot in range(2)]
QUERY = "0123456789ab"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_keys(tmp_path_factory.mktemp("keys"))
    make_certificate(folder, "elsewhere", ELSEWHERE)
    make_certificate(folder, "expired", SERVER, days=-1)
    make_certificate(folder, "etl", CLIENT, subject="etl")
    make_certificate(folder, "somebody", CLIENT, subject="somebody")
    for key in folder.glob("*.key"):
        key.chmod(0o600)
    return folder


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([100 * batch + 10 * slot], pa.int64()), "text": ["é"]})


def live(checkpoint: Path, make: Callable[[], TwoPhaseCommitSink]) -> None:
    """Writes, is killed before and after a decision, sweeps, commits."""
    job = SmallJob(checkpoint, lambda: [make()], rows)
    job.run(0)
    job.kill(1, Phase.DECIDING)
    job.run(1)
    job.kill(2, Phase.FINISHING)
    job.run(2)


def refused(sink: TwoPhaseCommitSink, words: str) -> str:
    with pytest.raises(PreflightError, match=words) as raised:
        sink.preflight(QUERY, None)
    assert PASSWORD not in f"{raised.value} {raised.value.next_step} {raised.value.details}"
    return str(raised.value)


def refused_in_a_worker(driver: TwoPhaseCommitSink, worker: TwoPhaseCommitSink, words: str) -> None:
    """The driver is satisfied; a worker, whose machine has other files, is not, and says so."""
    owner = Owner(query=QUERY, token=Token(1, "00112233"), facts=driver.preflight(QUERY, None))
    with pytest.raises(PrepareError, match=words) as raised:
        write(worker, owner)
    assert PASSWORD not in f"{raised.value} {raised.value.next_step} {raised.value.details}"
    write(driver, owner)


def write(sink: TwoPhaseCommitSink, owner: Owner) -> None:
    """Writes a row and gives it up."""
    writer = sink.writer(WriterContext(owner=owner, batch=0, slot=0, copy="0.0.0"))
    try:
        writer.begin()
        writer.write(rows(0, 0))
        writer.abort()
    finally:
        writer.close()


# --- PostgreSQL -----------------------------------------------------------------------------------------------------

HBA = b"""
hostssl all postgres 127.0.0.1/32 cert
hostssl all etl      127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert map=people
"""
IDENT = b"people etl certified\npeople client postgres\n"


class SecuredPostgres(PostgresServer):
    """With TLS only: ``etl`` logs in with a password, ``certified`` and the superuser with a certificate."""

    def __init__(self, keys: Path, certificate: str = "broker") -> None:
        names = {"server.pem": f"{certificate}.pem", "server.key": f"{certificate}.key", "ca.pem": "ca.pem"}
        files = {name: (keys / source).read_bytes() for name, source in names.items()}
        settings = {
            "ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem",
            "password_encryption": "scram-sha-256",
        }  # fmt: skip
        hba = HBA.replace(b"postgres 127.0.0.1/32 cert", b"postgres 127.0.0.1/32 cert map=people")
        super().__init__(settings, files={**files, "pg_hba.conf": hba, "pg_ident.conf": IDENT})
        self.keys = keys

    def settings_of(self, user: str, **more: Any) -> dict[str, Any]:
        place = {"host": "127.0.0.1", "port": self.port, "dbname": "postgres", "user": user}
        return {**place, "sslmode": "verify-full", "sslrootcert": str(self.keys / "ca.pem"), **more}

    def certified(self, user: str, name: str, **more: Any) -> dict[str, Any]:
        pair = {"sslcert": str(self.keys / f"{name}.pem"), "sslkey": str(self.keys / f"{name}.key")}
        return self.settings_of(user, **{**pair, **more})

    def ask(self, *statements: Any) -> list[tuple[Any, ...]]:
        locked = {"sslkey": str(self.keys / "client.locked.key"), "sslpassword": PASSWORD, "sslmode": "verify-ca"}
        with psycopg.connect(**self.certified("postgres", "client", **locked), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def prepare(self) -> None:
        self.ask(
            psycopg.sql.SQL("CREATE ROLE etl LOGIN PASSWORD {}").format(PASSWORD),
            "CREATE ROLE certified LOGIN",
            "CREATE TABLE t (id bigint, text text)",
            "GRANT INSERT ON t TO etl, certified",
            "GRANT CREATE, USAGE ON SCHEMA public TO etl, certified",
        )


@pytest.fixture(scope="module")
def postgres(keys: Path) -> Iterator[SecuredPostgres]:
    with SecuredPostgres(keys) as server:
        server.prepare()
        yield server
        close_all()


@pytest.fixture
def table(postgres: SecuredPostgres) -> None:
    close_all()
    postgres.ask("TRUNCATE t", "DROP TABLE IF EXISTS sparkonce_commits")


@needs_postgres
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("login", "commit"), [("password", "staged"), ("certificate", "two_phase"), ("locked", "staged")]
)
def test_postgresql_by(postgres: SecuredPostgres, tmp_path: Path, login: str, commit: str) -> None:
    locked = {"sslkey": str(postgres.keys / "etl.locked.key"), "sslpassword": PASSWORD}
    if login == "locked":
        subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-in", postgres.keys / "etl.key", "-passout", f"pass:{PASSWORD}",
             "-out", postgres.keys / "etl.locked.key"], check=True, timeout=60,
        )  # fmt: skip
        (postgres.keys / "etl.locked.key").chmod(0o600)
    settings = {
        "password": postgres.settings_of("etl", password=PASSWORD),
        "certificate": postgres.certified("certified", "etl"),
        "locked": postgres.certified("certified", "etl", **locked),
    }[login]
    live(tmp_path, lambda: PostgresSink(settings, table="t", commit=commit))
    assert [id for (id,) in postgres.ask("SELECT id FROM t ORDER BY id")] == WANTED  # noqa: A001
    assert list_orphans(psycopg.conninfo.make_conninfo(**settings)) == []
    assert postgres.ask("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]


@needs_postgres
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sslrootcert": "stranger.pem"}, "certificate verify failed"),
        ({"sslmode": "disable"}, "no encryption|no pg_hba.conf entry"),
        ({"password": "wrong"}, "password authentication failed"),
        ({"host": "localhost"}, 'server certificate for .* does not match host name "localhost"'),
    ],
)
def test_what_postgresql_or_its_client_does_not_accept(
    postgres: SecuredPostgres, changed: dict[str, str], words: str
) -> None:
    more = {name: str(postgres.keys / value) if value.endswith(".pem") else value for name, value in changed.items()}
    settings = {**postgres.settings_of("etl", password=PASSWORD), **more}
    told = refused(PostgresSink(settings, table="t"), words)
    assert "sslmode" in told or "credentials" in told
    assert postgres.ask("SELECT to_regclass('sparkonce_commits')::text, (SELECT count(*) FROM t)") == [(None, 0)]


@needs_postgres
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sslrootcert": "stranger.pem"}, "certificate verify failed"),
        ({"sslrootcert": "nowhere.pem"}, "nowhere.pem.* does not exist"),
    ],
)
def test_what_a_worker_of_postgresql_does_not_accept(
    postgres: SecuredPostgres, changed: dict[str, str], words: str
) -> None:
    more = {name: str(postgres.keys / value) if value.endswith(".pem") else value for name, value in changed.items()}
    good = postgres.settings_of("etl", password=PASSWORD)
    refused_in_a_worker(PostgresSink(good, table="t"), PostgresSink({**good, **more}, table="t"), words)
    assert postgres.ask("SELECT count(*) FROM t") == [(0,)]


@needs_postgres
@pytest.mark.usefixtures("table")
def test_a_certificate_of_another_role(postgres: SecuredPostgres) -> None:
    refused(PostgresSink(postgres.certified("certified", "somebody"), table="t"), "certificate authentication failed")
    refused(PostgresSink(postgres.settings_of("certified"), table="t"), "certificate")
    assert postgres.ask("SELECT to_regclass('sparkonce_commits')::text") == [(None,)]


@needs_postgres
@pytest.mark.parametrize(
    ("certificate", "words"),
    [("elsewhere", "does not match host name"), ("expired", "certificate verify failed")],
)
def test_a_postgresql_that_cannot_prove_who_it_is(keys: Path, certificate: str, words: str) -> None:
    with SecuredPostgres(keys, certificate) as server:
        refused(PostgresSink(server.settings_of("etl", password=PASSWORD), table="t"), words)


@needs_postgres
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("host", "mode", "said"),
    [
        ("127.0.0.1", "verify-full", ""),
        ("127.0.0.1", "require", ""),
        (
            "db.invalid",
            "verify-ca",
            "sslmode=verify-ca: the connection to db.invalid is encrypted, and any server that answers",
        ),
        ("db.invalid", "prefer", "sslmode=prefer: the connection to db.invalid is encrypted"),
    ],
)
def test_another_machine_that_need_not_prove_who_it_is_is_said(
    postgres: SecuredPostgres, host: str, mode: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = postgres.settings_of("etl", password=PASSWORD, sslmode=mode, host=host, hostaddr="127.0.0.1")
    with caplog.at_level(logging.INFO):
        PostgresSink(settings, table="t").preflight(QUERY, None)
    assert ("sslmode=" in caplog.text) == bool(said)
    assert said in caplog.text


# --- MariaDB --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mariadb(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDBServer]:
    if MySQLSystem.missing():
        pytest.skip(MySQLSystem.missing())
    options = {"ssl-ca": "ca.pem", "ssl-cert": "broker.pem", "ssl-key": "broker.key"}
    options = {name: str(keys / file) for name, file in options.items()}
    with MariaDBServer(tmp_path_factory.mktemp("mariadb") / "data", options=options) as server:
        with pymysql.connect(**server.settings, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE USER etl IDENTIFIED BY %s REQUIRE SSL", (PASSWORD,))
            cursor.execute("CREATE USER certified REQUIRE SUBJECT '/CN=etl'")
            cursor.execute("GRANT ALL ON shop.* TO etl, certified")
        yield server


def ask_mariadb(server: MariaDBServer, *statements: str) -> list[tuple[Any, ...]]:
    with (
        pymysql.connect(**{**server.settings, "database": "shop"}, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def mariadb_settings(server: MariaDBServer, keys: Path, user: str, **more: Any) -> dict[str, Any]:
    place = {"host": "127.0.0.1", "port": server.port, "database": "shop", "user": user}
    return {**place, "ssl_ca": str(keys / "ca.pem"), "ssl_verify_cert": True, "ssl_verify_identity": True, **more}


@pytest.mark.parametrize(("login", "commit"), [("password", "two_phase"), ("certificate", "staged")])
def test_mariadb_by(mariadb: MariaDBServer, keys: Path, tmp_path: Path, login: str, commit: str) -> None:
    ask_mariadb(
        mariadb,
        "DROP TABLE IF EXISTS t, sparkonce_commits, sparkonce_servers",
        "CREATE TABLE t (id bigint, text varchar(9)) ENGINE=InnoDB CHARSET utf8mb4",
    )
    pair = {"ssl_cert": str(keys / "etl.pem"), "ssl_key": str(keys / "etl.key")}
    settings = {
        "password": mariadb_settings(mariadb, keys, "etl", password=PASSWORD),
        "certificate": mariadb_settings(mariadb, keys, "certified", **pair),
    }[login]
    live(tmp_path, lambda: MySQLSink(settings, table="t", commit=commit))
    assert [id for (id,) in ask_mariadb(mariadb, "SELECT id FROM t ORDER BY id")] == WANTED  # noqa: A001
    assert list_mysql_orphans(settings) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ssl_ca": "stranger.pem"}, "certificate verify failed|CERTIFICATE_VERIFY_FAILED"),
        ({"ssl_disabled": True}, "Access denied"),
        ({"password": "wrong"}, "Access denied"),
        ({"host": "localhost"}, "certificate is not valid for|doesn't match"),
    ],
)
def test_what_mariadb_or_its_client_does_not_accept(
    mariadb: MariaDBServer, keys: Path, changed: dict[str, Any], words: str
) -> None:
    more = {name: str(keys / value) if str(value).endswith(".pem") else value for name, value in changed.items()}
    settings = {**mariadb_settings(mariadb, keys, "etl", password=PASSWORD), **more}
    if "ssl_disabled" in more:
        settings = {name: value for name, value in settings.items() if name in {"ssl_disabled"} or "ssl" not in name}
    refused(MySQLSink(settings, table="t"), words)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ssl_ca": "stranger.pem"}, "certificate verify failed|CERTIFICATE_VERIFY_FAILED"),
        ({"ssl_ca": "nowhere.pem"}, "ssl_ca=.*nowhere.pem"),
    ],
)
def test_what_a_worker_of_mariadb_does_not_accept(
    mariadb: MariaDBServer, keys: Path, changed: dict[str, str], words: str
) -> None:
    ask_mariadb(
        mariadb,
        "DROP TABLE IF EXISTS t, sparkonce_commits, sparkonce_servers",
        "CREATE TABLE t (id bigint, text varchar(9)) ENGINE=InnoDB CHARSET utf8mb4",
    )
    good = mariadb_settings(mariadb, keys, "etl", password=PASSWORD)
    more = {name: str(keys / value) for name, value in changed.items()}
    refused_in_a_worker(MySQLSink(good, table="t"), MySQLSink({**good, **more}, table="t"), words)
    assert ask_mariadb(mariadb, "SELECT count(*) FROM t") == [(0,)]


# --- Redis ----------------------------------------------------------------------------------------------------------


class SecuredRedis(RedisServer):
    """Takes connections with TLS only, of a client with a certificate."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__(folder)
        self.keys = keys
        self.settings |= {
            "tls-port": str(self.port), "port": "0", "tls-cert-file": str(keys / "broker.pem"),
            "tls-key-file": str(keys / "broker.key"), "tls-ca-cert-file": str(keys / "ca.pem"),
        }  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        return {
            "ssl_ca_certs": str(self.keys / "ca.pem"),
            "ssl_certfile": str(self.keys / "client.pem"),
            "ssl_keyfile": str(self.keys / "client.key"),
        }

    def client(self) -> Any:
        return redis.Redis(port=self.port, host="127.0.0.1", ssl=True, protocol=2, **self.options)

    def is_up(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@pytest.fixture(scope="module")
def secured_redis(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    with SecuredRedis(tmp_path_factory.mktemp("redis") / "data", keys) as server:
        with server.client() as client:
            client.acl_setuser("etl", enabled=True, passwords=[f"+{PASSWORD}"], categories=["+@all"], keys=["*"])
            client.config_set("requirepass", "")
        yield server


def redis_sink(server: SecuredRedis, *, host: str = "127.0.0.1", password: str = PASSWORD, **options: Any) -> RedisSink:
    whole = {**server.options, "username": "etl", "password": password, **options}
    return RedisSink(f"rediss://{host}:{server.port}/0", options=whole, key="id", value="text")


@needs_redis
def test_redis(secured_redis: SecuredRedis, tmp_path: Path) -> None:
    live(tmp_path, lambda: redis_sink(secured_redis))
    with secured_redis.client() as client:
        assert sorted(int(key) for key in client.scan_iter("[0-9]*")) == WANTED


@needs_redis
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ssl_ca_certs": "stranger.pem"}, "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        ({"ssl_certfile": None, "ssl_keyfile": None}, "does not answer"),
        ({"password": "wrong"}, "WRONGPASS|invalid username-password"),
        ({"host": "localhost"}, "Hostname mismatch|doesn't match|not valid for"),
    ],
)
def test_what_redis_or_its_client_does_not_accept(
    secured_redis: SecuredRedis, changed: dict[str, Any], words: str
) -> None:
    keys = secured_redis.keys
    more = {name: str(keys / value) if str(value).endswith(".pem") else value for name, value in changed.items()}
    refused(redis_sink(secured_redis, **more), words)


@needs_redis
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ssl_ca_certs": "stranger.pem"}, "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        ({"ssl_ca_certs": "nowhere.pem"}, "ssl_ca_certs=.*nowhere.pem"),
    ],
)
def test_what_a_worker_of_redis_does_not_accept(
    secured_redis: SecuredRedis, changed: dict[str, Any], words: str
) -> None:
    keys = secured_redis.keys
    more = {name: str(keys / value) if str(value).endswith(".pem") else value for name, value in changed.items()}
    with secured_redis.client() as client:
        before = sorted(client.scan_iter("[0-9]*"))
        refused_in_a_worker(redis_sink(secured_redis), redis_sink(secured_redis, **more), words)
        assert sorted(client.scan_iter("[0-9]*")) == before

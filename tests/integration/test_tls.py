"""PostgreSQL, MariaDB and Redis with TLS: complete jobs succeed, and without a valid certificate nothing is written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pyarrow as pa
import pymysql
import pytest
import redis

from one_run import QUERY, open_writer, owner
from secured import CLIENT, ELSEWHERE, PASSWORD, SERVER, make_certificate, make_keys
from shared_servers import needs_postgres, needs_redis
from small_job import SmallJob
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.redis.orphans import list_open as list_redis_orphans
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.sinks.sql.mysql.orphans import list_open as list_mysql_orphans
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce.sinks.sql.postgres.orphans import list_open as list_orphans
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce_lab.rig.servers.mariadb import MariaDBServer
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.systems.mysql import MySQLSystem


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    folder = make_keys(tmp_path_factory.mktemp("keys"))
    make_certificate(folder, "elsewhere", ELSEWHERE)
    make_certificate(folder, "expired", SERVER, days=-1)
    make_certificate(folder, "etl", CLIENT, subject="etl")
    make_certificate(folder, "somebody", CLIENT, subject="somebody")
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", folder / "etl.key", "-passout", f"pass:{PASSWORD}",
         "-out", folder / "etl.locked.key"], check=True, timeout=60,
    )  # fmt: skip
    for key in folder.glob("*.key"):
        key.chmod(0o600)
    return folder


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([100 * batch + 10 * slot], pa.int64()), "text": ["é"]})


# --- the servers ----------------------------------------------------------------------------------------------------


class SecuredPostgres(PostgresServer):
    """Only accepts TLS: ``etl`` logs in with a password, ``certified`` and the superuser with a certificate."""

    def __init__(self, keys: Path, certificate: str = "broker") -> None:
        names = {"server.pem": f"{certificate}.pem", "server.key": f"{certificate}.key", "ca.pem": "ca.pem"}
        files = {name: (keys / source).read_bytes() for name, source in names.items()}
        settings = {
            "ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem",
            "password_encryption": "scram-sha-256",
        }  # fmt: skip
        files["pg_hba.conf"] = (
            b"hostssl all postgres 127.0.0.1/32 cert map=people\n"
            b"hostssl all etl 127.0.0.1/32 scram-sha-256\n"
            b"hostssl all certified 127.0.0.1/32 cert map=people\n"
        )
        files["pg_ident.conf"] = b"people etl certified\npeople client postgres\n"
        super().__init__(settings, files=files)
        self.keys = keys

    def settings_of(self, user: str, certificate: str = "", **more: Any) -> dict[str, Any]:
        pair = {"sslcert": str(self.keys / f"{certificate}.pem"), "sslkey": str(self.keys / f"{certificate}.key")}
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "dbname": "postgres",
            "user": user,
            "sslmode": "verify-full",
            "sslrootcert": str(self.keys / "ca.pem"),
            **(pair if certificate else {}),
            **more,
        }

    def login(self, kind: str) -> dict[str, Any]:
        locked = {"sslkey": str(self.keys / "etl.locked.key"), "sslpassword": PASSWORD}
        return {
            "password": self.settings_of("etl", password=PASSWORD),
            "certificate": self.settings_of("certified", "etl"),
            "locked": self.settings_of("certified", "etl", **locked),
        }[kind]

    def sink(self, kind: str = "password", commit: str = "staged", **changed: Any) -> PostgresSink:
        return PostgresSink({**self.login(kind), **changed}, table="t", commit=commit)

    def ask(self, *statements: Any) -> list[tuple[Any, ...]]:
        locked = {"sslkey": str(self.keys / "client.locked.key"), "sslpassword": PASSWORD, "sslmode": "verify-ca"}
        with psycopg.connect(**self.settings_of("postgres", "client", **locked), autocommit=True) as connection:
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

    def empty(self) -> None:
        close_all()
        self.ask("TRUNCATE t", "DROP TABLE IF EXISTS sparkonce_commits")

    def ids(self) -> list[int]:
        return [number for (number,) in self.ask("SELECT id FROM t ORDER BY id")]

    def left(self, kind: str) -> list[Any]:
        orphans = list_orphans(psycopg.conninfo.make_conninfo(**self.login(kind)))
        return [*orphans, *self.ask("SELECT gid FROM pg_prepared_xacts")]


class SecuredMariaDB(MariaDBServer):
    """``etl`` logs in with a password over TLS, ``certified`` with a certificate."""

    def __init__(self, folder: Path, keys: Path) -> None:
        names = {"ssl-ca": "ca.pem", "ssl-cert": "broker.pem", "ssl-key": "broker.key"}
        super().__init__(folder, options={name: str(keys / file) for name, file in names.items()})
        self.keys = keys

    def login(self, kind: str) -> dict[str, Any]:
        pair = {"ssl_cert": str(self.keys / "etl.pem"), "ssl_key": str(self.keys / "etl.key")}
        who = {"password": {"user": "etl", "password": PASSWORD}, "certificate": {"user": "certified", **pair}}[kind]
        place = {"host": "127.0.0.1", "port": self.port, "database": "shop"}
        verified = {"ssl_ca": str(self.keys / "ca.pem"), "ssl_verify_cert": True, "ssl_verify_identity": True}
        return {**place, **verified, **who}

    def sink(self, kind: str = "password", commit: str = "staged", **changed: Any) -> MySQLSink:
        settings = {**self.login(kind), **changed}
        if "ssl_disabled" in changed:
            settings = {name: value for name, value in settings.items() if name in changed or "ssl" not in name}
        return MySQLSink(settings, table="t", commit=commit)

    def ask(self, *statements: str, database: str | None = "shop") -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(**{**self.settings, "database": database}, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def prepare(self) -> None:
        self.ask(
            "CREATE DATABASE shop",
            f"CREATE USER etl IDENTIFIED BY '{PASSWORD}' REQUIRE SSL",
            "CREATE USER certified REQUIRE SUBJECT '/CN=etl'",
            "GRANT ALL ON shop.* TO etl, certified",
            database=None,
        )

    def empty(self) -> None:
        self.ask(
            "DROP TABLE IF EXISTS t, sparkonce_commits, sparkonce_servers",
            "CREATE TABLE t (id bigint, text varchar(9)) ENGINE=InnoDB CHARSET utf8mb4",
        )

    def ids(self) -> list[int]:
        return [number for (number,) in self.ask("SELECT id FROM t ORDER BY id")]

    def left(self, kind: str) -> list[Any]:
        return list_mysql_orphans(self.login(kind))


class SecuredRedis(RedisServer):
    """Only accepts TLS, from a client with a certificate and a password."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__(folder)
        self.keys = keys
        self.settings |= {
            "tls-port": str(self.port), "port": "0", "tls-cert-file": str(keys / "broker.pem"),
            "tls-key-file": str(keys / "broker.key"), "tls-ca-cert-file": str(keys / "ca.pem"),
        }  # fmt: skip
        names = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}
        self.options = {name: str(keys / file) for name, file in names.items()}

    def client(self) -> Any:
        return redis.Redis(port=self.port, host="127.0.0.1", ssl=True, protocol=2, **self.options)

    def is_up(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def sink(self, kind: str = "password", commit: str = "", *, host: str = "127.0.0.1", **changed: Any) -> RedisSink:
        whole = {**self.options, "username": "etl", "password": PASSWORD, **changed}
        return RedisSink(f"rediss://{host}:{self.port}/0", options=whole, key="id", value="text")

    def prepare(self) -> None:
        with self.client() as client:
            client.acl_setuser("etl", enabled=True, passwords=[f"+{PASSWORD}"], categories=["+@all"], keys=["*"])
            client.config_set("requirepass", "")

    def empty(self) -> None:
        with self.client() as client:
            client.flushall()

    def ids(self) -> list[int]:
        with self.client() as client:
            return sorted(int(key) for key in client.scan_iter("[0-9]*"))

    def left(self, _: str) -> list[Any]:
        return list_redis_orphans(f"rediss://etl:{quote(PASSWORD)}@{self.address}/0?{urlencode(self.options)}")


Secured = SecuredPostgres | SecuredMariaDB | SecuredRedis


@pytest.fixture(scope="module")
def postgres(keys) -> Iterator[SecuredPostgres]:
    with SecuredPostgres(keys) as server:
        server.prepare()
        yield server
        close_all()


@pytest.fixture(scope="module")
def mariadb(keys, tmp_path_factory) -> Iterator[SecuredMariaDB]:
    if MySQLSystem.missing():
        pytest.skip(MySQLSystem.missing())
    with SecuredMariaDB(tmp_path_factory.mktemp("mariadb") / "data", keys) as server:
        server.prepare()
        yield server


@pytest.fixture(scope="module")
def redis_(keys, tmp_path_factory) -> Iterator[SecuredRedis]:
    with SecuredRedis(tmp_path_factory.mktemp("redis") / "data", keys) as server:
        server.prepare()
        yield server


@pytest.fixture
def server(request) -> Secured:
    found: Secured = request.getfixturevalue(request.param)
    found.empty()
    return found


def cases(names: str, *rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    needs = {"postgres": [needs_postgres], "redis_": [needs_redis]}
    found = [pytest.param(*row, marks=needs.get(row[0], [])) for row in rows]
    return pytest.mark.parametrize(f"server, {names}", found, indirect=["server"])


# --- every server ---------------------------------------------------------------------------------------------------


@cases(
    "login, commit",
    ("postgres", "password", "staged"),
    ("postgres", "certificate", "two_phase"),
    ("postgres", "locked", "staged"),
    ("mariadb", "password", "two_phase"),
    ("mariadb", "certificate", "staged"),
    ("redis_", "password", ""),
)
def test_a_job_is_killed_before_and_after_a_decision_and_goes_on(server, tmp_path, login, commit):
    SmallJob(tmp_path, lambda: [server.sink(login, commit)], rows).live()
    assert server.ids() == [100 * batch + 10 * slot for batch in range(4) for slot in range(2)]
    assert server.left(login) == []


def changes(server: Secured, changed: dict[str, Any]) -> dict[str, Any]:
    """The message has the whole path of each file."""
    return {name: str(server.keys / one) if str(one).endswith(".pem") else one for name, one in changed.items()}


def refused(sink: TwoPhaseCommitSink, words: str) -> str:
    with pytest.raises(PreflightError, match=words) as raised:
        sink.preflight(QUERY, None)
    assert PASSWORD not in f"{raised.value} {raised.value.next_step} {raised.value.details}"
    return str(raised.value)


UNVERIFIED = "certificate verify failed|CERTIFICATE_VERIFY_FAILED"


@cases(
    "changed, words",
    ("postgres", {"sslrootcert": "stranger.pem"}, UNVERIFIED),
    ("postgres", {"sslmode": "disable"}, "no encryption|no pg_hba.conf entry"),
    ("postgres", {"password": "wrong"}, "password authentication failed"),
    ("postgres", {"host": "localhost"}, 'server certificate for .* does not match host name "localhost"'),
    ("mariadb", {"ssl_ca": "stranger.pem"}, UNVERIFIED),
    ("mariadb", {"ssl_disabled": True}, "Access denied"),
    ("mariadb", {"password": "wrong"}, "Access denied"),
    ("mariadb", {"host": "localhost"}, "certificate is not valid for|doesn't match"),
    ("redis_", {"ssl_ca_certs": "stranger.pem"}, UNVERIFIED),
    ("redis_", {"ssl_certfile": None, "ssl_keyfile": None}, "does not answer"),
    ("redis_", {"password": "wrong"}, "WRONGPASS|invalid username-password"),
    ("redis_", {"host": "localhost"}, "Hostname mismatch|doesn't match|not valid for"),
)
def test_what_a_server_or_its_client_does_not_accept(server, changed, words):
    told = refused(server.sink(**changes(server, changed)), words)
    if isinstance(server, SecuredPostgres):
        assert "sslmode" in told or "credentials" in told
        assert server.ask("SELECT to_regclass('sparkonce_commits')::text") == [(None,)]
    assert server.ids() == []


@cases(
    "changed, words",
    ("postgres", {"sslrootcert": "stranger.pem"}, UNVERIFIED),
    ("postgres", {"sslrootcert": "nowhere.pem"}, "nowhere.pem.* does not exist"),
    ("mariadb", {"ssl_ca": "stranger.pem"}, UNVERIFIED),
    ("mariadb", {"ssl_ca": "nowhere.pem"}, "ssl_ca=.*nowhere.pem"),
    ("redis_", {"ssl_ca_certs": "stranger.pem"}, UNVERIFIED),
    ("redis_", {"ssl_ca_certs": "nowhere.pem"}, "ssl_ca_certs=.*nowhere.pem"),
)
def test_a_worker_whose_machine_has_other_files_says_so(server, changed, words):
    """The driver's check succeeds."""
    run = owner(server.sink())
    with pytest.raises(PrepareError, match=words) as raised:
        open_writer(server.sink(**changes(server, changed)), rows(0, 0), run=run)
    assert PASSWORD not in f"{raised.value} {raised.value.next_step} {raised.value.details}"
    open_writer(server.sink(), rows(0, 0), run=run).abort()
    assert server.ids() == []


# --- only PostgreSQL ------------------------------------------------------------------------------------------------


@needs_postgres
def test_a_certificate_of_another_role(postgres):
    postgres.empty()
    somebody = PostgresSink(postgres.settings_of("certified", "somebody"), table="t")
    refused(somebody, "certificate authentication failed")
    refused(PostgresSink(postgres.settings_of("certified"), table="t"), "certificate")
    assert postgres.ask("SELECT to_regclass('sparkonce_commits')::text") == [(None,)]


@needs_postgres
@pytest.mark.parametrize(
    ("certificate", "words"), [("elsewhere", "does not match host name"), ("expired", "certificate verify failed")]
)
def test_a_postgresql_that_cannot_prove_who_it_is(keys, certificate, words):
    with SecuredPostgres(keys, certificate) as server:
        refused(server.sink(), words)

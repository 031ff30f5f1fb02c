"""Passwords and certificates change during a run.

The query continues if the client re-reads the secrets; otherwise, it must be restarted.
"""

from __future__ import annotations

import json
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from psycopg import sql

from redis_servers import witness as witness_of
from s3_bucket import Bucket
from shared_servers import needs_postgres, needs_redis, postgres_with_passwords, redis_server
from small_job import SmallJob, one_row, values_of
from sparkonce.errors import (
    ConfigurationError,
    LogError,
    PreflightError,
    PrepareError,
    UnknownOutcomeError,
)
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce.storage.objects import ObjectFiles
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.systems.postgres import PostgresSystem

OLD, NEW = "the-old-password", "the-new-password"


def job_of(folder: Path, make: Callable[[], TwoPhaseCommitSink]) -> SmallJob:
    return SmallJob(folder / "checkpoint", lambda: [make()], one_row, deadline_s=5.0)


def run(job: SmallJob, change: Callable[[], object], phase: Phase = Phase.WRITING) -> None:
    """Runs two batches.

    The secret changes during the second one, and the run's connections are cut at the same time.
    """

    def listen(entered: Phase, batch: int) -> None:
        if (entered, batch) == (phase, 1):
            change()

    job.run(0, 1, listener=listen)


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


class Login:
    def __init__(self, postgres: PostgresSystem, folder: Path) -> None:
        self.postgres = postgres
        self.file = folder / "passwords"
        self.change(OLD)

    def change(self, password: str) -> None:
        self.file.write_text(f"*:*:*:etl:{password}\n")
        self.file.chmod(0o600)
        self.postgres.ask(sql.SQL("ALTER ROLE etl PASSWORD {}").format(password))
        self.postgres.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'etl'")

    def sink(self, **more: str) -> PostgresSink:
        place = {"host": "127.0.0.1", "port": str(self.postgres.server.port), "dbname": "postgres", "user": "etl"}
        return PostgresSink({**place, **more}, table="t")

    def visible(self) -> list[str]:
        return [value for (value,) in self.postgres.ask("SELECT value FROM t ORDER BY 1")]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresSystem]:
    with postgres_with_passwords() as system:
        yield system


@pytest.fixture
def login(postgres, tmp_path) -> Login:
    postgres.ask("DROP TABLE IF EXISTS t, sparkonce_commits; CREATE TABLE t (value text)")
    return Login(postgres, tmp_path)


@needs_postgres
def test_postgresql_reads_a_file_of_passwords_again(login, tmp_path):
    run(job_of(tmp_path, lambda: login.sink(passfile=str(login.file))), lambda: login.change(NEW), Phase.FINISHING)
    assert login.visible() == values_of(0, 1)


@needs_postgres
@pytest.mark.parametrize(("phase", "error"), [(Phase.WRITING, PrepareError), (Phase.FINISHING, UnknownOutcomeError)])
def test_a_password_of_postgresql_that_was_given_needs_a_start(login, tmp_path, phase, error):
    password = OLD
    job = job_of(tmp_path, lambda: login.sink(password=password))
    with pytest.raises(error, match=r"password authentication failed|terminating connection"):
        run(job, lambda: login.change(NEW), phase)
    assert login.visible() == values_of(0)
    with pytest.raises(PreflightError, match="password authentication failed"):
        job.run(1)
    password = NEW
    job.run(1)
    assert login.visible() == values_of(0, 1)


# --- MariaDB ---------------------------------------------------------------------------------------------------------


def test_mariadb_reads_a_file_of_defaults_again(mariadb, tmp_path):
    file = tmp_path / "etl.cnf"
    user = f"etl_{secrets.token_hex(4)}"
    mariadb.ask("CREATE TABLE t (value varchar(20)) ENGINE=InnoDB")
    mariadb.ask(f"CREATE USER {user} IDENTIFIED BY '{OLD}'")
    mariadb.ask(f"GRANT ALL ON {mariadb.database}.* TO {user}")

    def change(password: str) -> None:
        file.write_text(f"[client]\nuser={user}\npassword={password}\n")
        mariadb.ask(f"SET PASSWORD FOR {user} = PASSWORD('{password}')")
        for (session,) in mariadb.ask("SELECT id FROM information_schema.processlist WHERE user = %s", user):
            mariadb.ask(f"KILL {session}")

    change(OLD)
    place = {name: mariadb.settings[name] for name in ("host", "port", "database")}
    sink = {**place, "read_default_file": str(file), "user": user}
    run(job_of(tmp_path, lambda: MySQLSink(sink, table="t")), lambda: change(NEW))
    assert [value for (value,) in mariadb.ask("SELECT value FROM t ORDER BY 1")] == values_of(0, 1)
    mariadb.ask(f"DROP USER {user}")


# --- Redis -----------------------------------------------------------------------------------------------------------


class FromFile:
    """Gives redis-py the credentials from a file for each new connection, through its ``CredentialProvider``."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def get_credentials(self) -> tuple[str, ...]:
        return tuple(self._file.read_text().split())


class RedisLogin:
    """A Redis user who may have two passwords at a time, and whose rows are counters, which show duplicates."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.client = witness_of(server)
        self.user = f"etl-{secrets.token_hex(4)}"
        self.cuts = 0
        self.file = folder / "login"
        self._server = server
        self.allow("on", "~*", "+@all", f">{OLD}")
        self.file.write_text(f"{self.user} {OLD}")

    def allow(self, *rules: str) -> None:
        self.client.execute_command("ACL SETUSER", self.user, *rules)

    def keep_only(self, password: str) -> None:
        self.allow("resetpass", f">{password}")
        self.cut()

    def cut(self) -> None:
        self.cuts += int(self.client.execute_command("CLIENT KILL USER", self.user))

    def job(self, folder: Path, password: Callable[[], str] | None = None) -> SmallJob:
        def make() -> RedisSink:
            login = f"{self.user}:{password()}@" if password else ""
            options = {} if password else {"credential_provider": FromFile(self.file)}
            url = f"redis://{login}{self._server.address}/0"
            key = f"{self.user}:{{n}}"
            sink = RedisSink(url, structure="increment", key_template=key, prefix=self.user, options=options)
            return pickle.loads(pickle.dumps(sink))  # noqa: S301 - as it goes to workers

        return SmallJob(
            folder / "checkpoint",
            lambda: [make()],
            lambda batch, slot: pa.record_batch({"n": [f"{batch}.{slot}"], "amount": [1]}),
            deadline_s=5.0,
        )

    def visible(self) -> list[str]:
        counts = {key: int(self.client.get(key)) for key in self.client.scan_iter(f"{self.user}:*")}
        return sorted(key.decode().partition(":")[2] for key, count in counts.items() for _ in range(count))


@pytest.fixture
def redis_login(tmp_path) -> Iterator[RedisLogin]:
    login = RedisLogin(redis_server(), tmp_path)
    yield login
    login.client.execute_command("ACL DELUSER", login.user)
    login.client.close()


@needs_redis
def test_redis_has_two_passwords_while_one_is_changed(redis_login, tmp_path):
    password = OLD
    job = redis_login.job(tmp_path, lambda: password)

    def add() -> None:
        redis_login.allow(f">{NEW}")
        redis_login.cut()

    run(job, add)
    password = NEW
    job.run(2, listener=lambda phase, _: redis_login.keep_only(NEW) if phase is Phase.WRITING else None)
    assert redis_login.visible() == values_of(0, 1, 2)


@needs_redis
def test_a_provider_of_logins_for_redis_is_asked_at_each_connection(redis_login, tmp_path):
    def change() -> None:
        redis_login.file.write_text(f"{redis_login.user} {NEW}")
        redis_login.keep_only(NEW)

    run(redis_login.job(tmp_path), change, Phase.FINISHING)
    assert redis_login.visible() == values_of(0, 1)
    assert redis_login.cuts > 0


# --- S3 --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def users(bucket) -> list[tuple[str, str]]:
    """Two users, only one of whom has access to the bucket at a time."""
    made = [(f"user-{secrets.token_hex(4)}", secrets.token_hex(16)) for _ in range(2)]
    for user in made:
        bucket.server.add_user(*user)
    allow(bucket, made[0])
    return made


def allow(bucket: Bucket, user: tuple[str, str]) -> None:
    arn = f"arn:aws:s3:::{bucket.name}"
    allowed = {"Effect": "Allow", "Principal": [user[0]], "Action": "s3:*", "Resource": [arn, f"{arn}/*"]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    bucket.client.put_bucket_policy(Bucket=bucket.name, Policy=policy)


@pytest.mark.slow
def test_keys_of_s3_that_expire_are_asked_for_again(bucket, users, tmp_path, monkeypatch):
    """One user starts an upload, and the other one completes it. The keys of their profile come from a program."""
    given, program, config = tmp_path / "keys.json", tmp_path / "give_keys.py", tmp_path / "aws.config"
    program.write_text(
        "import datetime, json, sys\n"
        "soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)\n"
        "keys = json.load(open(sys.argv[1]))\n"
        'print(json.dumps({"Version": 1, "Expiration": soon.isoformat(), **keys}))\n'
    )
    profile = f"rotated-{secrets.token_hex(4)}"  # a process caches the client of a profile
    config.write_text(f"[profile {profile}]\ncredential_process = {sys.executable} {program} {given}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    def change(user: tuple[str, str]) -> None:
        allow(bucket, user)
        given.write_text(json.dumps({"AccessKeyId": user[0], "SecretAccessKey": user[1]}))

    def sink() -> FilesSink:
        place = {"endpoint_url": bucket.server.url, "region_name": "us-east-1", "addressing_style": "path"}
        return FilesSink(f"s3://{bucket.name}/out", format="text", store_options={**place, "profile_name": profile})

    change(users[0])
    run(job_of(tmp_path, sink), lambda: change(users[1]), Phase.FINISHING)
    seen = sorted(line for text in bucket.published().values() for line in text.decode().splitlines())
    assert seen == values_of(0, 1)


# --- a checkpoint in S3 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "refused", "seen"),
    [
        pytest.param(Phase.WRITING, 1, (0,), id="before a decision"),
        pytest.param(Phase.FINISHING, 2, (0, 1), id="after a decision"),
    ],
)
def test_keys_of_the_checkpoint_that_were_given_need_a_start(bucket, users, tmp_path, phase, refused, seen):
    """Decided transactions are still committed. The store only rejects the next decision."""

    def visible() -> list[str]:
        return sorted(line for file in out.glob("*.txt") for line in file.read_text().splitlines())

    def log_with(access: str, secret: str) -> ObjectFiles:
        return bucket.files("checkpoints/totals", access_key_id=access, secret_access_key=secret)

    out = tmp_path / "out"
    job = job_of(tmp_path, lambda: FilesSink(out, format="text"))
    job.files_of_checkpoint = log_with(*users[0])

    def listen(entered: Phase, batch: int) -> None:
        if (entered, batch) == (phase, 1):
            allow(bucket, users[1])

    with pytest.raises(
        LogError, match=rf"decision of batch {refused} could not be written: .*403 AccessDenied"
    ) as told:
        job.run(0, 1, 2, listener=listen)
    assert "keys that its store accepts" in told.value.next_step
    assert visible() == values_of(*seen)
    with pytest.raises(ConfigurationError, match="cannot be written to: HTTP 403 AccessDenied"):
        job.files_of_checkpoint.check()
    with pytest.raises(LogError, match=r"cannot be read: .*403 AccessDenied"):
        job.run(refused)
    job.files_of_checkpoint = log_with(*users[1])
    job.run(*range(refused, 4))
    assert visible() == values_of(0, 1, 2, 3)

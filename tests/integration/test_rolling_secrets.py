"""Passwords and certificates are changed under a run. It goes on where they are read again; elsewhere it is started."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation, ResourceType, ScramCredentialInfo, ScramMechanism
from confluent_kafka.admin import UserScramCredentialUpsertion as Upsertion
from psycopg import sql

from integration.kafka_witness import LIMIT_S, Witness, new_name
from integration.test_kafka_security import allow, leaves_sockets
from integration.test_tls import SecuredPostgres
from mariadb_witness import Witness as MariaDBWitness
from mariadb_witness import shared_server
from postgres_witness import ask, close_all, needs_postgres, running
from s3_bucket import Bucket
from secured import CLIENT, make_certificate, make_keys, secured_cluster
from shared_servers import s3_server
from small_job import SmallJob
from sparkonce.errors import (
    ConfigurationError,
    PreflightError,
    PrepareError,
    SparkonceError,
    UnknownOutcomeError,
)
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.kafka.pooled_producer import INITIALISE_LIMIT_S, PooledProducer
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.sinks.postgres.sink import PostgresSink

pytestmark = pytest.mark.drawn(5, "rolling changes")

OLD, NEW = "the-old-password", "the-new-password"


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [f"{batch}.{slot}"]})


def batches(*numbers: int) -> list[str]:
    return sorted(f"{number}.{slot}" for number in numbers for slot in range(2))


def job_of(folder: Path, make: Callable[[], TwoPhaseCommitSink]) -> SmallJob:
    return SmallJob(folder / "checkpoint", lambda: [make()], rows, deadline_s=5.0)


def run(job: SmallJob, change: Callable[[], object], phase: Phase = Phase.WRITING) -> None:
    """One run of two batches. The change comes in the second, and the run's connections are cut with it."""

    def listen(entered: Phase, batch: int) -> None:
        if (entered, batch) == (phase, 1):
            change()

    job.run(0, 1, listener=listen)


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


class Login:
    """A role with a password, whose sessions the server ends when the password changes."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self.file = folder / "passwords"
        self.change(OLD)

    def change(self, password: str) -> None:
        self.file.write_text(f"*:*:*:etl:{password}\n")
        self.file.chmod(0o600)
        ask(self.server, sql.SQL("ALTER ROLE etl PASSWORD {}").format(password))
        ask(self.server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'etl'")

    def sink(self, **more: str) -> PostgresSink:
        place = {"host": "127.0.0.1", "port": str(self.server.port), "dbname": "postgres", "user": "etl"}
        return PostgresSink({**place, **more}, table="t")

    def visible(self) -> list[str]:
        return [value for (value,) in ask(self.server, "SELECT value FROM t ORDER BY 1")]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as started:
        ask(started, "CREATE ROLE etl SUPERUSER LOGIN")
        hba = started.folder / "pg_hba.conf"
        hba.write_text("host all postgres 127.0.0.1/32 trust\nhost all etl 127.0.0.1/32 scram-sha-256\n")
        ask(started, "SELECT pg_reload_conf()")
        yield started
        close_all()


@pytest.fixture
def login(server: PostgresServer, tmp_path: Path) -> Login:
    ask(server, "DROP TABLE IF EXISTS t, sparkonce_commits; CREATE TABLE t (value text)")
    return Login(server, tmp_path)


@needs_postgres
@pytest.mark.parametrize("phase", [Phase.WRITING, Phase.FINISHING])
def test_postgresql_reads_a_file_of_passwords_again(login: Login, tmp_path: Path, phase: Phase) -> None:
    run(job_of(tmp_path, lambda: login.sink(passfile=str(login.file))), lambda: login.change(NEW), phase)
    assert login.visible() == batches(0, 1)


@needs_postgres
@pytest.mark.parametrize(("phase", "error"), [(Phase.WRITING, PrepareError), (Phase.FINISHING, UnknownOutcomeError)])
def test_a_password_of_postgresql_that_was_given_needs_a_start(
    login: Login, tmp_path: Path, phase: Phase, error: type[SparkonceError]
) -> None:
    password = OLD
    job = job_of(tmp_path, lambda: login.sink(password=password))
    with pytest.raises(error, match=r"password authentication failed|terminating connection"):
        run(job, lambda: login.change(NEW), phase)
    assert login.visible() == batches(0)
    with pytest.raises(PreflightError, match="password authentication failed"):
        job.run(1)
    password = NEW
    job.run(1)
    assert login.visible() == batches(0, 1)


@needs_postgres
def test_postgresql_and_its_authority_are_renewed_while_both_are_trusted(tmp_path: Path) -> None:
    keys, others = (make_keys(_made(tmp_path / name)) for name in ("keys", "others"))
    for key in keys.glob("*.key"):
        key.chmod(0o600)
    with SecuredPostgres(keys) as server:
        server.ask("CREATE TABLE t (value text)", "CREATE ROLE etl SUPERUSER LOGIN PASSWORD 'p'")

        def renew() -> None:
            for source, name in (("broker.pem", "server.pem"), ("broker.key", "server.key")):
                (server.folder / name).write_bytes((others / source).read_bytes())
            server.ask("SELECT pg_reload_conf()")
            with (keys / "ca.pem").open("a") as trusted:  # one file with both, before the old one is taken away
                trusted.write((others / "ca.pem").read_text())
            server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'etl'")

        run(job_of(tmp_path, lambda: PostgresSink(server.settings_of("etl", password="p"), table="t")), renew)  # noqa: S106
        assert [value for (value,) in server.ask("SELECT value FROM t ORDER BY 1")] == batches(0, 1)
        close_all()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


# --- MariaDB ---------------------------------------------------------------------------------------------------------


def test_mariadb_reads_a_file_of_defaults_again(tmp_path: Path) -> None:
    witness, file = MariaDBWitness(shared_server()), tmp_path / "etl.cnf"
    user = f"etl_{secrets.token_hex(4)}"
    witness.run("CREATE TABLE t (value varchar(20)) ENGINE=InnoDB")
    witness.run(f"CREATE USER {user} IDENTIFIED BY '{OLD}'")
    witness.run(f"GRANT ALL ON {witness.database}.* TO {user}")

    def change(password: str) -> None:
        file.write_text(f"[client]\nuser={user}\npassword={password}\n")
        witness.run(f"SET PASSWORD FOR {user} = PASSWORD('{password}')")
        for (session,) in witness.rows("SELECT id FROM information_schema.processlist WHERE user = %s", [user]):
            witness.run(f"KILL {session}")

    change(OLD)
    place = {name: witness.settings[name] for name in ("host", "port", "database")}
    sink = {**place, "read_default_file": str(file), "user": user}
    run(job_of(tmp_path, lambda: MySQLSink(sink, table="t")), lambda: change(NEW))
    assert [value for (value,) in witness.rows("SELECT value FROM t ORDER BY 1")] == batches(0, 1)
    witness.run(f"DROP USER {user}")


# --- Kafka -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def cluster(keys: Path) -> Iterator[Cluster]:
    with secured_cluster(keys) as started:
        yield started


@pytest.fixture
def witness(cluster: Cluster) -> Iterator[Witness]:
    with closing(Witness(cluster.bootstrap)) as opened:
        yield opened


def set_password(witness: Witness, user: str, password: str) -> None:
    change = Upsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode())
    for done in witness.admin.alter_user_scram_credentials([change]).values():
        done.result(LIMIT_S)


@pytest.mark.kafka
@leaves_sockets
def test_a_password_of_kafka_counts_for_new_connections_and_needs_a_start(
    cluster: Cluster, witness: Witness, tmp_path: Path
) -> None:
    user, topic, password = new_name("etl"), witness.create_topic(), OLD
    set_password(witness, user, OLD)
    for kind, name in ((ResourceType.TOPIC, topic), (ResourceType.TRANSACTIONAL_ID, "sparkonce")):
        allow(witness, user, kind, name, AclOperation.WRITE)

    def settings() -> dict[str, str]:
        login = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password}
        return {"bootstrap.servers": cluster.bootstrap_of("SASL"), "security.protocol": "sasl_plaintext", **login}

    job = job_of(tmp_path, lambda: KafkaSink(settings(), topic=topic))
    # After the writes: the driver's connection is there, and commits.
    run(job, lambda: set_password(witness, user, NEW), Phase.VALIDATING)
    assert witness.committed(topic) == batches(0, 1)
    producer = PooledProducer(settings(), transactional_id=new_name("sparkonce"))
    with pytest.raises(PrepareError, match="SASL authentication error"):
        producer.initialise(INITIALISE_LIMIT_S)
    with pytest.raises(PreflightError, match="did not answer"):
        job.run(2)
    password = NEW
    job.run(2)
    assert witness.committed(topic) == batches(0, 1, 2)


@pytest.mark.kafka
def test_a_certificate_for_kafka_is_read_by_each_new_producer_and_connection(
    cluster: Cluster, witness: Witness, keys: Path, tmp_path: Path
) -> None:
    topic, pair = witness.create_topic(), _made(tmp_path / "pair")

    def renew() -> None:
        make_certificate(keys, "client", CLIENT)
        for name in ("client.pem", "client.key"):
            shutil.copy(keys / name, pair / name)

    files = {"certificate": pair / "client.pem", "key": pair / "client.key", "ca": keys / "ca.pem"}
    place = {"bootstrap.servers": cluster.bootstrap_of("TLS"), "security.protocol": "ssl"}
    settings = {**place, **{f"ssl.{name}.location": str(file) for name, file in files.items()}}
    renew()
    job = job_of(tmp_path, lambda: KafkaSink(settings, topic=topic))
    run(job, renew)
    (pair / "client.pem").write_text("half of a certificate")
    with pytest.raises(PrepareError, match=r"ssl\.certificate\.location failed"):
        PooledProducer(settings, transactional_id=new_name("sparkonce"))
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.location"):
        job.run(2)
    renew()
    job.run(2)
    assert witness.committed(topic) == batches(0, 1, 2)


# --- S3 --------------------------------------------------------------------------------------------------------------

PROCESS = """
import datetime, json, sys
soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)
print(json.dumps({"Version": 1, "Expiration": soon.isoformat(), **json.load(open(sys.argv[1]))}))
"""


class Keys:
    """Two users of a bucket, of whom one may use it at a time, and a profile that a program gives the keys."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self.bucket = bucket
        self.users = [(f"user-{secrets.token_hex(4)}", secrets.token_hex(16)) for _ in range(2)]
        for user in self.users:
            bucket.server.add_user(*user)
        self._given = folder / "keys.json"
        program = folder / "give_keys.py"
        program.write_text(PROCESS)
        self.config = folder / "aws.config"
        command = f"{sys.executable} {program} {self._given}"
        self.profile = f"rotated-{secrets.token_hex(4)}"  # a process keeps the client of a profile
        self.config.write_text(f"[profile {self.profile}]\ncredential_process = {command}\n")
        self.change(0)

    def change(self, number: int) -> None:
        access, secret = self.users[number]
        arn = f"arn:aws:s3:::{self.bucket.name}"
        allowed = {"Effect": "Allow", "Principal": access, "Action": "s3:*", "Resource": [arn, f"{arn}/*"]}
        policy = {"Version": "2012-10-17", "Statement": [allowed]}
        self.bucket.client.put_bucket_policy(Bucket=self.bucket.name, Policy=json.dumps(policy))
        self._given.write_text(json.dumps({"AccessKeyId": access, "SecretAccessKey": secret}))

    def sink(self, **given: str) -> FilesSink:
        place = {"endpoint_url": self.bucket.server.url, "region_name": "us-east-1", "addressing_style": "path"}
        return FilesSink(f"s3://{self.bucket.name}/out", format="text", store_options={**place, **given})

    def visible(self) -> list[str]:
        return sorted(line for text in self.bucket.published().values() for line in text.decode().splitlines())


@pytest.fixture
def rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    keys = Keys(Bucket(s3_server()), tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(keys.config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    return keys


@pytest.mark.parametrize("phase", [Phase.WRITING, Phase.FINISHING])
def test_keys_of_s3_that_expire_are_asked_for_again(rotated: Keys, tmp_path: Path, phase: Phase) -> None:
    """An upload that one user began is completed by the other."""
    run(job_of(tmp_path, lambda: rotated.sink(profile_name=rotated.profile)), lambda: rotated.change(1), phase)
    assert rotated.visible() == batches(0, 1)


def test_keys_of_s3_that_were_given_need_a_start(rotated: Keys, tmp_path: Path) -> None:
    user = 0

    def make() -> FilesSink:
        access, secret = rotated.users[user]
        return rotated.sink(aws_access_key_id=access, aws_secret_access_key=secret)

    job = job_of(tmp_path, make)
    with pytest.raises(UnknownOutcomeError, match="AccessDenied"):
        run(job, lambda: rotated.change(1), Phase.FINISHING)
    assert rotated.visible() == batches(0)
    user = 1
    job.run(1)
    assert rotated.visible() == batches(0, 1)

"""The Pravega sink on a server that requires TLS and a password."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname

import pytest

from pravega_witness import SCOPE, PravegaWitness
from secured import PASSWORD, SERVER, make_certificate, make_keys
from spark.harness import new_name
from spark.in_process import SPARK, ended
from spark.table_job import QUERY
from spark.test_pravega import PravegaJob
from sparkonce import ExactlyOnce, FilesSink
from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Outcome
from sparkonce_lab.rig.servers.pravega import PravegaServer
from sparkonce_pravega import Pravega, PravegaSink, read_pravega

pytestmark = [*SPARK, pytest.mark.slow]


def account(user: str, rights: str) -> str:
    """Returns a line of Pravega's account file, with the password encoded as its `StrongPasswordProcessor` does."""
    salt = secrets.token_bytes(32)
    kept = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 5000, 64)
    return f"{user}:{f'5000:{salt.hex()}:{kept.hex()}'.encode().hex()}:{rights};\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    folder = make_keys(tmp_path_factory.mktemp("keys"))
    (folder / "word").write_text("storeword")
    make_certificate(folder, "pravega", f"{SERVER},DNS:{gethostname()}")  # the segment store reports our host name
    store = ["-inkey", "pravega.key", "-in", "pravega.pem", "-out", "pravega.jks", "-passout", "file:word"]
    subprocess.run(["openssl", "pkcs12", "-export", *store], cwd=folder, check=True, capture_output=True)
    trusted = ["-file", "ca.pem", "-keystore", "trust.jks", "-storepass", "storeword", "-noprompt"]
    subprocess.run(["keytool", "-importcert", *trusted], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(keys, tmp_path_factory) -> Iterator[PravegaServer]:
    accounts = keys / "accounts"
    sink = f"prn::/scope:{SCOPE},READ;prn::/scope:{SCOPE}/stream:*,READ_UPDATE"
    accounts.write_text(
        account("admin", "prn::*,READ_UPDATE")
        + account("sink", sink)
        + account("source", sink.replace("READ_UPDATE", "READ"))
        + account("nobody", "")
    )
    settings = {
        "security.auth.enable": "true",
        "security.auth.credentials.username": "admin",
        "security.auth.credentials.pwd": PASSWORD,
        "security.auth.pwdAuthHandler.accountsDb.location": accounts,
        "security.tls.enable": "true",
        "security.tls.certificate.location": keys / "pravega.pem",
        "security.tls.privateKey.location": keys / "pravega.key",
        "security.tls.keyStore.location": keys / "pravega.jks",
        "security.tls.keyStore.pwd.location": keys / "word",
        "security.tls.trustStore.location": keys / "trust.jks",
    }
    given = {f"singlenode.{name}": str(value) for name, value in settings.items()}
    with PravegaServer(tmp_path_factory.mktemp("pravega") / "settings", settings=given) as started:
        yield started


@pytest.fixture(scope="module")
def witness(server, keys, spark) -> PravegaWitness:
    return PravegaWitness(spark._jvm, secure(server), login=("admin", PASSWORD), trusts=str(keys / "ca.pem"))


def secure(server: PravegaServer) -> str:
    return server.url.replace("tcp:", "tls:")


class SecuredJob(PravegaJob):
    """The sink logs in as a user who may write streams and nothing else."""

    keys: Path

    def cluster(self) -> Pravega:
        return Pravega(self.witness.controller, user="sink", password=PASSWORD, trust_store=str(self.keys / "ca.pem"))


def test_rows_are_committed_and_asked_for(spark, tmp_path, witness, keys):
    SecuredJob.keys = keys
    job = SecuredJob(spark, tmp_path, witness)
    handle, interrupted = job.prepare(), job.prepare(batch=1)
    assert job.commit(handle) == [Outcome.COMMITTED], job.run_of_its_own().commit([handle])
    job.commit_unnoticed(interrupted)
    assert job.commit(interrupted) == [Outcome.ALREADY_COMMITTED]
    assert job.numbers() == [0, 100]
    assert PASSWORD not in repr(job.sink().cluster)


def test_a_stream_is_read_by_one_who_may_only_read(spark, server, tmp_path, witness, keys):
    SecuredJob.keys = keys
    job = SecuredJob(spark, tmp_path, witness)
    assert job.commit(job.prepare(rows=3)) == [Outcome.COMMITTED]
    cluster = Pravega(secure(server), user="source", password=PASSWORD, trust_store=str(keys / "ca.pem"))
    rows = read_pravega(spark, cluster, scope=SCOPE, stream=job.stream)
    once = ExactlyOnce(FilesSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "reads"), display=False)
    ended(once.start(rows.selectExpr("cast(value as string) as value"), trigger={"availableNow": True}))
    assert sorted(row.value for row in spark.read.parquet(str(tmp_path / "out")).collect()) == ["0", "1", "2"]
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in one for one in kept)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"password": "no"}, "UNAUTHENTICATED"),
        ({"user": "nobody"}, "PERMISSION_DENIED"),
        ({"user": None, "password": None}, "UNAUTHENTICATED"),
        ({"trust_store": "stranger.pem"}, "unable to find valid certification path"),
        ({"trust_store": None}, "unable to find valid certification path"),
        ({"trust_store": "none.pem"}, "none.pem"),
    ],
)
def test_who_may_not_is_refused_at_start(server, keys, witness, tmp_path, wrong, told):
    stream = new_name("s")
    witness.create(stream)
    right = {"user": "sink", "password": PASSWORD, "trust_store": "ca.pem"} | wrong
    if right["trust_store"]:
        right["trust_store"] = str(keys / right["trust_store"])
    sink = PravegaSink(Pravega(secure(server), **right), scope=SCOPE, stream=stream, folder=tmp_path / "rows")
    with pytest.raises(PreflightError, match=told) as refused:
        sink.preflight(QUERY, None)
    assert PASSWORD not in str(refused.value)

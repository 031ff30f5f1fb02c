"""The Pravega sink on a server that asks for TLS and a password."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_witness import SCOPE, PravegaWitness
from secured import PASSWORD, make_keys
from spark.harness import new_name
from spark.in_process import SPARK
from sparkonce import Pravega, PravegaSink
from sparkonce.errors import PreflightError
from sparkonce.protocol.outcomes import Outcome
from sparkonce.rig.servers.pravega import Pravega as Server
from spark.test_pravega import PravegaJob

pytestmark = [*SPARK, pytest.mark.slow]


def account(user: str, rights: str) -> str:
    """A line of Pravega's file of accounts; the password as its `StrongPasswordProcessor` keeps it."""
    salt = secrets.token_bytes(32)
    kept = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 5000, 64)
    return f"{user}:{f'5000:{salt.hex()}:{kept.hex()}'.encode().hex()}:{rights};\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_keys(tmp_path_factory.mktemp("keys"))
    (folder / "word").write_text("storeword")
    store = ["-inkey", "broker.key", "-in", "broker.pem", "-out", "broker.jks", "-passout", "file:word"]
    subprocess.run(["openssl", "pkcs12", "-export", *store], cwd=folder, check=True, capture_output=True)
    trusted = ["-file", "ca.pem", "-keystore", "trust.jks", "-storepass", "storeword", "-noprompt"]
    subprocess.run(["keytool", "-importcert", *trusted], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    accounts = keys / "accounts"
    sink = f"prn::/scope:{SCOPE},READ;prn::/scope:{SCOPE}/stream:*,READ_UPDATE"
    accounts.write_text(account("admin", "prn::*,READ_UPDATE") + account("sink", sink) + account("nobody", ""))
    settings = {
        "security.auth.enable": "true",
        "security.auth.credentials.username": "admin",
        "security.auth.credentials.pwd": PASSWORD,
        "security.auth.pwdAuthHandler.accountsDb.location": accounts,
        "security.tls.enable": "true",
        "security.tls.certificate.location": keys / "broker.pem",
        "security.tls.privateKey.location": keys / "broker.key",
        "security.tls.keyStore.location": keys / "broker.jks",
        "security.tls.keyStore.pwd.location": keys / "word",
        "security.tls.trustStore.location": keys / "trust.jks",
    }
    given = {f"singlenode.{name}": str(value) for name, value in settings.items()}
    with Server(tmp_path_factory.mktemp("pravega") / "settings", settings=given) as started:
        yield started


def test_x(server: Server, keys: Path, spark: SparkSession) -> None:
    print(server.url)

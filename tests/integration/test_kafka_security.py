"""The driver connects with the settings of the writers, and says what a user is not allowed to do."""

from __future__ import annotations

import base64
import gc
import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from integration.kafka_witness import LIMIT_S, Witness, eventually, new_name, until_final
from secured import PASSWORD, make_keys, secured_cluster
from sparkonce.embedded import Cluster
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.outcomes import Outcome
from sparkonce.sinks.base import Facts
from sparkonce.sinks.kafka import preflight as preflight_module
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.preflight import preflight

pytestmark = pytest.mark.kafka

Settings = dict[str, Any]

# kafka-python leaves the socket of a failed TLS handshake to the garbage collector.
leaves_sockets = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def cluster(keys: Path) -> Iterator[Cluster]:
    with secured_cluster(keys) as started:
        yield started


@pytest.fixture(scope="module")
def witness(cluster: Cluster) -> Iterator[Witness]:
    with closing(Witness(cluster.bootstrap)) as opened:
        yield opened


@pytest.fixture(scope="module")
def topic(witness: Witness) -> str:
    return witness.create_topic()


@pytest.fixture
def sasl(cluster: Cluster) -> Callable[..., Settings]:
    def settings(mechanism: str, user: str) -> Settings:
        return {
            "bootstrap.servers": cluster.bootstrap_of("SASL"),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    return settings


@pytest.fixture
def tls(cluster: Cluster, keys: Path) -> Settings:
    return {
        "bootstrap.servers": cluster.bootstrap_of("TLS"),
        "security.protocol": "ssl",
        "ssl.ca.location": str(keys / "ca.pem"),
        "ssl.certificate.location": str(keys / "client.pem"),
        "ssl.key.location": str(keys / "client.locked.key"),
        "ssl.key.password": PASSWORD,
    }


def check(settings: Settings, topic: str | None = None, prefix: str = "orders") -> Facts:
    return preflight(
        settings,
        topic=topic,
        guarantee=Guarantee.EXACTLY_ONCE,
        prefix=prefix,
        timeout_ms=None,
        query="0123456789ab",
        recorded=None,
    )


def allow(witness: Witness, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    bindings = [
        AclBinding(kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for done in witness.admin.create_acls(bindings).values():
        done.result(LIMIT_S)


def add_scram_user(witness: Witness, user: str, mechanism: str) -> None:
    kind = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}[mechanism]
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
    for done in witness.admin.alter_user_scram_credentials([change]).values():
        done.result(LIMIT_S)
    allow(witness, user, ResourceType.TRANSACTIONAL_ID, "id-", AclOperation.WRITE)


def unsecured_token(_: str) -> tuple[str, float]:
    now_s = time.time()

    def part(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'sub': 'token', 'iat': now_s, 'exp': now_s + 600})}.", now_s + 600


def commits(witness: Witness, topic: str, settings: Settings) -> list[Outcome]:
    prepared = witness.prepare(topic)
    with closing(KafkaCommitter(settings, "kafka")) as committer:
        return until_final(committer.commit, [prepared.handle])


def test_sasl_plain(witness: Witness, topic: str, sasl: Callable[..., Settings]) -> None:
    allow(witness, "plain", ResourceType.TRANSACTIONAL_ID, "id-", AclOperation.WRITE)
    assert commits(witness, topic, sasl("PLAIN", "plain")) == [Outcome.COMMITTED]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_scram(witness: Witness, topic: str, sasl: Callable[..., Settings], mechanism: str) -> None:
    user = new_name("scram")
    add_scram_user(witness, user, mechanism)
    assert commits(witness, topic, sasl(mechanism, user)) == [Outcome.COMMITTED]


def test_sasl_oauthbearer(witness: Witness, topic: str, sasl: Callable[..., Settings]) -> None:
    settings = {**sasl("OAUTHBEARER", ""), "oauth_cb": unsecured_token}
    assert commits(witness, topic, settings) == [Outcome.COMMITTED]
    assert check(settings, topic)["prefix"] == "orders"


def test_credentials_that_are_refused_once_are_tried_again(
    witness: Witness, topic: str, sasl: Callable[..., Settings]
) -> None:
    prepared = witness.prepare(topic)
    user = new_name("scram")
    with closing(KafkaCommitter(sasl("SCRAM-SHA-256", user), "kafka", attempt_timeout_s=1.0)) as committer:
        (refused,) = committer.commit([prepared.handle])
        assert refused.outcome is Outcome.RETRY
        add_scram_user(witness, user, "SCRAM-SHA-256")
        assert until_final(committer.commit, [prepared.handle]) == [Outcome.COMMITTED]


@pytest.mark.parametrize("form", ["files", "texts", "folder", "unverified"])
def test_tls(witness: Witness, topic: str, tls: Settings, keys: Path, form: str) -> None:
    if form == "texts":
        tls = {name: value for name, value in tls.items() if not name.endswith(".location")}
        tls["ssl.ca.pem"] = (keys / "ca.pem").read_text()
        tls["ssl.certificate.pem"] = (keys / "client.pem").read_text()
        tls["ssl.key.pem"] = (keys / "client.locked.key").read_text()
    elif form == "folder":
        subprocess.run(["openssl", "rehash", str(keys)], check=True, capture_output=True, timeout=LIMIT_S)
        tls["ssl.ca.location"] = str(keys)
    elif form == "unverified":
        tls["ssl.ca.location"] = str(keys / "stranger.pem")
        tls["enable.ssl.certificate.verification"] = "false"
    assert commits(witness, topic, tls) == [Outcome.COMMITTED]
    assert check(tls, topic)["prefix"] == "orders"


@leaves_sockets
def test_a_broker_that_cannot_prove_who_it_is(tls: Settings, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", 2.0)
    with pytest.raises(PreflightError, match="CERTIFICATE_VERIFY_FAILED"):
        check({**tls, "ssl.ca.location": str(keys / "stranger.pem")})
    gc.collect()


@leaves_sockets
def test_a_client_that_cannot_prove_who_it_is(tls: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", 2.0)
    bare = {name: value for name, value in tls.items() if "certificate" not in name and "key" not in name}
    with pytest.raises(PreflightError, match=r"bootstrap\.servers=.* did not answer"):
        check(bare)
    gc.collect()


def test_a_password_that_does_not_open_the_key(tls: Settings) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.(key|certificate)\.location"):
        check({**tls, "ssl.key.password": "wrong"})


def test_a_wrong_password(sasl: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", 2.0)
    with pytest.raises(PreflightError, match=r"did not answer .* credentials"):
        check({**sasl("PLAIN", "plain"), "sasl.password": "wrong"})


def test_permissions_are_named(
    witness: Witness, topic: str, sasl: Callable[..., Settings], caplog: pytest.LogCaptureFixture
) -> None:
    settings = sasl("PLAIN", "half")

    def refused(message: str) -> None:
        with pytest.raises(PreflightError, match=message):
            eventually_refused(message)

    def eventually_refused(message: str) -> None:
        # A permission takes effect a moment after it is given.
        def attempt() -> str:
            try:
                check(settings, topic)
            except PreflightError as error:
                return str(error)
            return "accepted"

        raise PreflightError(eventually(attempt, lambda words: message in words))

    refused(f"topic='{topic}' may not be seen")
    allow(witness, "half", ResourceType.TOPIC, topic, AclOperation.READ)
    refused(f"topic='{topic}' may not be written to")
    allow(witness, "half", ResourceType.TOPIC, topic, AclOperation.WRITE)
    refused("transactional_id_prefix='orders'")
    allow(witness, "half", ResourceType.TRANSACTIONAL_ID, "orders", AclOperation.DESCRIBE)
    refused("transactional_id_prefix='orders'")
    allow(witness, "half", ResourceType.TRANSACTIONAL_ID, "orders", AclOperation.WRITE)

    def facts() -> Facts | None:
        try:
            return check(settings, topic)
        except PreflightError:
            return None

    caplog.set_level(logging.WARNING, "sparkonce")
    # Not allowed to read the broker's limit.
    assert eventually(facts, lambda found: found is not None)["transaction_timeout_ms"] == "60000"
    assert "transaction.max.timeout.ms" in caplog.text
    allow(witness, "half", ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS)
    eventually(facts, lambda found: found is not None and found["transaction_timeout_ms"] == "900000")


def test_a_permission_that_is_taken_away_loses_nothing(
    witness: Witness, topic: str, sasl: Callable[..., Settings]
) -> None:
    prepared = witness.prepare(topic, transactional_id=new_name("late"))
    with closing(KafkaCommitter(sasl("PLAIN", "late"), "kafka")) as committer:
        for finish in (committer.commit, committer.abort):
            (refused,) = finish([prepared.handle])
            assert refused.outcome is Outcome.UNKNOWN
            assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Nothing is lost yet" in refused.reason
        allow(witness, "late", ResourceType.TRANSACTIONAL_ID, "late-", AclOperation.WRITE)
        eventually(lambda: committer.commit([prepared.handle])[0].outcome, lambda one: one is Outcome.COMMITTED)

"""The driver connects with the writers' settings, and reports what its user is not allowed to do."""

from __future__ import annotations

import base64
import gc
import json
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from canary import CANARY, said_of
from canary import check as look_everywhere
from eventually import LIMIT_S, eventually
from integration.kafka_witness import Witness, new_name, until_final
from secured import ELSEWHERE, PASSWORD, SERVER, make_certificate, make_keys, secured_cluster
from small_job import SmallJob, one_row, values_of
from sparkonce.errors import ConfigurationError, PreflightError, SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sink import Facts
from sparkonce.sinks.kafka import blocking as blocking_module
from sparkonce.sinks.kafka import preflight as preflight_module
from sparkonce.sinks.kafka.blocking import KafkaMonitor
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.preflight import preflight
from sparkonce.sinks.kafka.settings import producer_settings
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.source import SourceFacts
from sparkonce.sources import topics as topics_module
from sparkonce.sources.groups import GroupOffsets, GroupReporter
from sparkonce.sources.kafka import consumer_settings
from sparkonce.sources.topics import ask_sources
from sparkonce_lab.kafka import list_transactions
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

Settings = dict[str, Any]

FAILS_WITHIN_S = 1.0
"""How long a preflight retries before it fails. A test that expects the failure has to wait that long."""

# After a failed TLS handshake or a rejected login, kafka-python leaves it to the garbage collector to close the socket.
leaves_sockets = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    folder = make_keys(tmp_path_factory.mktemp("keys"))
    make_certificate(folder, "elsewhere", ELSEWHERE)
    make_certificate(folder, "expired", SERVER, days=-1)
    return folder


@pytest.fixture(scope="module")
def cluster(keys) -> Iterator[Cluster]:
    with secured_cluster(keys) as started:
        yield started


@pytest.fixture(scope="module")
def witness(cluster) -> Witness:
    return Witness(cluster.bootstrap)


@pytest.fixture(scope="module")
def topic(witness) -> str:
    return witness.create_topic()


@pytest.fixture
def sasl(cluster) -> Callable[..., Settings]:
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
def tls(cluster, keys) -> Settings:
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


def commits(witness: Witness, topic: str, settings: Settings) -> list[Outcome]:
    prepared = witness.prepare(topic)
    with closing(KafkaCommitter(settings, "kafka")) as committer:
        return until_final(committer.commit, [prepared.handle])


def test_sasl_oauthbearer(witness, topic, sasl):
    def unsecured_token(_: str) -> tuple[str, float]:
        now_s = time.time()

        def part(value: dict[str, object]) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        return f"{part({'alg': 'none'})}.{part({'sub': 'token', 'iat': now_s, 'exp': now_s + 600})}.", now_s + 600

    settings = {**sasl("OAUTHBEARER", ""), "oauth_cb": unsecured_token}
    assert commits(witness, topic, settings) == [Outcome.COMMITTED]
    assert check(settings, topic)["prefix"] == "orders"


def test_credentials_that_are_refused_once_are_tried_again(witness, topic, sasl):
    prepared = witness.prepare(topic)
    user = new_name("scram")
    with closing(KafkaCommitter(sasl("SCRAM-SHA-256", user), "kafka", attempt_timeout_s=1.0)) as committer:
        (refused,) = committer.commit([prepared.handle])
        assert refused.outcome is Outcome.RETRY
        add_login(witness, user, mechanism=ScramMechanism.SCRAM_SHA_256)
        allow(witness, user, ResourceType.TRANSACTIONAL_ID, "id-", AclOperation.WRITE)
        assert until_final(committer.commit, [prepared.handle]) == [Outcome.COMMITTED]


@pytest.mark.parametrize("form", ["files", "texts", "folder", "unverified"])
def test_tls(witness, topic, tls, keys, form):
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
def test_a_broker_that_cannot_prove_who_it_is(tls, keys, monkeypatch):
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", FAILS_WITHIN_S)
    with pytest.raises(PreflightError, match="CERTIFICATE_VERIFY_FAILED"):
        check({**tls, "ssl.ca.location": str(keys / "stranger.pem")})
    gc.collect()


@leaves_sockets
def test_a_client_that_cannot_prove_who_it_is(tls, monkeypatch):
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", FAILS_WITHIN_S)
    bare = {name: value for name, value in tls.items() if "certificate" not in name and "key" not in name}
    with pytest.raises(PreflightError, match=r"bootstrap\.servers=.* did not answer"):
        check(bare)
    gc.collect()


def test_a_password_that_does_not_open_the_key(tls):
    with pytest.raises(ConfigurationError, match=r"ssl\.(key|certificate)\.location"):
        check({**tls, "ssl.key.password": "wrong"})


def test_a_wrong_password(sasl, monkeypatch):
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", FAILS_WITHIN_S)
    with pytest.raises(PreflightError, match=r"did not answer .* credentials"):
        check({**sasl("PLAIN", "plain"), "sasl.password": "wrong"})


@leaves_sockets
def test_a_start_asks_a_sources_brokers_as_javas_client_would(witness, topic, tls, sasl, keys, monkeypatch, caplog):
    def source_of(settings: Settings, topic: str, **more: str) -> SourceFacts:
        options = {f"kafka.{name}": one for name, one in {**consumer_settings(settings), **more}.items()}
        return SourceFacts(format="kafka", options={"subscribe": topic, **options})

    tls["ssl.key.location"] = str(keys / "client.java.key")
    one_file = keys / "client.both.pem"
    one_file.write_text((keys / "client.java.key").read_text() + (keys / "client.pem").read_text())
    in_one = {**tls, "ssl.certificate.location": str(one_file), "ssl.key.location": str(one_file)}
    trusts_no_other = {**tls, "ssl.ca.location": str(keys / "broker.pem")}
    user = new_name("scram")
    add_login(witness, user)
    allow(witness, user, ResourceType.TOPIC, topic, AclOperation.READ)
    login = sasl("SCRAM-SHA-512", user)

    def known() -> list[Mapping[str, int]] | None:
        given = [[source_of(each, topic)] for each in (tls, in_one, trusts_no_other, login)]
        try:  # a permission takes effect with a short delay
            return [found.partitions for each in given for found in ask_sources(each, is_first=True)]
        except PreflightError as error:
            if "may not be seen by this user" not in str(error):
                raise
            return None

    assert eventually(known, until=lambda found: found is not None) == [{topic: 2}] * 4
    assert not [one for one in caplog.records if one.name == "sparkonce"]

    with pytest.raises(PreflightError, match="may not be seen by this user"):
        ask_sources([source_of(login, witness.create_topic())], is_first=True)
    with monkeypatch.context() as patched:
        patched.setattr(topics_module, "LIMIT_S", FAILS_WITHIN_S)
        with pytest.raises(PreflightError, match=r"refused this user.*: .*(AuthenticationFailed|disconnected)"):
            ask_sources([source_of({**login, "sasl.password": "wrong"}, topic)], is_first=True)
    with pytest.raises(PreflightError, match=r"did not answer within 15 s: .*CERTIFICATE_VERIFY_FAILED"):
        ask_sources([source_of({**tls, "ssl.ca.location": str(keys / "stranger.pem")}, topic)], is_first=True)
    assert not [one for one in caplog.records if one.name == "sparkonce"]

    trusts_javas = {name: one for name, one in tls.items() if name != "ssl.ca.location"}
    assert ask_sources([source_of(trusts_javas, topic)], is_first=True)[0].partitions == {}
    assert "cannot be queried: " in caplog.text, "Java may trust others than Python"
    gc.collect()


def test_permissions_are_named(witness, topic, sasl, caplog):
    settings = sasl("PLAIN", "half")

    def attempt() -> Facts | str:
        try:
            return check(settings, topic)
        except PreflightError as error:
            return str(error)

    def refused(message: str) -> None:
        eventually(attempt, until=lambda told: message in told)  # a permission takes effect with a short delay

    refused(f"topic='{topic}' may not be seen")
    allow(witness, "half", ResourceType.TOPIC, topic, AclOperation.READ)
    refused(f"topic='{topic}' may not be written to")
    allow(witness, "half", ResourceType.TOPIC, topic, AclOperation.WRITE)
    refused("prefix='orders'")
    allow(witness, "half", ResourceType.TRANSACTIONAL_ID, "orders", AclOperation.DESCRIBE)
    refused("prefix='orders'")
    allow(witness, "half", ResourceType.TRANSACTIONAL_ID, "orders", AclOperation.WRITE)

    def with_timeout(timeout_ms: str) -> Callable[[Facts | str], bool]:
        return lambda told: not isinstance(told, str) and told["transaction_timeout_ms"] == timeout_ms

    caplog.set_level(logging.WARNING, "sparkonce")
    # The user may not read the broker's limit.
    eventually(attempt, until=with_timeout("60000"))
    assert "transaction.max.timeout.ms" in caplog.text
    allow(witness, "half", ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS)
    eventually(attempt, until=with_timeout("900000"))


# --- a whole job over TLS with a password, and with only the rights that it needs ------------------------------------

ODD_PREFIX = 'it\'s "odd"; %s/../é數 *'
"""An ACL's prefix is compared character by character; none of these means anything to Kafka."""


class Rights:
    """The permissions of a user, one by one, and a job that runs as this user.

    Args:
        witness: Grants and revokes permissions.
        cluster: The broker.
        keys: The keys of its certificate authority.
        tag: Distinguishes the user from others.
    """

    def __init__(self, witness: Witness, cluster: Cluster, keys: Path, tag: str) -> None:
        self.witness = witness
        self.user, self.group, self.prefix = new_name(tag), new_name("group"), f"{ODD_PREFIX}{new_name(tag)}"
        self.topic, self.source = witness.create_topic(), witness.create_topic()
        self.settings: Settings = {
            "bootstrap.servers": cluster.bootstrap_of("BOTH"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.user,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(keys / "ca.pem"),
        }
        add_login(witness, self.user)
        literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
        self.least = {
            "topic": (ResourceType.TOPIC, self.topic, literal, AclOperation.WRITE),
            "transactional id": (ResourceType.TRANSACTIONAL_ID, self.prefix, prefixed, AclOperation.WRITE),
            "group": (ResourceType.GROUP, self.group, literal, AclOperation.READ),
            "source": (ResourceType.TOPIC, self.source, literal, AclOperation.READ),
        }
        """The permissions listed in docs/kafka.md."""

    def binding(self, right: str) -> AclBinding:
        kind, name, pattern, operation = self.least[right]
        return AclBinding(kind, name, pattern, f"User:{self.user}", "*", operation, AclPermissionType.ALLOW)

    def has(self, right: str) -> bool:
        wanted = self.binding(right)
        found = self.witness.admin.describe_acls(_filter(wanted)).result(LIMIT_S)
        return any(one.operation == wanted.operation for one in found)

    def give(self, *rights: str) -> None:
        for done in self.witness.admin.create_acls([self.binding(right) for right in rights]).values():
            done.result(LIMIT_S)
        for right in rights:
            eventually(lambda right=right: self.has(right))

    def take(self, right: str) -> None:
        for done in self.witness.admin.delete_acls([_filter(self.binding(right))]).values():
            done.result(LIMIT_S)
        eventually(lambda: self.has(right), until=lambda there: not there)

    def job(self, checkpoint: Path, *, joined: bool = False, deadline_s: float = 20.0) -> SmallJob:
        def sinks() -> list[KafkaSink]:
            return [KafkaSink(self.settings, topic=self.topic, prefix=self.prefix)]

        def reporters() -> list[GroupReporter]:
            inside = "kafka" if joined else None
            return [GroupReporter(GroupOffsets(self.group, self.settings, in_transaction_of=inside))]

        return SmallJob(checkpoint, sinks, one_row, reporters=reporters, source=self.source, deadline_s=deadline_s)

    def group_offset(self) -> int:
        wanted = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.source, 0)])
        (done,) = self.witness.admin.list_consumer_group_offsets([wanted]).values()
        (found,) = done.result(LIMIT_S).topic_partitions
        return int(found.offset)


def _filter(one: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        one.restype, one.name, one.resource_pattern_type, one.principal, None, one.operation, AclPermissionType.ALLOW
    )


def add_login(
    witness: Witness, user: str, password: str = PASSWORD, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
) -> None:
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
    for done in witness.admin.alter_user_scram_credentials([change]).values():
        done.result(LIMIT_S)


def test_who_holds_back_readers_is_told_to_those_who_may_read(witness, cluster, keys, monkeypatch, caplog):
    monkeypatch.setattr(blocking_module, "PATIENCE_S", 0.0)
    caplog.set_level(logging.DEBUG, "sparkonce")
    rights = Rights(witness, cluster, keys, "monitor")
    rights.least["read"] = (ResourceType.TOPIC, rights.topic, ResourcePatternType.LITERAL, AclOperation.READ)
    rights.give("topic", "transactional id")
    other = witness.prepare(rights.topic)

    def said(word: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if word in record.getMessage()]

    with closing(KafkaMonitor(rights.settings, rights.topic, "0123456789ab")) as monitor:
        for _ in range(2):
            monitor.poll(0.0)
        (told,) = said("READ")
        assert (told.levelno, said("of another application")) == (logging.DEBUG, [])
        rights.give("read")
        eventually(lambda: monitor.poll(0.0) or said("of another application"))
    assert len(said("Transaction whose id this user may not see of another application (producer id ")) == 1
    other.producer.abort_transaction(LIMIT_S)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("joined", [pytest.param(False, id="after", marks=SLOW), pytest.param(True, id="inside")])
def test_a_whole_job_with_the_least_rights(witness, cluster, keys, tmp_path, joined):
    rights = Rights(witness, cluster, keys, "least")
    rights.give(*rights.least)
    job = rights.job(tmp_path, joined=joined)
    job.live()
    assert witness.committed(rights.topic) == values_of(0, 1, 2, 3)
    assert rights.group_offset() == 3
    ids = [one for one in list_transactions(cluster.bootstrap) if one.startswith(rights.prefix)]
    assert ids
    assert not [one for one in list_transactions(cluster.bootstrap, states=["Ongoing"]) if one in ids]


@pytest.mark.parametrize(
    ("right", "phase", "words"),
    [
        pytest.param("topic", Phase.WRITING, "(?i)topic.?authorization.?failed", marks=SLOW),
        ("transactional id", Phase.FINISHING, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_a_right_that_is_taken_away_is_named_and_nothing_is_lost(witness, cluster, keys, tmp_path, right, phase, words):
    rights = Rights(witness, cluster, keys, "taken")
    rights.give(*rights.least)
    job = rights.job(tmp_path, deadline_s=2.0)
    job.run(0)

    def listen(entered: Phase, batch: int) -> None:
        if entered is phase and rights.has(right):
            rights.take(right)

    with pytest.raises(SparkonceError, match=words) as raised:
        job.run(1, listener=listen)
    assert PASSWORD not in str(raised.value)
    with pytest.raises(PreflightError) as refused:
        job.run(1)
    assert repr(rights.topic if right == "topic" else rights.prefix) in str(refused.value)
    rights.give(right)
    job.run(1, 2)
    assert witness.committed(rights.topic) == values_of(0, 1, 2)


@pytest.mark.parametrize(("right", "joined"), [("group", False), pytest.param("source", True, marks=SLOW)])
def test_offsets_that_may_not_be_told_are_a_warning_and_rows_go_on(
    witness, cluster, keys, tmp_path, right, joined, caplog
):
    rights = Rights(witness, cluster, keys, "group")
    rights.give(*(one for one in rights.least if one != right))
    job = rights.job(tmp_path, joined=joined)
    with caplog.at_level(logging.WARNING, "sparkonce"):
        job.run(0)
    named = {"group": "(?i)group.?authorization.?failed", "source": "(?i)topic.?authorization.?failed"}[right]
    told = [one.getMessage() for one in caplog.records if f"Offsets of the group {rights.group!r}" in one.getMessage()]
    assert told
    assert all(re.search(named, one) for one in told), told
    assert witness.committed(rights.topic) == values_of(0)
    rights.give(right)
    job.run(1)
    assert (witness.committed(rights.topic), rights.group_offset()) == (values_of(0, 1), 1)


@leaves_sockets
@pytest.mark.parametrize(
    ("listener", "authority", "words"),
    [
        ("EXPIRED", "ca", "certificate has expired"),
        pytest.param("ELSEWHERE", "ca", "IP address mismatch|not valid for '127.0.0.1'", marks=SLOW),
    ],
)
def test_nothing_is_written_to_a_broker_without_a_proof(
    witness, cluster, keys, tmp_path, monkeypatch, listener, authority, words
):
    """The driver notices first. Then the writer's own settings are tried separately, and librdkafka is rejected too."""
    monkeypatch.setattr(preflight_module, "TIMEOUT_S", FAILS_WITHIN_S)
    rights = Rights(witness, cluster, keys, "proof")
    rights.give(*rights.least)
    rights.settings |= {
        "bootstrap.servers": cluster.bootstrap_of(listener),
        "ssl.ca.location": str(keys / f"{authority}.pem"),
    }
    with pytest.raises(PreflightError, match=words) as raised:
        rights.job(tmp_path).run(0)
    assert PASSWORD not in str(raised.value)
    assert witness.committed(rights.topic) == []
    told: list[str] = []
    settings = producer_settings(rights.settings, Guarantee.AT_LEAST_ONCE)
    writer = Producer({**settings, "log_level": 0, "error_cb": lambda error: told.append(error.str())})
    eventually(lambda: (writer.poll(0.05), list(told))[1], until=lambda said: "certificate verify failed" in str(said))
    gc.collect()


# --- secrets --------------------------------------------------------------------------------------------------------


@leaves_sockets
def test_a_password_is_shown_nowhere(witness, cluster, keys, tmp_path, caplog, monkeypatch):
    def no_token(_: str) -> tuple[str, float]:
        return CANARY, time.time() + 600

    rights = Rights(witness, cluster, keys, "canary")
    rights.give(*rights.least)
    add_login(witness, rights.user, CANARY)
    settings = {**rights.settings, "sasl.password": CANARY}

    def make(**changed: Any) -> KafkaSink:
        if changed:  # this is expected to fail, and should not take long
            monkeypatch.setattr(preflight_module, "TIMEOUT_S", FAILS_WITHIN_S)
        return KafkaSink({**settings, **changed}, topic=rights.topic, prefix=rights.prefix)

    look_everywhere(
        make, tmp_path / "log", caplog, user={"sasl.username": "x"}, nowhere={"bootstrap.servers": "127.0.0.1:1"}
    )
    gc.collect()
    told = [repr(GroupOffsets("g", settings)), str(GroupOffsets("g", settings))]
    for changed in (
        {"sasl.mechanism": "NTLM"},
        {"ssl.key.password": CANARY, "ssl.key.pem": CANARY, "ssl.certificate.pem": CANARY},
        {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": no_token},
    ):
        with pytest.raises(SparkonceError) as raised:
            make(**changed).preflight("0123456789ab", None)
        told.append(said_of(raised.value))
    assert not [words for words in told if CANARY in words]
    del raised
    gc.collect()

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.sources.kafka import JAVA, REFUSED, RENAMED, connection_settings, consumer_settings

BROKER = {"bootstrap.servers": "broker:9092"}
SECRET = 'not, so; "secret" \\='  # noqa: S105


def java(**settings: Any) -> dict[str, str]:
    found = consumer_settings({**BROKER, **{name.replace("_", "."): value for name, value in settings.items()}})
    assert found.pop("bootstrap.servers") == "broker:9092"
    return found


def test_both_ways_of_naming_a_setting_give_the_same():
    ours = {"metadata.broker.list": "broker:9092", "fetch.wait.max.ms": 100, "socket.timeout.ms": 5000}
    javas = {"kafka.bootstrap.servers": "broker:9092", "fetch.max.wait.ms": "100", "request.timeout.ms": 5000}
    assert consumer_settings(ours) == consumer_settings(javas)
    assert consumer_settings(ours)["request.timeout.ms"] == "5000"

    assert java(check_crcs=False) == {"check.crcs": "false"}

    name = "ssl.endpoint.identification.algorithm"
    assert consumer_settings({**BROKER, name: "none"})[name] == ""

    found = java(ssl_ca_pem="ca", ssl_certificate_pem="chain", ssl_key_pem="key")
    assert found == {
        "ssl.truststore.certificates": "ca",
        "ssl.keystore.certificate.chain": "chain",
        "ssl.keystore.key": "key",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.type": "PEM",
    }


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sasl.username": "a", "sasl.mechanism": "PLAIN"}, "sasl.password"),
        ({"sasl.username": "a", "sasl.password": SECRET}, "sasl.mechanism"),
        ({"sasl.username": "a", "sasl.password": SECRET, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"sasl.username": "a", "sasl.password": SECRET, "sasl.jaas.config": "x"}, "sasl.jaas.config"),
        ({"ssl.certificate.location": "/x.pem"}, "ssl.key.location"),
        ({"ssl.ca.location": "/no/such/file"}, "/no/such/file"),
        ({"no.such.setting": 1}, "no.such.setting"),
        ({"linger.ms": 1}, "linger.ms"),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset"),
        ({"request.timeout.ms": 1, "socket.timeout.ms": 1}, "request.timeout.ms"),
        ({"bootstrap.servers": " "}, "bootstrap.servers"),
    ],
)
def test_what_cannot_be_used_is_named_and_no_secret_is_told(settings, named):
    with pytest.raises(ConfigurationError) as told:
        consumer_settings({**BROKER, **settings})
    assert named in str(told.value)
    assert SECRET not in str(told.value)


def pem(folder: Path, name: str, kind: str) -> str:
    path = folder / name
    path.write_text(f"-----BEGIN {kind}-----\nMIIB\n-----END {kind}-----\n")
    return str(path)


def test_pem_files_become_stores(tmp_path):
    ca, certificate = pem(tmp_path, "ca", "CERTIFICATE"), pem(tmp_path, "certificate", "CERTIFICATE")
    key = pem(tmp_path, "key", "ENCRYPTED PRIVATE KEY")
    found = java(
        ssl_ca_location=ca, ssl_certificate_location=certificate, ssl_key_location=key, ssl_key_password=SECRET
    )
    assert found == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": Path(certificate).read_text(),
        "ssl.keystore.key": Path(key).read_text(),
        "ssl.key.password": SECRET,
    }

    both = pem(tmp_path, "both", "PRIVATE KEY")
    assert java(ssl_certificate_location=both, ssl_key_location=both) == {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
    }

    old = pem(tmp_path, "key", "RSA PRIVATE KEY")
    with pytest.raises(ConfigurationError, match=r"PKCS #8.*openssl pkcs8"):
        java(ssl_certificate_location=old, ssl_key_location=old)


def test_every_name_that_is_translated_or_refused_has_its_reason():
    assert set(RENAMED.values()) <= JAVA
    assert not JAVA & REFUSED.keys()

    for name in REFUSED:
        with pytest.raises(ConfigurationError, match=re.escape(name)) as told:
            consumer_settings({**BROKER, name: "x"})
        assert told.value.next_step == REFUSED[name]


def connection(**settings: Any) -> dict[str, str]:
    given = {**BROKER, **{name.replace("_", "."): value for name, value in settings.items()}}
    return connection_settings({f"kafka.{name}": value for name, value in consumer_settings(given).items()})


def test_javas_settings_lead_back_to_the_same_connection(tmp_path):
    assert connection(fetch_min_bytes=5) == {**BROKER, "security.protocol": "PLAINTEXT"}

    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": SECRET}
    texts = {"ssl.ca.pem": "ca", "ssl.certificate.pem": "chain", "ssl.key.pem": "key", "ssl.key.password": SECRET}
    checks = {"ssl.endpoint.identification.algorithm": "none"}
    mine = {"security.protocol": "SASL_SSL", "client.id": "me", **login, **texts, **checks}
    assert connection(**mine) == {**BROKER, **mine}

    files = {"ssl.ca.location": "ca.pem", "ssl.certificate.location": "both.pem", "ssl.key.location": "both.pem"}
    files = {name: str(tmp_path / file) for name, file in files.items()}
    for path in files.values():
        Path(path).write_text("-----BEGIN PRIVATE KEY-----")
    assert connection(**files, security_protocol="ssl") == {**BROKER, "security.protocol": "SSL", **files}


@pytest.mark.parametrize(
    "line",
    [
        "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required username='a b' password=\"c'd\";",
        """ PlainLoginModule  optional\n username = "a b"\n password='c\\'d' ; """,
    ],
)
def test_a_login_is_read_from_jaas_as_java_reads_it(line):
    options = {"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    found = connection_settings({f"kafka.{name}": one for name, one in {**options, "sasl.jaas.config": line}.items()})
    assert (found["sasl.username"], found["sasl.password"]) == ("a b", "c'd")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"ssl.truststore.location": "hush"}, "ssl.truststore.type is JKS"),
        ({"ssl.keystore.location": "hush", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type is PKCS12"),
        ({"ssl.engine.factory.class": "hush"}, "ssl.engine.factory.class is given"),
        ({"sasl.login.callback.handler.class": "hush"}, "sasl.login.callback.handler.class is given"),
        ({"config.providers": "hush"}, "config.providers is given"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism is OAUTHBEARER"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is GSSAPI"),
        ({}, "sasl.jaas.config is not given"),
        ({"sasl.jaas.config": "a.ScramLoginModule required username=a password=hush;"}, "sasl.jaas.config is not a"),
        ({"sasl.jaas.config": "a.PlainLoginModule required username=a;"}, "sasl.jaas.config is not a line"),
        ({"sasl.jaas.config": "a.PlainLoginModule required username=a password=hush"}, "sasl.jaas.config is not a"),
        (
            {"sasl.jaas.config": 'a.PlainLoginModule required username="a" password="hush\\n";'},
            "sasl.jaas.config is not a line",
        ),
    ],
)
def test_what_only_javas_client_can_follow_is_named_without_showing_secrets(more, named):
    options = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **more}
    with pytest.raises(ConfigurationError, match=re.escape(named)) as refused:
        connection_settings({f"kafka.{name}": value for name, value in options.items()})
    assert refused.value.details["setting"] in named
    assert refused.value.next_step
    assert "hush" not in str(refused.value)

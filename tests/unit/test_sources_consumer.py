"""Names and values that Spark's Kafka source is given; that a broker takes them is tried in tests/spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.sources.kafka import JAVA, REFUSED, RENAMED, TABLE, consumer_settings

BROKER = {"bootstrap.servers": "broker:9092"}
SECRET = 'not, so; "secret" \\='  # noqa: S105


def java(**settings: Any) -> dict[str, str]:
    found = consumer_settings({**BROKER, **{name.replace("_", "."): value for name, value in settings.items()}})
    assert found.pop("bootstrap.servers") == "broker:9092"
    return found


def test_both_ways_of_naming_a_setting_give_the_same() -> None:
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
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("scram-sha-512", "scram.ScramLoginModule")],
)
def test_user_and_password_become_a_line_of_jaas(mechanism: str, module: str) -> None:
    found = java(sasl_mechanisms=mechanism, sasl_username="alice", sasl_password=SECRET)
    escaped = SECRET.replace("\\", "\\\\").replace('"', '\\"')
    assert found == {
        "sasl.mechanism": mechanism.upper(),
        "sasl.jaas.config": f'org.apache.kafka.common.security.{module} required username="alice" '
        f'password="{escaped}";',
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
def test_what_cannot_be_used_is_named_and_no_secret_is_told(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        consumer_settings({**BROKER, **settings})
    assert named in str(told.value)
    assert SECRET not in str(told.value)


def pem(folder: Path, name: str, kind: str) -> str:
    path = folder / name
    path.write_text(f"-----BEGIN {kind}-----\nMIIB\n-----END {kind}-----\n")
    return str(path)


def test_pem_files_become_stores(tmp_path: Path) -> None:
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


def test_every_name_that_is_translated_stands_in_the_table() -> None:
    assert set(RENAMED.values()) <= JAVA
    assert not JAVA & REFUSED.keys()
    both = " ".join(f"{setting.librdkafka} {setting.meaning}" for setting in TABLE)
    assert [name for name in RENAMED if name not in both and not name.endswith(".pem")] == []

    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "kafka-source.md").read_text()
    shown = re.findall(r"^\| `([^|]+)` \| ([^|]*) \| (.+) \|$", page, re.MULTILINE)
    assert [(java_name, ours.replace("`", ""), meaning) for java_name, ours, meaning in shown] == list(TABLE)

    for name in REFUSED:
        with pytest.raises(ConfigurationError, match=re.escape(name)) as told:
            consumer_settings({**BROKER, name: "x"})
        assert told.value.next_step == REFUSED[name]

"""Translates the Kafka source's settings from librdkafka's or Java's names to Java's, which Spark takes.

A setting is in the table of `sparkonce.sources.consumer_names`, or belongs to a group (`_login`, `_trust`,
`_identity`), or is refused. None is ignored: a source that connects in another way than its settings say is worse than
a source that does not start.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import ConfigurationError
from sparkonce.sinks.kafka.translation import check_servers
from sparkonce.sources.consumer_names import JAVA, REFUSED, RENAMED

_HOST_NAMES = "ssl.endpoint.identification.algorithm"
_TOGETHER = frozenset(
    {"sasl.username", "sasl.password", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"}
)
"""The settings of librdkafka for which Java has no single setting."""

_UNKNOWN = (
    "Leave it out, or look its name up in docs/kafka-source.md: neither Java's consumer has such a setting, nor "
    "librdkafka one with a counterpart there."
)

_LOGIN_MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOCKED = "BEGIN ENCRYPTED PRIVATE KEY"
_PKCS8 = ("BEGIN PRIVATE KEY", _LOCKED)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
"""The object identifier of OpenSSL's encryption of keys, as keys contain it (RFC 8018)."""


def consumer_settings(user: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings as Java's consumer takes them.

    Args:
        user: The settings in librdkafka's or Java's names, with or without Spark's prefix ``kafka.``.

    Raises:
        ConfigurationError: naming the setting that is unknown, given twice, or cannot be used with Spark's source.
    """
    plain: dict[str, Any] = {}
    for given, value in mapping("settings", user, example="{'bootstrap.servers': 'broker:9092'}").items():
        name = given.removeprefix("kafka.")
        name = RENAMED.get(name, name)
        if name not in JAVA and name not in _TOGETHER:
            meant = difflib.get_close_matches(name, (*JAVA, *_TOGETHER), n=1, cutoff=0.9)
            why = REFUSED.get(name) or (f"Write {meant[0]}." if meant else _UNKNOWN)
            raise ConfigurationError(f"{given} cannot be used with Spark's Kafka source.", next_step=why, setting=given)
        if name in plain:
            raise ConfigurationError(f"{name} is given twice, under two names.", next_step=f"Keep {name} only.")
        plain[name] = value
    check_servers(plain)
    java = {name: _text(value) for name, value in plain.items() if name in JAVA}
    if java.get(_HOST_NAMES, "").lower() == "none":
        java[_HOST_NAMES] = ""  # Java's value for none
    _login(plain, java)
    _trust(plain, java)
    _identity(plain, java)
    return java


def _login(plain: Mapping[str, Any], java: dict[str, str]) -> None:
    """Sets user name and password, which Java takes only as a line of JAAS."""
    given = {"sasl.username", "sasl.password"} & plain.keys()
    if not given:
        return
    if "sasl.jaas.config" in java:
        raise ConfigurationError(
            "sasl.jaas.config is given beside sasl.username or sasl.password.", next_step="Keep one of the two ways."
        )
    if len(given) == 1:
        missing = ({"sasl.username", "sasl.password"} - given).pop()
        raise ConfigurationError(f"{missing} is missing.", next_step=f"Give it beside {given.pop()}.", setting=missing)
    mechanism = java.get("sasl.mechanism", "")
    module = _LOGIN_MODULES.get(mechanism.upper())
    if module is None:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism!r} takes no sasl.username and sasl.password.",
            next_step=f"Use one of {', '.join(_LOGIN_MODULES)}, or give sasl.jaas.config.",
            setting="sasl.mechanism",
        )
    user, password = (_quoted(plain[name]) for name in ("sasl.username", "sasl.password"))
    java["sasl.mechanism"] = mechanism.upper()
    java["sasl.jaas.config"] = f"{module} required username={user} password={password};"


def _trust(plain: Mapping[str, Any], java: dict[str, str]) -> None:
    """Sets the PEM certificates of authorities (KIP-651)."""
    if "ssl.ca.location" in plain:
        _check_alone(java, "ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates")
        path = str(plain["ssl.ca.location"])
        _read("ssl.ca.location", path)
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": path}
    elif "ssl.truststore.certificates" in java:
        java.setdefault("ssl.truststore.type", "PEM")


def _identity(plain: Mapping[str, Any], java: dict[str, str]) -> None:
    """Sets the client's certificate and key: one file is Java's key store of type PEM, two are passed as text."""
    certificate, key = (plain.get(name) for name in ("ssl.certificate.location", "ssl.key.location"))
    if certificate is None and key is None:
        if "ssl.keystore.key" in java:
            java.setdefault("ssl.keystore.type", "PEM")
        return
    for name in ("ssl.certificate.location", "ssl.key.location"):
        if name not in plain:
            raise ConfigurationError(f"{name} is missing.", next_step="Give certificate and key.", setting=name)
    _check_alone(java, "ssl.certificate.location", "ssl.keystore.location", "ssl.keystore.key")
    text = _read("ssl.key.location", str(key))
    if not any(mark in text for mark in _PKCS8):
        raise ConfigurationError(
            f"ssl.key.location={str(key)!r} holds no key in PKCS #8, the only form that Java reads.",
            next_step="Convert it: openssl pkcs8 -topk8 -in OLD -out NEW (and -nocrypt for one without a password).",
            setting="ssl.key.location",
        )
    if _LOCKED in text and _PBES2 in _der(text):
        raise ConfigurationError(
            f"ssl.key.location={str(key)!r} is encrypted with PBES2, which Kafka's Java client cannot read.",
            next_step="Encrypt it in the older way: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in OLD -out NEW.",
            setting="ssl.key.location",
        )
    java["ssl.keystore.type"] = "PEM"
    if str(certificate) == str(key):
        java["ssl.keystore.location"] = str(key)
    else:
        java["ssl.keystore.certificate.chain"] = _read("ssl.certificate.location", str(certificate))
        java["ssl.keystore.key"] = text


def _der(pem: str) -> bytes:
    """Returns the bytes of the encrypted key in a PEM text; text that is not base64 is left to Java."""
    body = pem.split(f"-----{_LOCKED}-----", 1)[1].split("-----", 1)[0]
    return base64.b64decode("".join(body.split()) + "===")


def _check_alone(java: Mapping[str, str], name: str, *others: str) -> None:
    for other in others:
        if other in java:
            raise ConfigurationError(f"{name} is given beside {other}.", next_step="Keep one of the two.", setting=name)


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{name}={path!r} cannot be read: {error}.",
            next_step="Name one PEM file that is readable on the driver and, at the same path, on the executors.",
            setting=name,
        ) from error


def _quoted(value: Any) -> str:
    """Returns a string as JAAS quotes it."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

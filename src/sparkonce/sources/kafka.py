"""Translates a Kafka source's settings from librdkafka's or Java's names to those that Spark expects, and back.

Each setting is in `JAVA`, belongs to a group (`_login`, `_trust`, `_identity`), or is rejected. None is ignored: a
source that does not start is better than one that ignores some of its settings.

Java's names are from Kafka's ``ConsumerConfig`` (kafka-clients 3.9, which ships with Spark 4.0), except for those that
Spark sets or rejects. librdkafka's names are from its CONFIGURATION.md. ``docs/kafka-source.md`` explains those
that differ.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import ConfigurationError
from sparkonce.sinks.kafka.settings import check_servers

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
_PAIR = re.compile(
    r"""\s+(?P<name>[\w.$-]+)\s*=\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>[\w.$-]+))""",
    re.DOTALL,
)
"""A JAAS option."""
_JAAS = re.compile(rf"\s*(?P<module>[\w.$]+)\s+\w+(?:{_PAIR.pattern})+\s*;\s*", re.DOTALL)
_ESCAPED = re.compile(r"""(?:^|[^\\])(?:\\\\)*\\[^\\"']""")
"""A character that Java writes as a backslash and a letter, such as a line break."""

_PLUGINS = ("config.providers", "security.providers")
_TLS_PLUGINS = ("ssl.engine.factory.class", "ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm")
_LOGIN_PLUGINS = ("sasl.client.callback.handler.class", "sasl.login.class", "sasl.login.callback.handler.class")
"""Settings that name Java classes: for every connection, for TLS, and for a login."""

_LOCKED = "BEGIN ENCRYPTED PRIVATE KEY"
_PKCS8 = ("BEGIN PRIVATE KEY", _LOCKED)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
"""The object identifier of OpenSSL's key encryption, as it appears in keys (RFC 8018)."""


def consumer_settings(user: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings, with or without Spark's prefix ``kafka.``, in the form that Java's consumer expects."""
    plain: dict[str, Any] = {}
    for setting, value in mapping("settings", user, example="{'bootstrap.servers': 'broker:9092'}").items():
        name = setting.removeprefix("kafka.")
        name = RENAMED.get(name, name)
        if name not in JAVA and name not in _TOGETHER:
            meant = difflib.get_close_matches(name, (*JAVA, *_TOGETHER), n=1, cutoff=0.9)
            why = REFUSED.get(name) or (f"Write {meant[0]}." if meant else _UNKNOWN)
            raise ConfigurationError(
                f"{setting} cannot be used with Spark's Kafka source.", next_step=why, setting=setting
            )
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


def connection_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Returns librdkafka's settings for connecting to a source's brokers as the source itself does.

    This is the inverse of `consumer_settings` for connection settings. The driver contacts the brokers through
    kafka-python, for which `sparkonce.sinks.kafka.settings.admin_settings` translates the result.
    """
    java = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    protocol = java.get("security.protocol", "PLAINTEXT").upper()
    has_tls, has_login = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in (*_PLUGINS, *(_TLS_PLUGINS if has_tls else ()), *(_LOGIN_PLUGINS if has_login else ())):
        if java.get(name, "").strip():
            raise _only_java(name, "is given", "Leave it out")
    settings: dict[str, str] = {name: java[name] for name in ("bootstrap.servers", "client.id") if name in java}
    if java.get("client.dns.lookup", "").startswith("resolve_canonical"):
        settings["client.dns.lookup"] = java["client.dns.lookup"]
    settings["security.protocol"] = protocol
    return settings | (_tls(java) if has_tls else {}) | (_sasl(java) if has_login else {})


def _tls(java: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for store, advice in (
        ("truststore", "Give the authorities' certificates as PEM, as ssl.ca.location"),
        ("keystore", "Give certificate and key as PEM, as ssl.certificate.location and ssl.key.location"),
    ):
        kind = java.get(f"ssl.{store}.type", "JKS")
        if java.get(f"ssl.{store}.location") and kind.upper() != "PEM":
            raise _only_java(f"ssl.{store}.type", f"is {kind}", advice)
    for name, ours in (
        ("ssl.truststore.location", ("ssl.ca.location",)),
        ("ssl.truststore.certificates", ("ssl.ca.pem",)),
        ("ssl.keystore.location", ("ssl.certificate.location", "ssl.key.location")),
        ("ssl.keystore.certificate.chain", ("ssl.certificate.pem",)),
        ("ssl.keystore.key", ("ssl.key.pem",)),
        ("ssl.key.password", ("ssl.key.password",)),
    ):
        if java.get(name):
            settings |= dict.fromkeys(ours, java[name])
    if _HOST_NAMES in java:
        settings[_HOST_NAMES] = java[_HOST_NAMES] or "none"
    return settings


def _sasl(java: Mapping[str, str]) -> dict[str, str]:
    mechanism = java.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in _LOGIN_MODULES:
        raise _only_java("sasl.mechanism", f"is {mechanism}", f"Use one of {', '.join(_LOGIN_MODULES)}")
    jaas = java.get("sasl.jaas.config", "")
    found = _JAAS.fullmatch(jaas)
    pairs = {} if found is None else {one["name"]: one[one.lastgroup or ""] for one in _PAIR.finditer(jaas)}
    fits = found is not None and _LOGIN_MODULES[mechanism].endswith("." + found["module"].rpartition(".")[2])
    if not fits or pairs.keys() != {"username", "password"} or any(map(_ESCAPED.search, pairs.values())):
        why = f"is not a line with {mechanism}'s module, a username and a password" if jaas else "is not given"
        raise _only_java("sasl.jaas.config", why, "Give sasl.username and sasl.password to read_kafka")
    user, password = (re.sub(r"\\(.)", r"\1", pairs[name]) for name in ("username", "password"))
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def _only_java(name: str, why: str, advice: str) -> ConfigurationError:
    # The message omits the value, which may be a secret.
    return ConfigurationError(
        f"{name} {why}: only Java's client can follow that.", next_step=f"{advice}.", setting=name
    )


def _login(plain: Mapping[str, Any], java: dict[str, str]) -> None:
    """Sets the user name and password, which Java accepts only as a line of JAAS configuration."""
    login = {"sasl.username", "sasl.password"} & plain.keys()
    if not login:
        return
    if "sasl.jaas.config" in java:
        raise ConfigurationError(
            "sasl.jaas.config is given together with sasl.username or sasl.password.",
            next_step="Keep one of the two ways.",
        )
    if len(login) == 1:
        missing = ({"sasl.username", "sasl.password"} - login).pop()
        raise ConfigurationError(f"{missing} is missing.", next_step=f"Give it beside {login.pop()}.", setting=missing)
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
    """Sets the certificate authorities' PEM certificates (KIP-651)."""
    if "ssl.ca.location" in plain:
        _check_alone(java, "ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates")
        path = str(plain["ssl.ca.location"])
        _read("ssl.ca.location", path)
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": path}
    elif "ssl.truststore.certificates" in java:
        java.setdefault("ssl.truststore.type", "PEM")


def _identity(plain: Mapping[str, Any], java: dict[str, str]) -> None:
    """Sets the client's certificate and key. One file is passed as a PEM key store; two files are passed as text."""
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
            f"ssl.key.location={str(key)!r} contains no key in PKCS #8, the only form that Java reads.",
            next_step="Convert it: openssl pkcs8 -topk8 -in OLD -out NEW (and -nocrypt for one without a password).",
            setting="ssl.key.location",
        )
    if _LOCKED in text and _PBES2 in _der(text):
        raise ConfigurationError(
            f"ssl.key.location={str(key)!r} is encrypted with PBES2, which Kafka's Java client cannot read.",
            next_step="Encrypt it the older way: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in OLD -out NEW.",
            setting="ssl.key.location",
        )
    java["ssl.keystore.type"] = "PEM"
    if str(certificate) == str(key):
        java["ssl.keystore.location"] = str(key)
    else:
        java["ssl.keystore.certificate.chain"] = _read("ssl.certificate.location", str(certificate))
        java["ssl.keystore.key"] = text


def _der(pem: str) -> bytes:
    """Returns the bytes of the encrypted key in a PEM text. Leaves errors in the text for Java to report."""
    body = pem.split(f"-----{_LOCKED}-----", 1)[1].split("-----", 1)[0]
    return base64.b64decode("".join(body.split()) + "===")


def _check_alone(java: Mapping[str, str], name: str, *others: str) -> None:
    for other in others:
        if other in java:
            raise ConfigurationError(
                f"{name} is given together with {other}.", next_step="Keep one of the two.", setting=name
            )


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
    """Returns a string quoted for JAAS."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_JAVA = """
bootstrap.servers client.id client.rack client.dns.lookup isolation.level group.id allow.auto.create.topics
check.crcs exclude.internal.topics fetch.min.bytes fetch.max.wait.ms fetch.max.bytes
max.partition.fetch.bytes max.poll.records request.timeout.ms default.api.timeout.ms retry.backoff.ms
retry.backoff.max.ms reconnect.backoff.ms reconnect.backoff.max.ms socket.connection.setup.timeout.ms
socket.connection.setup.timeout.max.ms connections.max.idle.ms receive.buffer.bytes send.buffer.bytes
metadata.max.age.ms metadata.recovery.strategy metric.reporters auto.include.jmx.reporter
metrics.num.samples metrics.recording.level metrics.sample.window.ms enable.metrics.push
security.protocol security.providers ssl.truststore.location ssl.truststore.certificates
ssl.truststore.password ssl.truststore.type ssl.keystore.location ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.password ssl.keystore.type ssl.key.password
ssl.endpoint.identification.algorithm ssl.enabled.protocols ssl.protocol ssl.cipher.suites ssl.provider
ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation
ssl.engine.factory.class
sasl.mechanism sasl.jaas.config sasl.client.callback.handler.class sasl.login.class
sasl.login.callback.handler.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.retry.backoff.ms sasl.login.retry.backoff.max.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.kerberos.service.name sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
"""
JAVA = frozenset(_JAVA.split())
"""The settings of Java's consumer that Spark's source takes."""

RENAMED = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""librdkafka's settings that have a different name in Java, with the same values."""

_SPARKS_OWN = "Spark's source sets it itself: leave it out."
_IN_THE_CHECKPOINT = "The positions are in the checkpoint. For lag tools, give ExactlyOnce group_offsets."
_OAUTH = "Give Java's sasl.login.callback.handler.class and sasl.jaas.config."

REFUSED = {
    "auto.offset.reset": "Say where to start with read_kafka's argument starting.",
    "enable.auto.commit": _IN_THE_CHECKPOINT,
    "enable.auto.offset.store": _IN_THE_CHECKPOINT,
    "auto.commit.interval.ms": _IN_THE_CHECKPOINT,
    "key.deserializer": "Keys come as binary: cast or decode the column.",
    "value.deserializer": "Values come as binary: cast or decode the column, for example with from_registry_avro.",
    "interceptor.classes": "Spark refuses it: an interceptor may change the records.",
    **dict.fromkeys(
        [
            "group.instance.id",
            "group.protocol",
            "group.remote.assignor",
            "heartbeat.interval.ms",
            "max.poll.interval.ms",
            "session.timeout.ms",
            "partition.assignment.strategy",
        ],
        _SPARKS_OWN,
    ),
    "enable.ssl.certificate.verification": "Java always verifies: name the authority in ssl.ca.location.",
    "sasl.kerberos.keytab": "Give sasl.jaas.config with Krb5LoginModule, which names the keytab.",
    "sasl.kerberos.principal": "Give sasl.jaas.config with Krb5LoginModule, which names the principal.",
    "sasl.oauthbearer.method": _OAUTH,
    "oauth_cb": _OAUTH,
}
"""The settings that cannot be used, each with the next step."""

Position = int | str | datetime
Starting = str | datetime | Mapping[str, Mapping[int, Position]]
"""``earliest``, ``latest``, a time, or for each topic and partition an offset, one of these words, or a time."""

_WORDS = {"earliest": -2, "latest": -1}
"""The numbers that Spark uses for these words (Structured Streaming + Kafka Integration Guide, ``startingOffsets``)."""


def starting_options(starting: Starting) -> dict[str, str]:
    """Returns Spark's options for the starting offsets."""
    if isinstance(starting, datetime):
        return {"startingTimestamp": str(_milliseconds(starting))}
    if isinstance(starting, str):
        if starting not in _WORDS:
            raise _refused(starting)
        return {"startingOffsets": starting}
    if (
        not isinstance(starting, Mapping)
        or not starting
        or not all(isinstance(one, Mapping) and one for one in starting.values())
    ):
        raise _refused(starting)
    positions = [position for partitions in starting.values() for position in partitions.values()]
    times = [isinstance(position, datetime) for position in positions]
    if any(times) and not all(times):
        raise ConfigurationError(
            "starting has both times and offsets, but Spark accepts only one kind for all partitions.",
            next_step="Give times only, or offsets, 'earliest' and 'latest' only.",
            setting="starting",
        )
    option = "startingOffsetsByTimestamp" if any(times) else "startingOffsets"
    numbers = {
        topic: {str(partition): _number(position) for partition, position in partitions.items()}
        for topic, partitions in starting.items()
    }
    return {option: json.dumps(numbers)}


def _number(position: Position) -> int:
    if isinstance(position, datetime):
        return _milliseconds(position)
    if isinstance(position, str) and position in _WORDS:
        return _WORDS[position]
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return position
    raise _refused(position)


def _milliseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise ConfigurationError(
            f"starting={time!r} has no time zone, so it is not clear which instant it is.",
            next_step="Use an aware datetime, for example datetime(2026, 1, 31, tzinfo=timezone.utc).",
            setting="starting",
        )
    return int(time.timestamp() * 1000)


def _refused(value: object) -> ConfigurationError:
    return ConfigurationError(
        f"starting={value!r} is not a position.",
        next_step="Use 'earliest', 'latest', an aware datetime, or {topic: {partition: offset, word or datetime}} that "
        "names every partition.",
        setting="starting",
    )

"""Checks the Kafka sink's settings, and translates them for the driver's connection.

The names are those in librdkafka's CONFIGURATION.md. Writers pass the settings to librdkafka unchanged. The driver uses
kafka-python, for which `admin_settings` translates them, so that the driver connects in the same way as the writers.
Settings that the driver does not need, such as ``linger.ms``, are omitted. Security settings that cannot be translated
are rejected: a driver that does not start is better than one that silently connects differently from its writers.
"""

from __future__ import annotations

import difflib
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.ownership import PREFIX_LIMIT_BYTES
from sparkonce.sinks._shared.settings import own_prefix

NEVER, NEVER_MS = "never", 2**31 - 1
"""A transaction timeout that never ends, as a word and as a number, which Kafka supports since 4.1 (KIP-939).

Older brokers abort such a transaction after 24 days.
"""

DEFAULTS: Mapping[str, Any] = {
    # This is the default partitioner of Kafka's Java client, so equal keys land in the same partitions as with other
    # producers.
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    "enable.idempotence": True,
    "queue.buffering.max.kbytes": 65536,
    # librdkafka's threads may spin while rows older than linger.ms wait for a request in flight. Because a writer
    # flushes at the end of its slot, linger.ms can be long enough to fill requests.
    "max.in.flight.requests.per.connection": 2,
    "linger.ms": 1000,
    # With these values, InitProducerId takes 15 ms instead of 55 ms. librdkafka increases both exponentially.
    "reconnect.backoff.ms": 1,
    "retry.backoff.ms": 1,
    "allow.auto.create.topics": False,
    # Kafka's own default for a topic (max.message.bytes); librdkafka's is 1,000,000.
    "message.max.bytes": 1_048_588,
}
"""The settings of a writer, unless the user sets others."""

_BATCH_BYTES = 1_000_000
_LARGEST_MESSAGE_BYTES = 1_000_000_000
"""librdkafka's default of ``batch.size`` and its limit for ``message.max.bytes``."""

_TIMEOUTS = ("message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms")

_RESERVED: Mapping[str, str] = {
    "transactional.id": "Each writer makes its own ids: set the sink's prefix instead.",
    "statistics.interval.ms": "The writer may read its producer id from the statistics: leave the setting out.",
    "stats_cb": "The writer may read its producer id from the statistics: leave the setting out.",
    "error_cb": "The writer reads the errors itself: leave the setting out.",
    "on_delivery": "The writer checks the deliveries itself: leave the setting out.",
}

_SERVERS = "bootstrap.servers"
_ALIASES: Mapping[str, str] = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "message.send.max.retries": "retries",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}

_TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bootstrap.servers": (
        "bootstrap_servers",
        lambda value: [one.strip() for one in str(value).split(",") if one.strip()],
    ),
    "client.id": ("client_id", str),
    "client.dns.lookup": ("client_dns_lookup", str),
    "socket.timeout.ms": ("request_timeout_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "receive.message.max.bytes": ("receive_message_max_bytes", int),
    "security.protocol": ("security_protocol", lambda value: str(value).upper()),
    "sasl.mechanism": ("sasl_mechanism", lambda value: str(value).upper()),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
}

_TLS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_TOKENS = frozenset({"oauth_cb", "sasl.oauthbearer.config", "sasl.oauthbearer.method"})
_MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})

_SECURITY = ("ssl.", "ssl_", "sasl.", "security.", "https.", "enable.ssl", "enable.sasl", "oauth", "plugin.")
"""Prefixes of security settings, in this version of librdkafka and likely in later ones."""

_INSTEAD: Mapping[str, str] = {
    "ssl.keystore.": "Give the certificate and the key as PEM: ssl.certificate.location and ssl.key.location.",
    "sasl.kerberos.": "Use SCRAM, or OAUTHBEARER with oauth_cb.",
    "sasl.oauthbearer.": "Fetch the token in a function and give it as oauth_cb.",
    "enable.sasl.oauthbearer.": "Fetch the token in a function and give it as oauth_cb.",
    "https.": "Fetch the token in a function and give it as oauth_cb.",
}


def producer_settings(user: Mapping[str, Any], guarantee: Guarantee) -> dict[str, Any]:
    """Returns the settings of a writer's librdkafka producer, without ``transactional.id``.

    Raises:
        ConfigurationError: If a setting contradicts the guarantee or belongs to the sink. The message names it and its
            value.
    """
    plain = plain_names(user)
    for name, why in _RESERVED.items():
        if name in plain:
            raise _refused(name, plain[name], why)
    if not is_true(plain.get("delivery.report.only.error", True)):
        raise _refused(
            "delivery.report.only.error", False, "The writer asks for reports itself: leave the setting out."
        )
    settings = {**DEFAULTS, **plain}
    limits_ms = [int(plain[name]) for name in _TIMEOUTS if str(plain.get(name)).isdecimal() and int(plain[name])]
    if "linger.ms" not in plain and limits_ms:  # librdkafka requires linger.ms to be below each of these timeouts
        settings["linger.ms"] = min(DEFAULTS["linger.ms"], min(limits_ms) // 2)
    if is_true(settings["enable.idempotence"]):
        _check_acks(settings, "Idempotent producers need every replica's acknowledgement")
    else:
        _check_without_idempotence(settings, guarantee)
    return settings


def queue_bytes(settings: Mapping[str, Any]) -> int:
    """Returns how many bytes of rows may wait in librdkafka: ``queue.buffering.max.kbytes``, or its default."""
    return int(settings.get("queue.buffering.max.kbytes", 1_048_576)) * 1024


def size_settings(user: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, int]:
    """Returns librdkafka's settings that depend on the topic's ``max.message.bytes``, except those set by the user.

    The topic's limit applies to batches after compression. Batches are therefore limited to this size before
    compression, but a single row may be larger, because compression may reduce it.
    """
    if "max_message_bytes" not in facts:
        return {}
    limit = int(facts["max_message_bytes"])
    chosen = {
        "message.max.bytes": min(max(limit, DEFAULTS["message.max.bytes"]), _LARGEST_MESSAGE_BYTES),
        "batch.size": max(1, min(limit, _BATCH_BYTES)),
    }
    return {name: size for name, size in chosen.items() if name not in user}


def lasting(timeout_ms: int) -> str:
    """Returns a transaction timeout in words."""
    if timeout_ms == NEVER_MS:
        return "never times out"
    minutes, rest = divmod(timeout_ms, 60_000)
    return f"{minutes} min" if not rest else f"{timeout_ms / 1000:g} s"


def id_prefix(prefix: Any) -> str:
    """Returns the user's prefix of transactional ids; raises ConfigurationError if it is not a valid prefix."""
    text = own_prefix(prefix, most_bytes=PREFIX_LIMIT_BYTES)
    if text != text.lstrip():
        raise ConfigurationError(
            f"prefix={text!r} begins with a space, which librdkafka drops: brokers would know the transactions under "
            "other ids than the log, and nobody could commit them.",
            next_step=f"Use {text.lstrip()!r}, or another prefix that does not begin with a space.",
            setting="prefix",
        )
    return text


def _check_without_idempotence(settings: dict[str, Any], guarantee: Guarantee) -> None:
    if guarantee is Guarantee.EXACTLY_ONCE:
        raise _refused(
            "enable.idempotence", settings["enable.idempotence"], f"Use True, which {guarantee.value} needs."
        )
    if guarantee is Guarantee.AT_LEAST_ONCE:
        _check_acks(settings, f"{guarantee.value} needs every replica's acknowledgement")
    elif int(settings.get("retries", -1)) != 0:
        raise _refused(
            "retries",
            settings.get("retries", "librdkafka's default"),
            f"{guarantee.value} without enable.idempotence must not send a row twice: set retries to 0.",
        )


def _check_acks(settings: dict[str, Any], why: str) -> None:
    if str(settings.setdefault("acks", "all")).lower() not in {"all", "-1"}:
        raise _refused("acks", settings["acks"], f"{why}: use all.")


def _refused(name: str, value: Any, why: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={value!r} cannot be used with this sink.", next_step=why, setting=name)


def is_true(value: Any) -> bool:
    """Returns True if librdkafka reads this value as true."""
    return str(value).lower() in {"true", "t", "1"}


def plain_names(user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with one name for each of librdkafka's aliases.

    Raises:
        ConfigurationError: If a setting appears under two names, if a name has the form of Spark's own sink, or if no
            broker is named.
    """
    plain: dict[str, Any] = {}
    for original, value in mapping("settings", user, example=f"{{{_SERVERS!r}: 'broker:9092'}}").items():
        if original.startswith("kafka."):
            raise ConfigurationError(
                f"{original} is an option of Spark, but the sink takes librdkafka's settings.",
                next_step=f"Leave the prefix out: {original.removeprefix('kafka.')!r}.",
                setting=original,
            )
        name = _ALIASES.get(original, original)
        if name in plain:
            raise ConfigurationError(
                f"{name} is given twice, under two names.", next_step=f"Keep {name}, leave out its other name."
            )
        plain[name] = value
    check_servers(plain)
    return plain


def check_servers(plain: Mapping[str, Any]) -> None:
    """Checks that the settings name a broker. The error lists the user's settings: one may be misspelled."""
    servers = plain.get(_SERVERS)
    if isinstance(servers, str) and servers.strip():
        return
    if servers is not None:
        raise ConfigurationError(
            f"{_SERVERS}={servers!r} is not a string that names a broker.",
            next_step="Give 'host:port', and more of them with commas in between.",
            setting=_SERVERS,
        )
    meant = difflib.get_close_matches(_SERVERS, plain, n=1)
    raise ConfigurationError(
        f"{_SERVERS} is missing; there is {', '.join(map(repr, plain)) or 'no setting'}.",
        next_step=f"Write {_SERVERS} for {meant[0]}." if meant else "Name at least one broker as host:port.",
        setting=_SERVERS,
    )


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name}={value!r} is not a whole number.", next_step="Give a whole number.", setting=name
        ) from None


def admin_settings(user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns kafka-python's settings for the same brokers and the same user.

    Raises:
        ConfigurationError: If the driver does not support a setting of a secure connection. The message names it.
    """
    plain = plain_names(user)
    for name in plain:
        if name.startswith(_SECURITY) and name not in _TRANSLATED and name not in _TLS and name not in _TOKENS:
            instead = next((words for start, words in _INSTEAD.items() if name.startswith(start)), "Leave it out.")
            # The message omits the value, which may be a secret.
            raise ConfigurationError(
                f"{name} is set, but the driver cannot connect that way.", next_step=instead, setting=name
            )
    settings: dict[str, Any] = {"client_id": "sparkonce"}
    for name, (ours, convert) in _TRANSLATED.items():
        if name in plain:
            settings[ours] = _whole(name, plain[name]) if convert is int else convert(plain[name])
    if (idle_ms := _whole("connections.max.idle.ms", plain.get("connections.max.idle.ms", 0))) > 0:
        settings["connections_max_idle_ms"] = idle_ms
    protocol = settings.get("security_protocol", "PLAINTEXT")
    if protocol.endswith("SSL"):
        settings["ssl_context"] = _tls_context(plain)
    if protocol.startswith("SASL"):
        _check_sasl(plain, settings)
    return settings


def _check_sasl(plain: Mapping[str, Any], settings: dict[str, Any]) -> None:
    mechanism = settings.setdefault("sasl_mechanism", "GSSAPI")  # Use librdkafka's default.
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism!r} cannot be used.",
            next_step=f"Use one of {', '.join(sorted(_MECHANISMS))}.",
            setting="sasl.mechanism",
        )
    if mechanism == "OAUTHBEARER":
        from sparkonce.sinks.kafka.connection import token_provider  # imports kafka-python, which writers do not need

        settings["sasl_oauth_token_provider"] = token_provider(plain)
        return
    for name in ("sasl.username", "sasl.password"):
        if name not in plain:
            raise ConfigurationError(f"{name} is missing.", next_step=f"{mechanism} needs it.", setting=name)


def _tls_context(plain: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    name = ""
    try:
        name = "ssl.ca.location"
        _trust(context, plain)
        name = "ssl.crl.location"
        if name in plain:
            context.load_verify_locations(cafile=str(plain[name]))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        name = "ssl.cipher.suites"
        if name in plain:
            context.set_ciphers(str(plain[name]))
        name = "ssl.certificate.location"
        _identify(context, plain)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{name} (or its .pem form) cannot be used: {error}.",
            next_step="Check that the file is there, readable and PEM, and that ssl.key.password fits.",
            setting=name,
        ) from error
    if str(plain.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if not is_true(plain.get("enable.ssl.certificate.verification", True)):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _trust(context: ssl.SSLContext, plain: Mapping[str, Any]) -> None:
    location = str(plain.get("ssl.ca.location", "probe"))
    if "ssl.ca.pem" in plain:
        context.load_verify_locations(cadata=str(plain["ssl.ca.pem"]))
    elif location == "probe":
        context.load_default_certs()
    elif Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)


def _identify(context: ssl.SSLContext, plain: Mapping[str, Any]) -> None:
    """Loads the client's certificate and key. Python's ssl module only reads them from files."""
    # Always pass a password: without one, OpenSSL would prompt for it at the terminal.
    password = str(plain.get("ssl.key.password", ""))
    if "ssl.certificate.pem" in plain:
        # Python reads the certificate and the key from one temporary file, which only this user can read and which is
        # deleted as soon as it has been read.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(f"{plain['ssl.certificate.pem']}\n{plain.get('ssl.key.pem', '')}\n")
            both.flush()
            context.load_cert_chain(both.name, plain.get("ssl.key.location"), password)
    elif "ssl.certificate.location" in plain:
        context.load_cert_chain(str(plain["ssl.certificate.location"]), plain.get("ssl.key.location"), password)

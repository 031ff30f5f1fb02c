"""Translates librdkafka's settings to kafka-python's, so that the driver connects as the writers do.

Settings without use for the driver, such as ``linger.ms``, are left out. Settings of a secure connection that have no
counterpart are refused, and so are settings about security that are in no table. A driver that silently connects in
another way than its writers is worse than a driver that does not start.
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

_SERVERS = "bootstrap.servers"
_ALIASES: Mapping[str, str] = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "message.send.max.retries": "retries",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}


def is_true(value: Any) -> bool:
    """Returns whether librdkafka reads this value as true."""
    return str(value).lower() in {"true", "t", "1"}


def plain_names(user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with each of librdkafka's aliases under one name.

    Raises:
        ConfigurationError: if a setting is given under both of its names, or as Spark's own sink takes it, or if no
            broker is named.
    """
    plain: dict[str, Any] = {}
    for given, value in mapping("settings", user, example=f"{{{_SERVERS!r}: 'broker:9092'}}").items():
        if given.startswith("kafka."):
            raise ConfigurationError(
                f"{given} is an option of Spark, and the sink takes librdkafka's settings.",
                next_step=f"Leave the prefix out: {given.removeprefix('kafka.')!r}.",
                setting=given,
            )
        name = _ALIASES.get(given, given)
        if name in plain:
            raise ConfigurationError(
                f"{name} is given twice, under two names.", next_step=f"Keep {name}, leave out its other name."
            )
        plain[name] = value
    check_servers(plain)
    return plain


def check_servers(plain: Mapping[str, Any]) -> None:
    """Checks that the settings name a broker.

    Raises:
        ConfigurationError: naming the settings that were given, one of which may be misspelt.
    """
    servers = plain.get(_SERVERS)
    if isinstance(servers, str) and servers.strip():
        return
    if servers is not None:
        raise ConfigurationError(
            f"{_SERVERS}={servers!r} is not a text that names a broker.",
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


_TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", lambda value: [one.strip() for one in str(value).split(",")]),
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
"""The beginnings of names about security, in this version of librdkafka and likely in a later one."""

_INSTEAD: Mapping[str, str] = {
    "ssl.keystore.": "Give the certificate and the key as PEM: ssl.certificate.location and ssl.key.location.",
    "sasl.kerberos.": "Use SCRAM, or OAUTHBEARER with oauth_cb.",
    "sasl.oauthbearer.": "Fetch the token in a function and give it as oauth_cb.",
    "enable.sasl.oauthbearer.": "Fetch the token in a function and give it as oauth_cb.",
    "https.": "Fetch the token in a function and give it as oauth_cb.",
}


def admin_settings(user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns kafka-python's settings for the same brokers and the same user.

    Args:
        user: The settings, in librdkafka's names.

    Raises:
        ConfigurationError: naming a setting of a secure connection that the driver cannot follow.
    """
    plain = plain_names(user)
    _refuse_untranslatable(plain)
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


def _refuse_untranslatable(plain: Mapping[str, Any]) -> None:
    for name in plain:
        if name.startswith(_SECURITY) and name not in _TRANSLATED and name not in _TLS and name not in _TOKENS:
            instead = next((words for start, words in _INSTEAD.items() if name.startswith(start)), "Leave it out.")
            # The message does not show the value, which may be a secret.
            raise ConfigurationError(
                f"{name} is set, but the driver cannot connect in that way.", next_step=instead, setting=name
            )


def _check_sasl(plain: Mapping[str, Any], settings: dict[str, Any]) -> None:
    mechanism = settings.setdefault("sasl_mechanism", "GSSAPI")  # librdkafka's default
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism!r} cannot be used.",
            next_step=f"Use one of {', '.join(sorted(_MECHANISMS))}.",
            setting="sasl.mechanism",
        )
    if mechanism == "OAUTHBEARER":
        from sparkonce.sinks.kafka.oauth_tokens import token_provider  # imports kafka-python, which writers do not need

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
    """Loads the client's certificate and key, which Python's ssl takes from files only."""
    password = plain.get("ssl.key.password")
    if "ssl.certificate.pem" in plain:
        # One file for both, readable by this user only, gone as soon as it is read.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(f"{plain['ssl.certificate.pem']}\n{plain.get('ssl.key.pem', '')}\n")
            both.flush()
            context.load_cert_chain(both.name, plain.get("ssl.key.location"), password)
    elif "ssl.certificate.location" in plain:
        context.load_cert_chain(str(plain["ssl.certificate.location"]), plain.get("ssl.key.location"), password)

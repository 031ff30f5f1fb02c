from __future__ import annotations

import ssl
import time
from typing import Any

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sinks.kafka.settings import admin_settings, producer_settings
from sparkonce.sinks.kafka.sink import KafkaSink

SERVERS = {"bootstrap.servers": "a:1, b:2"}
SASL = {**SERVERS, "security.protocol": "sasl_plaintext"}
ALL = list(Guarantee)


@pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms"])
def test_rows_linger_for_less_than_they_may_take(name):
    def linger_ms(**mine: object) -> object:
        return producer_settings({**SERVERS, **mine}, Guarantee.EXACTLY_ONCE)["linger.ms"]

    assert [linger_ms(**{name: ms}) for ms in (500, "500", 60_000, 0)] == [250, 250, 1000, 1000]
    assert linger_ms(**{name: 500, "linger.ms": 600}) == 600, "librdkafka refuses it by name"


def test_other_names_of_a_setting_count_as_it():
    mine = {"metadata.broker.list": "a:1", "request.required.acks": "1"}
    with pytest.raises(ConfigurationError, match="acks='1'"):
        producer_settings(mine, Guarantee.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is given twice"):
        producer_settings({**SERVERS, "metadata.broker.list": "a:1"}, Guarantee.EXACTLY_ONCE)
    assert producer_settings({"metadata.broker.list": "a:1"}, Guarantee.EXACTLY_ONCE)["bootstrap.servers"] == "a:1"

    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        producer_settings({}, Guarantee.EXACTLY_ONCE)

    with pytest.raises(ConfigurationError) as refused:
        producer_settings({**SERVERS, "transactional.id": "mine"}, Guarantee.EXACTLY_ONCE)
    assert "transactional.id='mine'" in str(refused.value)
    assert "prefix" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "refused_at"),
    [
        ("transactional.id", "mine", ALL),
        ("statistics.interval.ms", 1000, ALL),
        ("stats_cb", print, ALL),
        ("error_cb", print, ALL),
        ("on_delivery", print, ALL),
        ("delivery.report.only.error", False, ALL),
        ("delivery.report.only.error", "false", ALL),
        ("enable.idempotence", False, [Guarantee.EXACTLY_ONCE, Guarantee.AT_MOST_ONCE]),
        ("enable.idempotence", "false", [Guarantee.EXACTLY_ONCE, Guarantee.AT_MOST_ONCE]),
        ("acks", "1", ALL),
        ("acks", 0, ALL),
    ],
)
def test_what_contradicts_the_guarantee_is_refused(name, value, refused_at):
    for guarantee in ALL:
        if guarantee not in refused_at:
            producer_settings({**SERVERS, name: value}, guarantee)
            continue
        with pytest.raises(ConfigurationError, match="=") as refused:
            producer_settings({**SERVERS, name: value}, guarantee)
        assert refused.value.next_step


def test_without_idempotence_rows_must_not_be_lost_or_sent_twice():
    plain = {**SERVERS, "enable.idempotence": False}
    assert producer_settings({**plain, "retries": 0, "acks": 0}, Guarantee.AT_MOST_ONCE)["acks"] == 0
    with pytest.raises(ConfigurationError, match="retries=5"):
        producer_settings({**plain, "message.send.max.retries": 5}, Guarantee.AT_MOST_ONCE)
    with pytest.raises(ConfigurationError, match="acks=1"):
        producer_settings({**plain, "acks": 1}, Guarantee.AT_LEAST_ONCE)


def test_how_to_connect_is_translated():
    mine = {
        **SERVERS,
        "client.id": "me",
        "socket.timeout.ms": "5000",
        "metadata.max.age.ms": 1000,
        "connections.max.idle.ms": 60_000,
        "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "scram-sha-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    assert admin_settings(mine) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "me",
        "request_timeout_ms": 5000,
        "metadata_max_age_ms": 1000,
        "connections_max_idle_ms": 60_000,
        "client_dns_lookup": "resolve_canonical_bootstrap_servers_only",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }

    mine = {**SERVERS, "linger.ms": 5, "batch.size": 1, "partitioner": "random", "compression.type": "lz4"}
    assert admin_settings(mine) == {"client_id": "sparkonce", "bootstrap_servers": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    "name",
    [
        *("ssl.keystore.location", "ssl.keystore.password", "ssl.engine.location", "ssl_engine_callback_data"),
        *("ssl.curves.list", "ssl.sigalgs.list", "ssl.providers", "ssl.ca.certificate.stores"),
        *("sasl.kerberos.keytab", "sasl.kerberos.service.name", "sasl.oauthbearer.token.endpoint.url"),
        *("sasl.oauthbearer.client.credentials.client.secret", "enable.sasl.oauthbearer.unsecure.jwt"),
        *("https.ca.location", "plugin.library.paths", "security.some.day", "ssl.some.day", "sasl.some.day"),
    ],
)
def test_security_that_cannot_be_followed_is_refused_without_showing_secrets(name):
    with pytest.raises(ConfigurationError) as refused:
        admin_settings({**SERVERS, name: "hush"})
    assert refused.value.details["setting"].split(".")[0] == name.split(".")[0]
    assert refused.value.next_step
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "AWS_MSK_IAM", None])
def test_a_mechanism_that_writers_and_driver_do_not_share(mechanism):
    chosen = {} if mechanism is None else {"sasl.mechanism": mechanism}
    with pytest.raises(ConfigurationError, match=r"sasl\.mechanism="):
        admin_settings({**SASL, **chosen})


@pytest.mark.parametrize("missing", ["sasl.username", "sasl.password"])
def test_credentials_are_needed(missing):
    both = {**SASL, "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    with pytest.raises(ConfigurationError, match=f"{missing} is missing"):
        admin_settings({name: value for name, value in both.items() if name != missing})


def test_tls_checks_the_broker_unless_told_not_to():
    tls = {**SERVERS, "security.protocol": "SSL"}
    context: ssl.SSLContext = admin_settings(tls)["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    context = admin_settings({**tls, "ssl.endpoint.identification.algorithm": "none"})["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
    context = admin_settings({**tls, "enable.ssl.certificate.verification": False})["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)
    context = admin_settings({**tls, "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"})["ssl_context"]
    assert "ECDHE-RSA-AES256-GCM-SHA384" in {cipher["name"] for cipher in context.get_ciphers()}
    assert "ssl_context" not in admin_settings({**SERVERS, "ssl.ca.location": "/nowhere"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.ca.location", "/nowhere"),
        ("ssl.ca.pem", "nothing"),
        ("ssl.crl.location", "/nowhere"),
        ("ssl.cipher.suites", "none such"),
        ("ssl.certificate.location", "/nowhere"),
        ("ssl.certificate.pem", "nothing"),
    ],
)
def test_what_cannot_be_read_is_named(name, value):
    with pytest.raises(ConfigurationError) as refused:
        admin_settings({**SERVERS, "security.protocol": "ssl", name: value})
    assert refused.value.details["setting"] == name.replace(".pem", ".location")


def provider(**settings: Any) -> Any:
    mine = {name.replace("__", "."): value for name, value in settings.items()}
    return admin_settings({**SASL, "sasl.mechanism": "OAUTHBEARER", **mine})["sasl_oauth_token_provider"]


def test_a_token_is_kept_until_most_of_its_life_is_over():
    class Tokens:
        def __init__(self, life_s: float) -> None:
            self.life_s = life_s
            self.asked: list[str] = []

        def __call__(self, config: str) -> tuple[str, float, str, dict[str, str]]:
            self.asked.append(config)
            return f"token {len(self.asked)}", time.time() + self.life_s, "principal", {"k": "v"}

    lasting, brief = Tokens(life_s=600), Tokens(life_s=0)
    tokens = provider(oauth_cb=lasting, sasl__oauthbearer__config="scope=x")
    assert [tokens.token(), tokens.token()] == ["token 1", "token 1"]
    assert tokens.extensions() == {"k": "v"}
    assert lasting.asked == ["scope=x"]
    tokens = provider(oauth_cb=brief)
    assert [tokens.token(), tokens.token()] == ["token 1", "token 2"]

    with pytest.raises(ConfigurationError, match="oauth_cb=None"):
        provider()
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.method='oidc'"):
        provider(sasl__oauthbearer__method="OIDC")


@pytest.mark.parametrize("broken", [lambda _: 1 / 0, lambda _: None, lambda _: ("token", "soon")])
def test_a_callback_that_fails_is_a_failed_authentication(broken):
    tokens = provider(oauth_cb=broken)
    from kafka.errors import SaslAuthenticationFailedError

    with pytest.raises(SaslAuthenticationFailedError, match="oauth_cb failed"):
        tokens.token()


@pytest.mark.parametrize("prefix", ["", "x" * 181, "é" * 91, "a\nb", 7])
def test_a_prefix_that_cannot_be_used(prefix):
    with pytest.raises(ConfigurationError, match="prefix="):
        KafkaSink(SERVERS, topic="t", prefix=prefix)


@pytest.mark.parametrize("prefix", [" ", "  orders"])
def test_a_prefix_that_librdkafka_changes_is_refused(prefix):
    with pytest.raises(ConfigurationError, match=f"prefix={prefix!r} begins with a space"):
        KafkaSink(SERVERS, topic="t", prefix=prefix)

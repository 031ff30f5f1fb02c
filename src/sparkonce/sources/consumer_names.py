"""The settings of Spark's Kafka source: Java's name, librdkafka's if it has one, and the meaning.

Java's are those of Kafka's ``ConsumerConfig`` without the ones that Spark sets itself or refuses (kafka-clients 3.9,
which Spark 4.0 ships), librdkafka's those of its CONFIGURATION.md. ``docs/kafka-source.md`` shows this table.
"""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """A row of the table.

    Attributes:
        java: Java's name, after Spark's prefix ``kafka.``.
        librdkafka: librdkafka's name; empty if it has none.
        meaning: The meaning in one sentence.
    """

    java: str
    librdkafka: str
    meaning: str


_BOTH = "="


def _rows(text: str) -> tuple[Setting, ...]:
    found = []
    for line in text.strip().splitlines():
        java, librdkafka, meaning = (part.strip() for part in line.split("|"))
        found.append(Setting(java, java if librdkafka == _BOTH else librdkafka, meaning))
    return tuple(found)


TABLE = _rows("""
bootstrap.servers | = | Brokers to ask first, as host:port with commas between. Also metadata.broker.list.
client.id | = | A name for the broker's logs and quotas.
client.rack | = | Read from a replica in this rack (KIP-392).
client.dns.lookup | = | How host names with several addresses are tried.
isolation.level | = | Better said as read_kafka's isolation_level, whose default is read_committed.
group.id | = | Replaces the group id that Spark makes up for each query; for ACLs. No positions are kept in it.
allow.auto.create.topics | = | Whether asking for a topic may create it.
check.crcs | = | Whether records' checksums are verified.
exclude.internal.topics | | Whether a pattern leaves Kafka's own topics out.
fetch.min.bytes | = | The least that a broker collects before it answers.
fetch.max.wait.ms | fetch.wait.max.ms | How long it may collect.
fetch.max.bytes | = | The most of one answer.
max.partition.fetch.bytes | fetch.message.max.bytes | The most of one partition in an answer.
max.poll.records | | The most records that a task takes at a time.
request.timeout.ms | socket.timeout.ms | How long an answer is waited for.
default.api.timeout.ms | | How long a call such as asking for offsets may take.
retry.backoff.ms | = | The first pause before a request is sent again.
retry.backoff.max.ms | = | The longest.
reconnect.backoff.ms | = | The first pause before a broker is connected to again.
reconnect.backoff.max.ms | = | The longest.
socket.connection.setup.timeout.ms | = | How long connecting may take.
socket.connection.setup.timeout.max.ms | | The longest, after several failures.
connections.max.idle.ms | = | After which time an idle connection is closed.
receive.buffer.bytes | socket.receive.buffer.bytes | The socket's receive buffer.
send.buffer.bytes | socket.send.buffer.bytes | The socket's send buffer.
metadata.max.age.ms | = | How often brokers and partitions are asked for anew.
metadata.recovery.strategy | = | What to do when no known broker is left (KIP-899).
metric.reporters | | Classes that report the consumer's metrics.
auto.include.jmx.reporter | | Whether metrics go to JMX.
metrics.num.samples | | Samples behind a metric.
metrics.recording.level | | How much is measured.
metrics.sample.window.ms | | How long a sample is.
enable.metrics.push | = | Whether the broker may collect the client's metrics (KIP-714).
security.protocol | = | PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
security.providers | | Java security providers to load.
ssl.truststore.location | ssl.ca.location | Who is trusted; librdkafka names a PEM file.
ssl.truststore.certificates | ssl.ca.pem | The same as PEM text.
ssl.truststore.password | | The trust store's password.
ssl.truststore.type | | JKS, PKCS12 or PEM.
ssl.keystore.location | | The client's key and certificate in one file.
ssl.keystore.certificate.chain | ssl.certificate.location | The client certificate, PEM; librdkafka names the file.
ssl.keystore.key | ssl.key.location | The client key, PEM in PKCS #8; librdkafka names the file.
ssl.keystore.password | | The key store's password.
ssl.keystore.type | | JKS, PKCS12 or PEM.
ssl.key.password | = | The key's password.
ssl.endpoint.identification.algorithm | = | https compares host name and certificate, none (Java: empty) does not.
ssl.enabled.protocols | | TLS versions that are allowed.
ssl.protocol | | The TLS version to use.
ssl.cipher.suites | = | Ciphers that are allowed, in Java's names.
ssl.provider | | The Java provider of TLS.
ssl.keymanager.algorithm | | Java's key manager.
ssl.trustmanager.algorithm | | Java's trust manager.
ssl.secure.random.implementation | | Java's random numbers.
ssl.engine.factory.class | | A class that makes TLS engines.
sasl.mechanism | = | PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER. Also sasl.mechanisms.
sasl.jaas.config | sasl.username, sasl.password | Who logs in. Made from librdkafka's two for PLAIN and SCRAM.
sasl.client.callback.handler.class | | A class that answers the mechanism's questions.
sasl.login.class | | A class that logs in.
sasl.login.callback.handler.class | | A class that fetches credentials, for example OAuth tokens.
sasl.login.connect.timeout.ms | | How long connecting to the identity provider may take.
sasl.login.read.timeout.ms | | How long its answer may take.
sasl.login.retry.backoff.ms | | The first pause before it is asked again.
sasl.login.retry.backoff.max.ms | | The longest.
sasl.login.refresh.buffer.seconds | | How long before its end a credential is renewed.
sasl.login.refresh.min.period.seconds | | At least how long a credential is used.
sasl.login.refresh.window.factor | | After which part of its life it is renewed.
sasl.login.refresh.window.jitter | | A random part of that.
sasl.kerberos.service.name | = | The brokers' Kerberos name.
sasl.kerberos.kinit.cmd | = | The kinit command, which differs between the two.
sasl.kerberos.min.time.before.relogin | = | The shortest pause between two logins.
sasl.kerberos.ticket.renew.jitter | | A random part of the renewal time.
sasl.kerberos.ticket.renew.window.factor | | After which part of its life a ticket is renewed.
sasl.oauthbearer.token.endpoint.url | = | Where tokens are fetched.
sasl.oauthbearer.scope.claim.name | | The token's field for scopes.
sasl.oauthbearer.sub.claim.name | | The token's field for the user.
sasl.oauthbearer.clock.skew.seconds | | By how much clocks may differ.
sasl.oauthbearer.expected.audience | | Whom the token must be for.
sasl.oauthbearer.expected.issuer | | Who must have made it.
sasl.oauthbearer.header.urlencode | | Whether the client's id and secret are encoded for URLs.
sasl.oauthbearer.jwks.endpoint.url | | Where keys for checking tokens are fetched.
sasl.oauthbearer.jwks.endpoint.refresh.ms | | How often.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | | The first pause before they are asked for again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | | The longest.
""")
"""Every setting, by theme."""

JAVA = frozenset(setting.java for setting in TABLE)

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
"""The settings of librdkafka that have another name in Java, and the same values."""

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

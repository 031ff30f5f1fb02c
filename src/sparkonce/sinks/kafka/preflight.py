"""Checks a cluster before anything is claimed or written, without side effects on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import ANEW, ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, Transaction
from sparkonce.sinks.kafka.partitions import metadata_request
from sparkonce.sinks.kafka.settings import admin_settings, producer_settings
from sparkonce.sinks.kafka.topic import (
    BROKER_RESOURCE,
    SURE_AFTER_S,
    TOPIC_RESOURCE,
    TOPIC_SETTINGS,
    check_retention,
    check_topic,
    configs_request,
    is_missing,
    told_settings,
    topic_facts,
    warn_if_made_again,
)
from sparkonce.sinks.kafka.transaction_client import TransactionClient, versions_request
from sparkonce.words import one_line

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0
"""The longest time that all checks take."""

FALLBACK_TIMEOUT_MS = 60_000
"""The transaction timeout where this user may not read the brokers' limit; librdkafka's default."""

LONGEST_BY_ITSELF_MS = 3_600_000
"""The longest transaction timeout that is chosen by default: readers may have to wait for that long."""

_TIMEOUT = "transaction.timeout.ms"
_MAX_TIMEOUT = "transaction.max.timeout.ms"
_LARGEST = "max.message.bytes"
_NOT_ALLOWED = frozenset({29, 31, 53})
_NOBODY_HAS_THE_ID = 49
_DESCRIBE_TRANSACTIONS_KEY = 65
_FIRST_PAUSE_S = 0.25
_ASK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster under check: a client with a deadline, and the settings that messages name."""

    client: TransactionClient
    deadline_s: float
    servers: str
    protocol: str = "PLAINTEXT"

    def ask(self, request: Any, node_id: int | None = None) -> Any:
        """Sends a request, and repeats it until the deadline."""
        reasons: dict[str, None] = {}
        began_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            response = self.client.request(request, deadline_s=self.deadline_s, node_id=node_id)
            if not isinstance(response, BrokerAnswer):
                return response
            reasons[response.reason] = None
            if time.monotonic() + pause_s >= self.deadline_s:
                break
            # A few times only: some servers lock out a user who repeats a wrong password.
            time.sleep(pause_s)
            pause_s *= 2
        told = "; ".join(reasons)
        raise PreflightError(
            f"bootstrap.servers={self.servers!r} did not answer in {time.monotonic() - began_s:.0f} s: {told}.",
            next_step=_hint(told, self.protocol)
            or "Check the addresses, that the brokers run, security.protocol and the credentials.",
            setting="bootstrap.servers",
        )


def _hint(told: str, protocol: str) -> str:
    """Tells which setting the two ends seem to disagree about; empty if the errors do not tell."""
    given = f"security.protocol={protocol!r} is given"
    if protocol.endswith("SSL") and ("EOF occurred" in told or "WRONG_VERSION_NUMBER" in told):
        return f"Check that this port speaks TLS, since {given}: a plaintext port ends such a connection like this."
    if "SaslState" in told:
        return f"Check that this port asks for SASL, since {given}: a port without SASL answers like this."
    return ""


def preflight(
    settings: Mapping[str, Any],
    *,
    topic: str | None,
    guarantee: Guarantee,
    prefix: str | None,
    timeout_ms: int | None,
    query: str,
    recorded: Facts | None,
    former_cluster_id: str | None = None,
) -> Facts:
    """Checks settings, cluster, topic, limits and permissions at the start of a run.

    Args:
        settings: The settings, in librdkafka's names.
        topic: The sink's own topic; None if each row names its topic, which is then not checked.
        guarantee: The sink's guarantee. Below EXACTLY_ONCE nothing about transactions is checked.
        prefix: Begins every transactional id; None for ``sparkonce-<query>``. It may change between runs.
        timeout_ms: The transaction timeout; None for ``transaction.timeout.ms``, or else the brokers' limit or an hour.
        query: The short form of the query's id.
        recorded: The facts of the newest run that the log knows.
        former_cluster_id: The cluster that earlier runs wrote to, if another one has replaced it.

    Returns:
        ``cluster_id``; for a sink's own topic ``topic``, ``topic_id`` and ``max_message_bytes``; and for EXACTLY_ONCE
        ``prefix``, ``transaction_timeout_ms`` and, if brokers tell it, ``longest_timeout_ms``.

    Raises:
        ConfigurationError: if librdkafka or the driver's connection does not know a setting or its value.
        PreflightError: naming the setting and its value.
    """
    transactional = guarantee is Guarantee.EXACTLY_ONCE
    producer = producer_settings(settings, guarantee)
    connection = admin_settings(settings)
    check_producer(producer)
    chosen_prefix = f"sparkonce-{query}" if prefix is None else prefix
    chosen_ms = _chosen_timeout_ms(settings, timeout_ms)
    with closing(TransactionClient(connection, connections=1)) as client:
        protocol = str(producer.get("security.protocol", "PLAINTEXT")).upper()
        cluster = _Cluster(client, time.monotonic() + TIMEOUT_S, str(producer["bootstrap.servers"]), protocol)
        metadata = _metadata(cluster, topic)
        recorded = _check_cluster(metadata.cluster_id, cluster, recorded, former_cluster_id)
        facts = {"cluster_id": metadata.cluster_id, **topic_facts(metadata)}
        told: Mapping[str, str] = {}
        if topic is not None:
            told = told_settings(cluster.ask(configs_request(TOPIC_RESOURCE, topic, *TOPIC_SETTINGS)))
            check_topic(topic, metadata, told)
            facts |= {"max_message_bytes": told[_LARGEST]} if _LARGEST in told else {}
        warn_if_made_again(facts, recorded)
        if not transactional:
            return facts
        _check_version(cluster)
        limit_ms = _timeout_limit_ms(cluster, metadata.brokers[0].node_id)
        lasting_ms = _check_timeout(chosen_ms, limit_ms)
        check_producer({**producer, "transactional.id": chosen_prefix, _TIMEOUT: lasting_ms})
        if topic is not None:
            check_retention(topic, told, lasting_ms)
        _check_permission(cluster, chosen_prefix, query)
    if limit_ms is not None:
        facts["longest_timeout_ms"] = str(min(limit_ms, LONGEST_BY_ITSELF_MS))
    return {**facts, "prefix": chosen_prefix, "transaction_timeout_ms": str(lasting_ms)}


def _metadata(cluster: _Cluster, topic: str | None) -> Any:
    """Asks for the topic, and again while it is missing: brokers learn of a new topic one after the other."""
    give_up_at = min(cluster.deadline_s, time.monotonic() + SURE_AFTER_S)
    request = metadata_request(*([] if topic is None else [topic]), rights=True)
    while True:
        metadata = cluster.ask(request)
        if not is_missing(metadata) or time.monotonic() >= give_up_at:
            return metadata
        time.sleep(_ASK_AGAIN_S)


def partitions_of(settings: Mapping[str, Any], topic: str) -> int | None:
    """Returns the number of a topic's partitions; None if no broker told."""
    with closing(TransactionClient(admin_settings(settings), connections=1)) as client:
        metadata = client.request(metadata_request(topic), deadline_s=time.monotonic() + TIMEOUT_S)
    found = [] if isinstance(metadata, BrokerAnswer) else [one for one in metadata.topics if one.error_code == NONE]
    return len(found[0].partitions) if found else None


def check_producer(settings: Mapping[str, Any]) -> None:
    """Lets librdkafka itself check names, values and contradictions; nothing is sent.

    Raises:
        ConfigurationError: with librdkafka's own words, which name the setting.
    """
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({**settings, "log_level": 0})
    except KafkaException as error:
        raise ConfigurationError(
            f"librdkafka does not accept the settings: {error.args[0].str().strip()}.",
            next_step="Correct or remove the setting it names; see librdkafka's CONFIGURATION.md.",
        ) from error


def _chosen_timeout_ms(settings: Mapping[str, Any], timeout_ms: int | None) -> int | None:
    given = settings.get(_TIMEOUT)
    if given is not None and timeout_ms is not None and int(given) != timeout_ms:
        raise ConfigurationError(
            f"{_TIMEOUT}={given!r} and the sink's own timeout, {timeout_ms} ms, differ.", next_step="Keep one of them."
        )
    return timeout_ms if given is None else int(given)


def _check_cluster(cluster_id: str, cluster: _Cluster, recorded: Facts | None, former: str | None) -> Facts | None:
    """Returns the recorded facts if they are of this cluster; None if a former cluster's."""
    before = (recorded or {}).get("cluster_id", cluster_id)
    if before == cluster_id:
        return recorded
    if before == former:
        log.warning(
            "This query wrote to the cluster %r until now, and continues in %r, as former_cluster_id says. It is not "
            "known which of its batches are there with all of their rows. Next: Compare them, see docs/operations.md.",
            *(before, cluster_id),
        )
        return None
    raise PreflightError(
        f"bootstrap.servers={cluster.servers!r} leads to the cluster {cluster_id!r}, but this query wrote to "
        f"{before!r} until now.",
        next_step=f"Name brokers of the old cluster, or {ANEW}. If the other cluster "
        f"has replaced it for good: KafkaSink(..., former_cluster_id={before!r}), after you have compared what is "
        'there; see "A server that went back" in docs/operations.md.',
        setting="bootstrap.servers",
    )


def _check_version(cluster: _Cluster) -> None:
    response = cluster.ask(versions_request())
    if _DESCRIBE_TRANSACTIONS_KEY not in {api.api_key for api in response.api_keys}:
        raise PreflightError(
            f"bootstrap.servers={cluster.servers!r} leads to brokers older than Kafka 3.0.",
            next_step="Update the brokers, since exactly-once needs Kafka 3.0 or newer, or choose another guarantee.",
        )


def _timeout_limit_ms(cluster: _Cluster, broker: int) -> int | None:
    result = cluster.ask(configs_request(BROKER_RESOURCE, str(broker), _MAX_TIMEOUT), node_id=broker).results[0]
    if result.error_code in _NOT_ALLOWED:
        return None
    if result.error_code != NONE or not result.configs:
        raise PreflightError(
            f"Broker {broker} does not tell {_MAX_TIMEOUT}: "
            f"{BrokerAnswer(result.error_code, one_line(result.error_message or ''))}.",
            next_step=f"Read the broker's log, and set {_TIMEOUT}.",
        )
    return int(result.configs[0].value)


def _check_timeout(chosen_ms: int | None, limit_ms: int | None) -> int:
    if limit_ms is None:
        lasting_ms = FALLBACK_TIMEOUT_MS if chosen_ms is None else chosen_ms
        log.warning(
            "No permission to read the brokers' %s (DESCRIBE_CONFIGS on the cluster), so %s=%d is used without knowing "
            "whether they allow it. A batch that takes longer is lost, and is written again.",
            *(_MAX_TIMEOUT, _TIMEOUT, lasting_ms),
        )
        return lasting_ms
    if chosen_ms is not None and chosen_ms > limit_ms:
        raise PreflightError(
            f"{_TIMEOUT}={chosen_ms} is more than the brokers' {_MAX_TIMEOUT}={limit_ms}.",
            next_step=f"Lower {_TIMEOUT}, leave it out to use what the brokers allow, or raise {_MAX_TIMEOUT} there.",
            setting=_TIMEOUT,
        )
    return min(limit_ms, LONGEST_BY_ITSELF_MS) if chosen_ms is None else chosen_ms


def _check_permission(cluster: _Cluster, prefix: str, query: str) -> None:
    """Tries to abort a transaction of an id that does not exist: the broker checks the permission first.

    Below Kafka 3.0 writers would need IDEMPOTENT_WRITE on the cluster too (KIP-679).
    """
    name = TransactionalId(prefix=prefix, query=query, token=Token(0, "0" * 8), worker="0" * 12, lane=0)
    probe = Transaction(str(name), 0, 0)
    answer = cluster.client.probe(probe, deadline_s=cluster.deadline_s)
    if answer.code in _NOT_ALLOWED:
        raise PreflightError(
            f"No permission for transactional ids that begin with prefix={prefix!r}.",
            next_step=f"Grant WRITE and DESCRIBE on the prefixed TransactionalId resource {prefix!r} to this user.",
            setting="prefix",
        )
    if answer.code != _NOBODY_HAS_THE_ID:
        raise PreflightError(
            f"No working transaction coordinator within {TIMEOUT_S:.0f} s: {answer}.",
            next_step="Check that __transaction_state can have transaction.state.log.replication.factor replicas.",
        )

"""Checks a cluster and the sink's topic at each start, without side effects, and the topic before each decision."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from sparkonce.errors import ANEW, ConfigurationError, PreflightError, one_line
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer, KafkaTransaction
from sparkonce.sinks.kafka.settings import NEVER_MS, admin_settings, lasting, producer_settings
from sparkonce.sinks.kafka.transaction_client import TransactionClient, metadata_request, versions_request

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0
"""The time limit of all checks together."""

FALLBACK_TIMEOUT_MS = 60_000
"""The transaction timeout if this user may not read the brokers' limit: librdkafka's default."""

LONGEST_BY_ITSELF_MS = 3_600_000
"""The longest transaction timeout chosen by default: readers may have to wait that long."""

_TIMEOUT = "transaction.timeout.ms"
_MAX_TIMEOUT = "transaction.max.timeout.ms"
_LARGEST = "max.message.bytes"
_NOT_ALLOWED = frozenset({29, 31, 53})
_NOBODY_HAS_THE_ID = 49
_DESCRIBE_TRANSACTIONS_KEY = 65
_ASK_AGAIN_S = 0.1

_MISSING = 3
_INVALID = 17
_TOPIC_NOT_ALLOWED = 29
_WRITE = 4
_NAME, _ID = "topic", "topic_id"

_MIN_IN_SYNC, _AGE, _SIZE, _POLICY = "min.insync.replicas", "retention.ms", "retention.bytes", "cleanup.policy"
TOPIC_SETTINGS = (_MIN_IN_SYNC, _AGE, _SIZE, _POLICY, "max.message.bytes")

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4

_LITTLE_BYTES = 1 << 30

SURE_AFTER_S = 3.0
"""A topic counts as missing only after this many seconds, because new topics and starting brokers take a moment."""


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster being checked: a client with a deadline, and the settings that messages name."""

    client: TransactionClient
    deadline_s: float
    servers: str
    protocol: str = "PLAINTEXT"

    def ask(self, request: Any, node_id: int | None = None) -> Any:
        """Sends a request, and retries it until the deadline."""
        began_s = time.monotonic()
        response = self.client.insist(request, deadline_s=self.deadline_s, node_id=node_id)
        if not isinstance(response, BrokerAnswer):
            return response
        raise PreflightError(
            f"bootstrap.servers={self.servers!r} did not answer in {time.monotonic() - began_s:.0f} s: "
            f"{response.reason}.",
            next_step=_hint(response.reason, self.protocol)
            or "Check the addresses, that the brokers run, security.protocol and the credentials.",
            setting="bootstrap.servers",
        )


def _hint(told: str, protocol: str) -> str:
    """Returns a hint about a setting on which client and broker seem to disagree; empty if the error suggests none."""
    setting = f"security.protocol={protocol!r} is given"
    if protocol.endswith("SSL") and ("EOF occurred" in told or "WRONG_VERSION_NUMBER" in told):
        return f"Check that this port speaks TLS, since {setting}: a plaintext port ends such a connection like this."
    if "SaslState" in told:
        return f"Check that this port asks for SASL, since {setting}: a port without SASL answers like this."
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
        settings: The settings, with librdkafka's names.
        topic: The sink's own topic; None if each row names its topic, in which case topics are not checked.
        guarantee: The sink's guarantee. Below EXACTLY_ONCE nothing about transactions is checked.
        prefix: The prefix of every transactional id; None for ``sparkonce-<query>``. It may change between runs.
        timeout_ms: The transaction timeout; None for ``transaction.timeout.ms``, or else the brokers' limit or an hour.
        query: The short form of the query's id.
        recorded: The facts of the latest run in the log.
        former_cluster_id: The cluster that earlier runs wrote to, if another one has replaced it.

    Returns:
        ``cluster_id``; for a sink's own topic ``topic``, ``topic_id`` and ``max_message_bytes``; and for EXACTLY_ONCE
        ``prefix``, ``transaction_timeout_ms`` and, if the brokers report it, ``longest_timeout_ms``.

    Raises:
        ConfigurationError: If librdkafka or the driver's connection does not know a setting or its value.
        PreflightError: If a check fails. The message names the setting and its value.
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
        configs: Mapping[str, str] = {}
        if topic is not None:
            configs = read_configs(cluster.ask(configs_request(TOPIC_RESOURCE, topic, *TOPIC_SETTINGS)))
            check_topic(topic, metadata, configs)
            facts |= {"max_message_bytes": configs[_LARGEST]} if _LARGEST in configs else {}
        warn_if_made_again(facts, recorded)
        if not transactional:
            return facts
        _check_version(cluster)
        limit_ms = _timeout_limit_ms(cluster, metadata.brokers[0].node_id)
        lasting_ms = _check_timeout(chosen_ms, limit_ms)
        check_producer({**producer, "transactional.id": chosen_prefix, _TIMEOUT: lasting_ms})
        if topic is not None:
            check_retention(topic, configs, lasting_ms)
        _check_permission(cluster, chosen_prefix, query)
    if limit_ms is not None:
        facts["longest_timeout_ms"] = str(min(limit_ms, LONGEST_BY_ITSELF_MS))
    return {**facts, "prefix": chosen_prefix, "transaction_timeout_ms": str(lasting_ms)}


def _metadata(cluster: _Cluster, topic: str | None) -> Any:
    """Fetches the topic, and retries while the topic is missing: brokers learn of a new topic at different times."""
    give_up_at = min(cluster.deadline_s, time.monotonic() + SURE_AFTER_S)
    request = metadata_request(*([] if topic is None else [topic]), rights=True)
    while True:
        metadata = cluster.ask(request)
        if not is_missing(metadata) or time.monotonic() >= give_up_at:
            return metadata
        time.sleep(_ASK_AGAIN_S)


def partitions_of(settings: Mapping[str, Any], topic: str) -> int | None:
    """Returns the number of a topic's partitions; None if no broker reported it."""
    with closing(TransactionClient(admin_settings(settings), connections=1)) as client:
        metadata = client.request(metadata_request(topic), deadline_s=time.monotonic() + TIMEOUT_S)
    found = [] if isinstance(metadata, BrokerAnswer) else [one for one in metadata.topics if one.error_code == NONE]
    return len(found[0].partitions) if found else None


def check_producer(settings: Mapping[str, Any]) -> None:
    """Lets librdkafka check the names, values and combinations of the settings, without sending anything."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({**settings, "log_level": 0})
    except KafkaException as error:
        raise ConfigurationError(
            f"librdkafka does not accept the settings: {error.args[0].str().strip()}.",
            next_step="Correct or remove the setting it names; see librdkafka's CONFIGURATION.md.",
        ) from error


def _chosen_timeout_ms(settings: Mapping[str, Any], timeout_ms: int | None) -> int | None:
    chosen = settings.get(_TIMEOUT)
    if chosen is not None and timeout_ms is not None and int(chosen) != timeout_ms:
        raise ConfigurationError(
            f"{_TIMEOUT}={chosen!r} and the sink's own timeout, {timeout_ms} ms, differ.", next_step="Keep one of them."
        )
    return timeout_ms if chosen is None else int(chosen)


def _check_cluster(cluster_id: str, cluster: _Cluster, recorded: Facts | None, former: str | None) -> Facts | None:
    """Returns the recorded facts if they are from this cluster; None if they are from a former cluster."""
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
        next_step=(
            f"Name brokers of the old cluster, or {ANEW}. If the other cluster has replaced it permanently: "
            f"KafkaSink(..., former_cluster_id={before!r}), after you have compared what is there; see "
            "docs/operations.md#a-server-restored-from-an-older-state."
        ),
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
            f"Broker {broker} does not report {_MAX_TIMEOUT}: "
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
    """Checks this user's permission by aborting a transaction with an unknown id. A broker checks permissions first.

    Before Kafka 3.0, writers also needed IDEMPOTENT_WRITE on the cluster (KIP-679).
    """
    name = TransactionalId(prefix=prefix, query=query, token=Token(0, "0" * 8), worker="0" * 12, lane=0)
    probe = KafkaTransaction(str(name), 0, 0)
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


def configs_request(resource: int, name: str, *keys: str) -> Any:
    """Requests these settings of a topic, or of the broker that receives the request."""
    return DescribeConfigsRequest(resources=[(resource, name, list(keys))])


def topic_facts(metadata: Any) -> dict[str, str]:
    """Returns the facts about a topic to record in the log: its name and id. A recreated topic has a different id."""
    return {_NAME: found.name, _ID: str(found.topic_id)} if (found := _with_id(metadata)) is not None else {}


def warn_if_made_again(facts: Facts, recorded: Facts | None) -> None:
    """Warns at the start of a run that the topic was recreated, so that rows of earlier runs are lost."""
    before = recorded or {}
    if _ID in facts and before.get(_NAME) == facts[_NAME] and before.get(_ID) != facts[_ID]:
        log.warning(
            "topic=%r was deleted and recreated since this query's last run: it has the id %s, and had %s. Rows of "
            "earlier batches are gone with the old topic, and those of the last decided batch may be gone too. "
            "Nothing writes them again. Next: If they are needed, start a new query with a new checkpoint.",
            *(facts[_NAME], facts[_ID], before.get(_ID)),
        )


def why_not_decide(facts: Facts, metadata: Any) -> str:
    """Returns why a prepared batch must not be decided: its topic is gone or was recreated. Empty if it may be decided.

    A producer does not notice that its topic was recreated. The brokers acknowledge all of the producer's rows,
    although the rows that it sent before are gone.

    Args:
        facts: The facts of the run that wrote the batch.
        metadata: The response to a `metadata_request` sent after all rows were acknowledged. Without a response, the
            batch is decided, and the next batch checks again.
    """
    if _ID not in facts or isinstance(metadata, BrokerAnswer):
        return ""
    if is_missing(metadata):
        return f"topic {facts[_NAME]!r} was deleted while this query ran: create it, and start the query again"
    found = _with_id(metadata)
    if found is None or str(found.topic_id) == facts[_ID]:
        return ""
    return (
        f"topic {facts[_NAME]!r} was deleted and recreated while this query ran: it has the id {found.topic_id}, and "
        f"had {facts[_ID]}. Rows of earlier batches are gone with the old topic; this batch is not decided"
    )


def is_missing(metadata: Any) -> bool:
    """Returns True if the broker that answered does not know the topic."""
    return any(found.error_code == _MISSING for found in metadata.topics)


def _with_id(metadata: Any) -> Any:
    """Returns the topic if it exists and has an id. On a cluster older than topic ids, topics have none."""
    return next(
        (found for found in metadata.topics if found.error_code == NONE and found.topic_id and found.topic_id.int), None
    )


def read_configs(configs: Any) -> dict[str, str]:
    """Reads the settings from the response to a `configs_request`; empty if the user may not describe them."""
    (result,) = configs.results
    return {found.name: found.value for found in result.configs} if result.error_code == NONE else {}


def check_topic(topic: str, metadata: Any, configs: Mapping[str, str]) -> None:
    """Checks that the topic exists, that this user may write to it, and that writes to it are durable."""
    (found,) = metadata.topics
    _check_readable(topic, found.error_code)
    if found.authorized_operations is not None and _WRITE not in found.authorized_operations:
        raise _refused(topic, "may not be written to by this user", "Grant WRITE on it.")
    replicas = min((len(partition.replica_nodes) for partition in found.partitions), default=0)
    _check_durable(
        topic, replicas, len(metadata.brokers), int(configs[_MIN_IN_SYNC]) if _MIN_IN_SYNC in configs else None
    )


def check_retention(topic: str, configs: Mapping[str, str], timeout_ms: int) -> None:
    """Checks that the topic keeps rows until their transaction ends.

    Brokers also delete rows of open transactions. Such a transaction commits without an error, but readers see none of
    the deleted rows.
    """
    if "delete" not in configs.get(_POLICY, ""):
        return
    for name in (_AGE, _SIZE):
        if configs.get(name) == "0":
            raise _refused(topic, f"has {name}=0: its rows may be gone before they are committed", f"Raise {name}.")
    age_ms, size = int(configs.get(_AGE, -1)), int(configs.get(_SIZE, -1))
    if 0 < age_ms < timeout_ms or (age_ms > 0 and timeout_ms == NEVER_MS):
        log.warning(
            "topic=%r has retention.ms=%d, and transaction.timeout.ms=%d (%s): the rows of a transaction that stays "
            "open for longer than the retention are deleted, and its commit succeeds without rows. Next: Raise "
            "retention.ms, or lower transaction.timeout.ms.",
            *(topic, age_ms, timeout_ms, lasting(timeout_ms)),
        )
    if 0 < size < _LITTLE_BYTES:
        log.warning(
            "topic=%r has retention.bytes=%d: if a partition receives more than that while a transaction is open, the "
            "transaction's first rows are deleted, and its commit still succeeds. Next: Raise retention.bytes.",
            *(topic, size),
        )


def _check_readable(topic: str, error_code: int) -> None:
    if error_code == _MISSING:
        raise _refused(topic, "does not exist", "Create it: the sink creates no topics.")
    if error_code == _TOPIC_NOT_ALLOWED:
        raise _refused(topic, "may not be seen by this user", "Grant WRITE on it, or check its name.")
    if error_code == _INVALID:
        raise _refused(topic, "is no valid name", "Use letters, digits, '.', '_' and '-', at most 249.")

    # Accept other errors, such as a missing leader, because writers wait for a leader.


def _check_durable(topic: str, replicas: int, brokers: int, min_in_sync: int | None) -> None:
    if min_in_sync is not None and min_in_sync > replicas > 0:
        raise _refused(
            topic,
            f"has {replicas} replicas but min.insync.replicas={min_in_sync}, so no row can ever be acknowledged",
            "Lower min.insync.replicas or add replicas.",
        )
    if brokers > 1 and replicas == 1:
        log.warning("topic=%r has one replica: committed rows are lost with its broker's disk.", topic)
    elif replicas > 1 and min_in_sync == 1:
        log.warning(
            "topic=%r has min.insync.replicas=1: a row counts as acknowledged, and can be committed, while only one "
            "broker has it.",
            topic,
        )


def _refused(topic: str, what: str, next_step: str) -> PreflightError:
    return PreflightError(f"topic={topic!r} {what}.", next_step=next_step, setting="topic")

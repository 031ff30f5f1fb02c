"""Finds the other queries of sparkonce that have written to a new query's topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.blocking import names_of
from sparkonce.sinks.kafka.outcomes import COMMITTED_STATES, BrokerAnswer
from sparkonce.sinks.kafka.partitions import (
    Partition,
    answered,
    ask_leaders,
    end_offsets,
    leaders_of,
    metadata_request,
    producers,
)
from sparkonce.sinks.kafka.transaction_client import TransactionClient

_ASKED_AT_ONCE = 20
"""The most partitions whose producers are asked for: each may have thousands."""


def other_queries(client: TransactionClient, query: str, facts: Facts, deadline_s: float) -> list[str]:
    """Finds them by the topic's producers, which brokers remember for a day (``producer.id.expiration.ms``).

    Where the topic has rows, and brokers remember no producer or do not answer, ids under a prefix that the user chose
    are listed instead. Brokers remember these for a week.

    Args:
        client: A client of the cluster.
        query: The short form of the new query's id.
        facts: The facts of its sink.
        deadline_s: When to stop asking. What is not known by then is left out.

    Returns:
        The short forms of their ids.
    """
    prefix, topic = facts.get("prefix"), facts.get("topic")
    if prefix is None:
        return []
    leaders = {} if topic is None else _leaders(client, topic, deadline_s)
    if found := _producers(client, leaders, deadline_s):
        return _queries(_names(client, found, deadline_s), prefix, query)
    if prefix == _by_itself(query) or _is_empty(client, leaders, deadline_s):
        return []
    listed = client.list_transactions(sorted(COMMITTED_STATES), [f"{prefix}."], deadline_s=deadline_s)
    return [] if isinstance(listed, BrokerAnswer) else _queries(listed, prefix, query)


def _by_itself(query: str) -> str:
    """Returns the prefix that `sparkonce.sinks.kafka.preflight.preflight` gives a query without one."""
    return f"sparkonce-{query}"


def _queries(names: Iterable[str], prefix: str, query: str) -> list[str]:
    """Returns the queries of these ids under the same prefix, or that have no chosen prefix either."""
    parsed = [one for name in names if (one := TransactionalId.parse(name)) is not None and one.query != query]
    alike = [one for one in parsed if one.prefix == (_by_itself(one.query) if prefix == _by_itself(query) else prefix)]
    return sorted({one.query for one in alike})


def _leaders(client: TransactionClient, topic: str, deadline_s: float) -> dict[Partition, int]:
    """Returns the leaders of the topic's first partitions."""
    metadata = client.request(metadata_request(topic), deadline_s=deadline_s)
    found = {} if isinstance(metadata, BrokerAnswer) else answered(leaders_of(metadata))
    return dict(sorted(found.items())[:_ASKED_AT_ONCE])


def _is_empty(client: TransactionClient, leaders: Mapping[Partition, int], deadline_s: float) -> bool:
    """Returns whether every leader says that nothing was ever written to its partitions."""
    (ends,) = ask_leaders(client, leaders, end_offsets, deadline_s=deadline_s)
    return bool(ends) and all(not isinstance(end, BrokerAnswer) and end.offset == 0 for end in ends.values())


def _producers(client: TransactionClient, leaders: Mapping[Partition, int], deadline_s: float) -> list[int]:
    """Returns the producers that leaders remember; none without the permission to READ the topic."""
    (found,) = ask_leaders(client, leaders, producers, deadline_s=deadline_s)
    return sorted({producer.producer_id for one in answered(found).values() for producer in one.active_producers or ()})


def _names(client: TransactionClient, producer_ids: list[int], deadline_s: float) -> list[str]:
    """Returns the transactional ids of these producers, as far as brokers say."""
    metadata = client.request(metadata_request(), deadline_s=deadline_s)
    brokers = [] if isinstance(metadata, BrokerAnswer) else [broker.node_id for broker in metadata.brokers]
    return [*names_of(client, producer_ids, brokers, deadline_s)[0].values()]

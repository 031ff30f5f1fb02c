"""Which other queries of sparkonce have written to the topic that a new query is to write to."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest

from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.lookout import latest_of
from sparkonce.sinks.kafka.outcomes import COMMITTED_STATES, NONE, Answer
from sparkonce.sinks.kafka.topic import metadata_request
from sparkonce.sinks.kafka.transaction_client import TransactionClient

_ASKED_AT_ONCE = 20
"""Of how many partitions producers are asked for: each may have thousands."""


def other_queries(client: TransactionClient, query: str, facts: Facts, deadline_s: float) -> list[str]:
    """Finds those by the producers that brokers remember of the topic, for a day (``producer.id.expiration.ms``).

    Where the topic has rows and brokers remember none of their producers, or do not say, a prefix that the user has
    chosen tells, for a week.

    Args:
        client: To the cluster.
        query: The short form of the new query's id.
        facts: Of its sink.
        deadline_s: Until when to ask. What is not known by then is left out.

    Returns:
        The short forms of their ids.
    """
    prefix, topic = facts.get("prefix"), facts.get("topic")
    if prefix is None:
        return []
    leaders = {} if topic is None else _leaders(client, topic, deadline_s)
    producers = [] if topic is None else _producers(client, topic, leaders, deadline_s)
    if producers:
        return _queries(_names(client, producers, deadline_s), prefix, query)
    if prefix == _by_itself(query) or (topic is not None and _is_empty(client, topic, leaders, deadline_s)):
        return []
    listed = client.list_transactions(sorted(COMMITTED_STATES), [f"{prefix}."], deadline_s=deadline_s)
    return [] if isinstance(listed, Answer) else _queries(listed, prefix, query)


def _by_itself(query: str) -> str:
    """The prefix of a query that was given none, see `sparkonce.sinks.kafka.preflight.preflight`."""
    return f"sparkonce-{query}"


def _queries(names: Iterable[str], prefix: str, query: str) -> list[str]:
    """The queries of these ids under the same prefix, or that have none of their own either."""
    parsed = [one for name in names if (one := TransactionalId.parse(name)) is not None and one.query != query]
    alike = [one for one in parsed if one.prefix == (_by_itself(one.query) if prefix == _by_itself(query) else prefix)]
    return sorted({one.query for one in alike})


def _leaders(client: TransactionClient, topic: str, deadline_s: float) -> dict[int, int]:
    """The broker that leads each of the topic's first partitions."""
    metadata = client.request(metadata_request(topic, rights=False), deadline_s=deadline_s)
    topics = () if isinstance(metadata, Answer) else metadata.topics
    found = {one.partition_index: one.leader_id for each in topics for one in each.partitions if one.leader_id >= 0}
    return {place: found[place] for place in sorted(found)[:_ASKED_AT_ONCE]}


def _is_empty(client: TransactionClient, topic: str, leaders: dict[int, int], deadline_s: float) -> bool:
    """Whether nothing was ever written to these partitions, as far as brokers say."""
    kind = ListOffsetsRequest.ListOffsetsTopic
    asked = [
        (ListOffsetsRequest(topics=[kind(name=topic, partitions=[latest_of(place)])], min_version=2, max_version=6), at)
        for place, at in leaders.items()
    ]
    answers = client.gather(asked, deadline_s=deadline_s) if asked else []
    said = [response for response in answers if not isinstance(response, Answer)]
    ends = [one.offset for response in said for each in response.topics for one in each.partitions]
    return bool(ends) and not any(ends)


def _producers(client: TransactionClient, topic: str, leaders: dict[int, int], deadline_s: float) -> list[int]:
    """The producers that brokers remember of these partitions; none without the permission to READ the topic."""
    asked = [(DescribeProducersRequest(topics=[(topic, [place])]), leader) for place, leader in leaders.items()]
    answers = client.gather(asked, deadline_s=deadline_s) if asked else []
    found = {
        producer.producer_id
        for response in answers
        if not isinstance(response, Answer)
        for described in response.topics
        for one in described.partitions
        if one.error_code == NONE
        for producer in one.active_producers or ()
    }
    return sorted(found)


def _names(client: TransactionClient, producers: list[int], deadline_s: float) -> list[str]:
    """The transactional ids of these producers, as far as brokers say."""
    metadata = client.request(metadata_request(None, rights=False), deadline_s=deadline_s)
    brokers = [] if isinstance(metadata, Answer) else [broker.node_id for broker in metadata.brokers]
    request = ListTransactionsRequest(producer_id_filters=producers)
    answers = client.gather([(request, broker) for broker in brokers], deadline_s=deadline_s) if brokers else []
    return [
        state.transactional_id
        for response in answers
        if not isinstance(response, Answer) and response.error_code == NONE
        for state in response.transaction_states
    ]

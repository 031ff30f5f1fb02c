"""Asks who leads a topic's partitions, and asks these leaders for offsets and producers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer.offsets import IsolationLevel, ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from sparkonce.sinks.kafka.connection import Request, Response
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer
from sparkonce.sinks.kafka.transaction_client import TransactionClient

Partition = tuple[str, int]
"""A topic's name and a partition's number."""

MakeRequest = Callable[[Mapping[str, list[int]]], Request]
"""Makes a request for the partitions of one leader, which are given by topic."""

LEADER_NOT_AVAILABLE = 5


def metadata_request(*topics: str, rights: bool = False) -> Request:
    """Asks for the cluster and these topics, without creating any, and for the user's rights to them if asked."""
    named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=rights)


def leaders_of(metadata: Response) -> dict[Partition, int | BrokerAnswer]:
    """Returns the leader of each partition of a `metadata_request`'s response, or why it has none."""
    found: dict[Partition, int | BrokerAnswer] = {}
    for topic in metadata.topics:
        for one in topic.partitions:
            code = topic.error_code or one.error_code or (LEADER_NOT_AVAILABLE if one.leader_id < 0 else NONE)
            place = (topic.name, one.partition_index)
            found[place] = one.leader_id if code == NONE else _refused(place, code)
    return found


def ask_leaders(
    client: TransactionClient, leaders: Mapping[Partition, int], *requests: MakeRequest, deadline_s: float
) -> list[dict[Partition, Any]]:
    """Sends each leader one request of each kind for all of its partitions, all at a time.

    Returns:
        For each kind of request the leaders' replies by partition; a `BrokerAnswer` where there is none.
    """
    asked: dict[int, dict[str, list[int]]] = {}
    for (topic, number), leader in sorted(leaders.items()):
        asked.setdefault(leader, {}).setdefault(topic, []).append(number)
    sent = [(request(topics), leader) for request in requests for leader, topics in asked.items()]
    responses = iter(client.gather(sent, deadline_s=deadline_s) if sent else ())
    return [
        {place: reply for topics in asked.values() for place, reply in _by_partition(topics, next(responses))}
        for _ in requests
    ]


def answered(replies: Mapping[Partition, Any]) -> dict[Partition, Any]:
    """Returns what is known: all but each `BrokerAnswer`."""
    return {place: reply for place, reply in replies.items() if not isinstance(reply, BrokerAnswer)}


def _by_partition(topics: Mapping[str, list[int]], response: Response) -> Iterator[tuple[Partition, Any]]:
    if isinstance(response, BrokerAnswer):
        yield from (((name, number), response) for name, numbers in topics.items() for number in numbers)
        return
    for topic in response.topics:
        for one in topic.partitions:
            place = (topic.name, one.partition_index)
            yield place, one if one.error_code == NONE else _refused(place, one.error_code)


def _refused(place: Partition, code: int) -> BrokerAnswer:
    return BrokerAnswer(code, f"partition {place[1]} of topic {place[0]!r}")


def _list_offsets(topics: Mapping[str, list[int]], *, when: int, level: int) -> Request:
    kind = ListOffsetsRequest.ListOffsetsTopic
    asked = [
        kind(
            name=name,
            partitions=[kind.ListOffsetsPartition(partition_index=number, timestamp=when) for number in numbers],
        )
        for name, numbers in topics.items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=asked, min_version=2, max_version=7)


start_offsets = partial(_list_offsets, when=OffsetSpec.EARLIEST, level=IsolationLevel.READ_UNCOMMITTED)
"""Asks for the offset of each partition's first row."""

end_offsets = partial(_list_offsets, when=OffsetSpec.LATEST, level=IsolationLevel.READ_UNCOMMITTED)
"""Asks for the offset after each partition's last row."""

last_stable_offsets = partial(_list_offsets, when=OffsetSpec.LATEST, level=IsolationLevel.READ_COMMITTED)
"""Asks for the offset up to which read_committed readers see each partition."""


def producers(topics: Mapping[str, list[int]]) -> Request:
    """Asks for the producers that leaders remember, and where their open transactions begin (KIP-664)."""
    kind = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[kind(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
    )

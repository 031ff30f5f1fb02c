"""Queries a Kafka server for a topic's records and for open transactions, independently of the code under test.

Every function opens its own clients, and raises ``TimeoutError`` at its deadline. A `KafkaReader` continues where its
last read ended.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from confluent_kafka import Message
    from kafka.admin import KafkaAdminClient


TIMEOUT_S = 30.0

_POLL_S = 0.05

_CHUNK = 50_000

_LOG_LEVEL = 5
"""librdkafka's level for warnings and errors. At level 6, it also logs events left when a client was closed."""


class Record(NamedTuple):
    """One record of a topic. ``timestamp_ms`` is in milliseconds since the epoch; headers keep their order."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class Transaction(NamedTuple):
    """A transactional id, as its coordinator describes it.

    Attributes:
        transactional_id: The id.
        state: Kafka's state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead.
        producer_id: The producer id that the broker has assigned to the id.
        producer_epoch: The epoch of the latest initialization or ended transaction.
        timeout_ms: The time after which the broker aborts a transaction, in milliseconds.
        start_ms: When the open or the last transaction began, in milliseconds since the epoch by the broker's clock; -1
            if there was none.
        partitions: The topics and partitions that the open transaction has written to, sorted.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[tuple[str, int], ...]


def create_topic(
    bootstrap: str | Mapping[str, Any],
    name: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    *,
    replicas: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Creates a topic unless it already exists, and waits until each partition has a leader.

    Raises:
        KafkaException: If the broker returns an error.
        TimeoutError: If a partition does not have a leader in time.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({**_connecting(bootstrap), "log_level": _LOG_LEVEL})
    copies = {} if replicas is None else {"replication_factor": replicas}
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}), **copies)
    try:
        admin.create_topics([topic], request_timeout=timeout_s)[name].result(timeout_s)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise

    give_up_at = time.monotonic() + timeout_s
    while True:
        found = admin.list_topics(name, timeout=timeout_s).topics[name].partitions
        if found and all(partition.leader >= 0 for partition in found.values()):
            return
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not every partition of {name} has a leader after {timeout_s} s")
        time.sleep(_POLL_S)


def produce(bootstrap: str, topic: str, messages: Iterable[Mapping[str, Any]], *, timeout_s: float = TIMEOUT_S) -> None:
    """Writes records outside of transactions, and waits until all of them are acknowledged.

    Each message has the arguments of confluent-kafka's ``Producer.produce``. A record is never sent twice: if a broker
    becomes unreachable, the function raises an error instead of retrying.

    Raises:
        KafkaException: The first delivery error.
        TimeoutError: If records are not acknowledged in time.
    """
    from confluent_kafka import KafkaException, Producer

    give_up_at = time.monotonic() + timeout_s
    errors: list[Any] = []
    # A producer without retries cannot duplicate a record, so it needs no producer id, which takes half a second to
    # get.
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "retries": 0})

    def note(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    for message in messages:
        while True:
            try:
                producer.produce(topic, on_delivery=note, **message)
                break
            except BufferError:
                producer.poll(_POLL_S)
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"{len(producer)} records to {topic} not sent in {timeout_s} s") from None
    left = producer.flush(max(give_up_at - time.monotonic(), 0))
    if errors:
        raise KafkaException(errors[0])
    if left:
        raise TimeoutError(f"{left} records to {topic} not acknowledged in {timeout_s} s")


def read_committed(bootstrap: str, topic: str, *, timeout_s: float = TIMEOUT_S) -> list[Record]:
    """Reads the records that a read_committed reader sees, from the beginning to the current last stable offset.

    Does not wait for open transactions, although they determine the last stable offset. Returns records by partition
    and offset.

    Raises:
        KafkaException: If there is no such topic, or the broker returns an error.
        TimeoutError: If the end is not reached in time.
    """
    return _read(bootstrap, topic, "READ_COMMITTED", timeout_s)


def read_uncommitted(bootstrap: str, topic: str, *, timeout_s: float = TIMEOUT_S) -> list[Record]:
    """Reads the records that a reader with Kafka's default isolation sees, including those of aborted transactions.

    Returns and raises the same as `read_committed`.
    """
    return _read(bootstrap, topic, "READ_UNCOMMITTED", timeout_s)


def end_offsets(
    bootstrap: str | Mapping[str, Any], topic: str, isolation: str = "READ_COMMITTED", *, timeout_s: float = TIMEOUT_S
) -> dict[int, int]:
    """Returns the end of each partition: the last stable offset for READ_COMMITTED, otherwise the high watermark.

    Repeats the request if a broker does not know yet that it leads a new partition, or if it leads no partition because
    it was down.
    """
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    give_up_at = time.monotonic() + timeout_s
    admin = AdminClient({**_connecting(bootstrap), "log_level": _LOG_LEVEL})
    metadata = admin.list_topics(topic, timeout=timeout_s).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in metadata.partitions}
    early = {
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._NOENT,  # "No leaders found"
    }
    while True:
        answers = admin.list_offsets(asked, isolation_level=IsolationLevel[isolation], request_timeout=timeout_s)
        try:
            return {partition.partition: answer.result(timeout_s).offset for partition, answer in answers.items()}
        except KafkaException as error:
            if error.args[0].code() not in early or time.monotonic() > give_up_at:
                raise
        time.sleep(_POLL_S)


def _read(bootstrap: str, topic: str, isolation: str, timeout_s: float) -> list[Record]:
    chunks = scan({"bootstrap.servers": bootstrap}, topic, isolation, timeout_s=timeout_s)
    records = [_record(message) for chunk in chunks for message in chunk]
    return sorted(records, key=lambda record: record[:2])


def scan(
    settings: Mapping[str, Any], topic: str, isolation: str = "READ_COMMITTED", *, timeout_s: float = TIMEOUT_S
) -> Iterator[list[Any]]:
    """Yields a topic's messages in chunks, from its beginning to the current result of `end_offsets`.

    Raises:
        KafkaException: If there is no such topic, or the broker returns an error.
        TimeoutError: If the end is not reached in time.
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    give_up_at = time.monotonic() + timeout_s
    ends = end_offsets(settings, topic, isolation, timeout_s=timeout_s)
    unread = {partition: end for partition, end in ends.items() if end > 0}
    more = {
        "group.id": "sparkonce-testing",  # The group is required but unused: partitions are assigned manually.
        "enable.auto.commit": False,
        "isolation.level": isolation.lower(),
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        # Reads start at offset 0 or, with this setting, at the first offset of a topic that begins later. Looking up
        # the first offset would take half a second.
        "auto.offset.reset": "earliest",
    }
    count = 0
    with closing(Consumer({**settings, **more})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{topic} not read to {unread} in {timeout_s} s; {count} records so far")
            chunk = []
            for message in consumer.consume(_CHUNK, timeout=_POLL_S):
                partition, offset, error = message.partition(), message.offset(), message.error()
                # Consumers never receive control records or aborted rows. If a partition ends with them, only this
                # event shows that the end was reached.
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None and offset < ends[partition]:
                    chunk.append(message)
                if offset + (error is None) >= ends[partition]:
                    unread.pop(partition, None)
            count += len(chunk)
            if chunk:
                yield chunk


def _record(message: Any) -> Record:
    _, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Record(message.partition(), message.offset(), message.key(), message.value(), timestamp_ms, headers)


def describe_transactions(
    bootstrap: str | Mapping[str, Any], transactional_ids: Sequence[str], *, timeout_s: float = TIMEOUT_S
) -> dict[str, Transaction]:
    """Queries the coordinators about these ids. Leaves out ids that are unknown to them."""
    from kafka.errors import TransactionalIdNotFoundError

    def one(admin: KafkaAdminClient, transactional_id: str) -> Transaction | None:
        try:
            found = admin.describe_transactions([transactional_id])[transactional_id]
        except TransactionalIdNotFoundError:
            return None
        return Transaction(
            transactional_id,
            found.state.value,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            tuple(sorted((partition.topic, partition.partition) for partition in found.topic_partitions)),
        )

    def every(admin: KafkaAdminClient) -> dict[str, Transaction]:
        described = [one(admin, transactional_id) for transactional_id in transactional_ids]
        return {each.transactional_id: each for each in described if each is not None}

    answer: dict[str, Transaction] = _ask(bootstrap, every, timeout_s)
    return answer


def list_transactions(
    bootstrap: str | Mapping[str, Any], *, states: Sequence[str] = (), prefix: str = "", timeout_s: float = TIMEOUT_S
) -> dict[str, Transaction]:
    """Lists the transactional ids of every broker, and describes them."""
    listings: dict[int, Any] = _ask(
        bootstrap, lambda admin: admin.list_transactions(state_filters=list(states) or None), timeout_s
    )
    listed = (listing.transactional_id for of_broker in listings.values() for listing in of_broker)
    ids = sorted(name for name in listed if name.startswith(prefix))
    described = describe_transactions(bootstrap, ids, timeout_s=timeout_s)
    return {name: found for name, found in described.items() if not states or found.state in states}


def coordinators(bootstrap: str | Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> dict[str, int]:
    """Returns the broker that coordinates each transactional id."""
    listings: dict[int, Any] = _ask(bootstrap, lambda admin: admin.list_transactions(), timeout_s)
    return {listing.transactional_id: int(node) for node, of_node in listings.items() for listing in of_node}


def _connecting(bootstrap: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else dict(bootstrap)


def _ask(bootstrap: str | Mapping[str, Any], question: Callable[[KafkaAdminClient], Any], timeout_s: float) -> Any:
    """Sends a request, and retries it while the error is temporary, for example while a coordinator is loading."""
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    from sparkonce.sinks.kafka.settings import admin_settings

    settings = admin_settings(_connecting(bootstrap))
    give_up_at = time.monotonic() + timeout_s
    while True:
        left_ms = max(int((give_up_at - time.monotonic()) * 1000), 1)
        try:
            limits = {"bootstrap_timeout_ms": left_ms, "request_timeout_ms": left_ms}
            with closing(KafkaAdminClient(**{**settings, **limits})) as admin:
                return question(admin)
        except KafkaError as error:
            if not error.retriable:
                raise
            if time.monotonic() > give_up_at:
                raise TimeoutError(
                    f"{settings['bootstrap_servers']} gave no answer in {timeout_s} s: {error!r}"
                ) from error
            time.sleep(_POLL_S)


_AT_ONCE = 10_000


class KafkaReader:
    """Reads a topic from its beginning, with confluent-kafka's consumer.

    If there are no new rows, the broker waits ``wait_ms`` milliseconds before it responds.
    """

    def __init__(self, settings: str | Mapping[str, Any], topic: str, partitions: int, *, wait_ms: int = 100) -> None:
        from confluent_kafka import Consumer, TopicPartition

        connecting = {"bootstrap.servers": settings} if isinstance(settings, str) else settings
        more = {
            "group.id": "sparkonce-reader",  # The group is required but unused: partitions are assigned manually.
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": wait_ms,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _: None,  # The reader retries unreachable brokers.
        }
        self._consumer = Consumer({**connecting, **more})
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])

    def read(self, timeout_s: float) -> list[Message]:
        """Returns the new records; none if the broker is unreachable."""
        return [one for one in self._consumer.consume(_AT_ONCE, timeout=timeout_s) if one.error() is None]

    def close(self) -> None:
        self._consumer.close()

"""What the product's `TransactionClient` sends to Kafka's brokers, and what it is answered. There is no wire."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.engine import NoAnswerError, RefusedError, Words
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, Transaction

if TYPE_CHECKING:
    from simulation.kafka import Kafka

_UNKNOWN_SERVER_ERROR = -1
_NOT_COORDINATOR = 16
_RAISES_EPOCH = 5
"""EndTxn's version, from which on."""


class _EndTxn(SimpleNamespace):
    pass


class _InitProducerId(SimpleNamespace):
    pass


class _Describe(SimpleNamespace):
    pass


class _List(SimpleNamespace):
    pass


class _FindCoordinator(SimpleNamespace):
    pass


class _ApiVersions(SimpleNamespace):
    pass


class _Metadata(SimpleNamespace):
    pass


REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("transaction_client", "EndTxnRequest", _EndTxn),
    ("transaction_client", "InitProducerIdRequest", _InitProducerId),
    ("transaction_client", "DescribeTransactionsRequest", _Describe),
    ("transaction_client", "ListTransactionsRequest", _List),
    ("transaction_client", "FindCoordinatorRequest", _FindCoordinator),
    ("transaction_client", "ApiVersionsRequest", _ApiVersions),
    ("transaction_client", "MetadataRequest", _Metadata),
    ("retention", "_may_be_old", lambda _: True),
)
"""kafka-python's classes of requests, which know how to be written to a wire, take ten times as long to make. And here
rows may be deleted of young transactions, too."""


class _Manager:
    """kafka-python's connections, until one of them fails."""

    def __init__(self) -> None:
        self.cluster = self

    def update_metadata(self, _: object) -> None:
        pass

    def add_coordinator(self, *_: object) -> None:
        pass


class Wire:
    """Stands in for `sparkonce.sinks.kafka.connection.Connection`.

    Args:
        kafka: The cluster.
        brokers: Its brokers.
    """

    def __init__(self, kafka: Kafka, brokers: Sequence[int]) -> None:
        self._kafka, self._brokers = kafka, brokers
        self._failed = False
        self.manager = _Manager()

    def call(self, ask: Callable[[], Coroutine[Any, Any, Any]], deadline_s: float) -> Any:
        """Runs a coroutine, which waits for nothing but `gather`."""
        try:
            ask().send(None)
        except StopIteration as done:
            return done.value
        finally:
            if self._failed:
                self._failed, self.manager = False, _Manager()
        raise TypeError("it waits for something that never comes")

    async def gather(self, requests: Sequence[tuple[Any, Any]], deadline_s: float) -> list[Any]:
        """One after the other, in whatever time that takes. A broker without a coordinator has nothing to list."""
        return [self._send(request, node) for request, node in requests]

    def close(self) -> None:
        pass

    def _send(self, request: Any, node: Any) -> Any:
        if type(request) is _Metadata:
            return Reply(brokers=[SimpleNamespace(node_id=broker) for broker in self._brokers])
        if type(request) is _List and node != self._kafka.broker:
            return _NOTHING_LISTED
        words, apply, refusal = _MEANINGS[type(request)](self._kafka, request, _broker(node))
        try:
            return self._kafka.simulation.request((self._kafka.called, *words), apply)
        except NoAnswerError as error:
            self._failed = True
            return BrokerAnswer(None, str(error))
        except RefusedError:
            return refusal


class Reply(SimpleNamespace):
    """A response, of which only the gist is told."""

    def __str__(self) -> str:
        if self.__dict__.keys() == {"error_code"}:
            return f"error {self.error_code}" if self.error_code else "ok"
        return ", ".join(
            str([str(one) for one in value] if isinstance(value, list) else value) for value in self.__dict__.values()
        )


_CODES: dict[int, Reply] = {}


def says(code: int | None) -> Reply:
    """A response of which nothing is read but its code."""
    if code is None:
        raise TypeError("a broker that answers gives a code")
    found = _CODES.get(code)
    if found is None:
        found = _CODES[code] = Reply(error_code=code)
    return found


_FAILED = says(_UNKNOWN_SERVER_ERROR)
_NOTHING_LISTED = Reply(error_code=0, transaction_states=[])

Meaning = tuple[Words, Callable[[], Any], Any]
"""A request in words, what it does, and how it is refused."""


@cache
def _broker(node: int | str | None) -> int | None:
    """The one of a connection. The client has several to each coordinator, by names of its own."""
    return int(node.removeprefix("coordinator-").partition(".")[0]) if isinstance(node, str) else node


def _end(kafka: Kafka, request: Any, broker: int | None) -> Meaning:
    asked = _transaction(request)
    raises_epoch = request.max_version >= _RAISES_EPOCH
    words = ("commits" if request.committed else "aborts", asked.transactional_id, asked.epoch)

    def end() -> Reply:
        moved = broker != kafka.broker
        return says(_NOT_COORDINATOR if moved else kafka.end(asked, request.committed, raises_epoch).code)

    return words, end, _FAILED


def _fence(kafka: Kafka, request: Any, broker: int | None) -> Meaning:
    asked = _transaction(request)

    def fence() -> Reply:
        return says(_NOT_COORDINATOR if broker != kafka.broker else kafka.fence(asked).code)

    return ("fences", asked.transactional_id, asked.epoch), fence, _FAILED


def _transaction(request: Any) -> Transaction:
    return Transaction(request.transactional_id, request.producer_id, request.producer_epoch)


def _describe(kafka: Kafka, request: Any, broker: int | None) -> Meaning:
    names = request.transactional_ids

    def describe() -> Reply:
        if broker != kafka.broker:
            return Reply(transaction_states=[says(_NOT_COORDINATOR) for _ in names])
        return Reply(transaction_states=[kafka.describe(name) for name in names])

    return ("describes", *names), describe, Reply(transaction_states=[_FAILED] * len(names))


def _list(kafka: Kafka, request: Any, broker: int | None) -> Meaning:
    states = request.state_filters

    def listed() -> Reply:
        names = kafka.listed(states) if broker == kafka.broker else ()
        return Reply(error_code=0, transaction_states=[Reply(transactional_id=name) for name in names])

    refusal = Reply(error_code=_UNKNOWN_SERVER_ERROR, transaction_states=[])
    return ("broker", broker, "lists", states[0]), listed, refusal


def _find(kafka: Kafka, request: Any, broker: int | None) -> Meaning:
    keys = request.coordinator_keys

    def find() -> Reply:
        return Reply(
            coordinators=[Reply(error_code=0, key=key, node_id=kafka.find(), host="h", port=9092) for key in keys]
        )

    refusal = Reply(coordinators=[Reply(error_code=_UNKNOWN_SERVER_ERROR, key=key) for key in keys])
    return ("looks for the coordinator of", *keys), find, refusal


def _features(kafka: Kafka, request: Any, broker: int | None) -> Meaning:
    def say() -> Reply:
        feature = Reply(name="transaction.version", max_version_level=kafka.version)
        return Reply(error_code=0, finalized_features=[feature])

    return ("asks for features",), say, _FAILED


_MEANINGS: Mapping[type, Callable[[Kafka, Any, int | None], Meaning]] = {
    _EndTxn: _end,
    _InitProducerId: _fence,
    _Describe: _describe,
    _List: _list,
    _FindCoordinator: _find,
    _ApiVersions: _features,
}

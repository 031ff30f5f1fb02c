"""What the product's `TransactionClient` sends to Kafka's brokers, and their responses, without a network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.engine import NoAnswerError, RefusedError, Words
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, KafkaTransaction

if TYPE_CHECKING:
    from simulation.kafka import Kafka

_UNKNOWN_SERVER_ERROR = -1
_NOT_COORDINATOR = 16
_RAISES_EPOCH = 5
"""The versions of EndTxn, by the first version of transactions that uses each."""


_REQUESTS = (
    *("EndTxnRequest", "InitProducerIdRequest", "DescribeTransactionsRequest", "ListTransactionsRequest"),
    *("FindCoordinatorRequest", "ApiVersionsRequest", "MetadataRequest"),
)

REPLACED: tuple[tuple[str, str, Any], ...] = (
    *(("transaction_client", name, type(name, (SimpleNamespace,), {})) for name in _REQUESTS),
    ("committer", "_may_be_old", lambda _: True),
)
"""kafka-python's request classes, which can be serialized, take ten times as long to create.

Here, rows of young transactions may be deleted, too.
"""


class _Manager:
    """kafka-python's connections, until one of them fails."""

    def __init__(self) -> None:
        self.cluster = self

    def update_metadata(self, _: object) -> None:
        pass

    def add_coordinator(self, *_: object) -> None:
        pass


class Wire:
    """Replaces `sparkonce.sinks.kafka.connection.KafkaConnection`.

    Args:
        kafka: The cluster.
        brokers: Its brokers.
    """

    def __init__(self, kafka: Kafka, brokers: Sequence[int]) -> None:
        self._kafka, self._brokers = kafka, brokers
        self._failed = False
        self.manager = _Manager()

    def call(self, ask: Callable[[], Coroutine[Any, Any, Any]], deadline_s: float) -> Any:
        """Runs a coroutine, which awaits nothing except `gather`."""
        try:
            ask().send(None)
        except StopIteration as done:
            return done.value
        finally:
            if self._failed:
                self._failed, self.manager = False, _Manager()
        raise TypeError("it waits for something that never comes")

    async def gather(self, requests: Sequence[tuple[Any, Any]], deadline_s: float) -> list[Any]:
        """One after the other, no matter how long that takes. A broker without a coordinator lists nothing."""
        return [self._send(request, node) for request, node in requests]

    def close(self) -> None:
        pass

    def _send(self, request: Any, node: Any) -> Any:
        kind, kafka = type(request).__name__, self._kafka
        if kind == "MetadataRequest":
            return Reply(brokers=[SimpleNamespace(node_id=broker) for broker in self._brokers])
        if kind == "ListTransactionsRequest" and node != kafka.broker:
            return _NOTHING_LISTED
        words, apply, refusal = _meaning(kafka, kind, request, _broker(node))
        try:
            return kafka.simulation.request((kafka.called, *words), apply)
        except NoAnswerError as error:
            self._failed = True
            return BrokerAnswer(None, str(error))
        except RefusedError:
            return refusal


class Reply(SimpleNamespace):
    """A response, of which only the essential part is recorded."""

    def __str__(self) -> str:
        if self.__dict__.keys() == {"error_code"}:
            return f"error {self.error_code}" if self.error_code else "ok"
        return ", ".join(
            str([str(one) for one in value] if isinstance(value, list) else value) for value in self.__dict__.values()
        )


_CODES: dict[int, Reply] = {}


def says(code: int | None) -> Reply:
    """A response whose code is the only part that is read."""
    if code is None:
        raise TypeError("a broker that answers gives a code")
    found = _CODES.get(code)
    if found is None:
        found = _CODES[code] = Reply(error_code=code)
    return found


_FAILED = says(_UNKNOWN_SERVER_ERROR)
_NOTHING_LISTED = Reply(error_code=0, transaction_states=[])

Meaning = tuple[Words, Callable[[], Any], Any]
"""A request's description, its effect, and its error response."""


@cache
def _broker(node: int | str | None) -> int | None:
    """Returns the broker of a connection.

    The client has several connections to each coordinator, under its own names.
    """
    return int(node.removeprefix("coordinator-").partition(".")[0]) if isinstance(node, str) else node


def _meaning(kafka: Kafka, kind: str, request: Any, broker: int | None) -> Meaning:
    def if_here(answer: Callable[[], BrokerAnswer]) -> Callable[[], Reply]:
        return lambda: says(_NOT_COORDINATOR if broker != kafka.broker else answer().code)

    match kind:
        case "EndTxnRequest" | "InitProducerIdRequest":
            asked = KafkaTransaction(request.transactional_id, request.producer_id, request.producer_epoch)
            if kind == "InitProducerIdRequest":
                return ("fences", asked.transactional_id, asked.epoch), if_here(lambda: kafka.fence(asked)), _FAILED
            words = ("commits" if request.committed else "aborts", asked.transactional_id, asked.epoch)
            raises_epoch = request.max_version >= _RAISES_EPOCH
            return words, if_here(lambda: kafka.end(asked, request.committed, raises_epoch)), _FAILED
        case "DescribeTransactionsRequest":
            names = request.transactional_ids

            def describe() -> Reply:
                moved = broker != kafka.broker
                views = [says(_NOT_COORDINATOR) if moved else kafka.describe(name) for name in names]
                return Reply(transaction_states=views)

            return ("describes", *names), describe, Reply(transaction_states=[_FAILED] * len(names))
        case "ListTransactionsRequest":
            states = request.state_filters

            def listed() -> Reply:
                found = kafka.listed(states) if broker == kafka.broker else ()
                return Reply(error_code=0, transaction_states=[Reply(transactional_id=name) for name in found])

            refusal = Reply(error_code=_UNKNOWN_SERVER_ERROR, transaction_states=[])
            return ("broker", broker, "lists", states[0]), listed, refusal
        case "FindCoordinatorRequest":
            keys = request.coordinator_keys

            def find() -> Reply:
                found = [Reply(error_code=0, key=key, node_id=kafka.find(), host="h", port=9092) for key in keys]
                return Reply(coordinators=found)

            refusal = Reply(coordinators=[Reply(error_code=_UNKNOWN_SERVER_ERROR, key=key) for key in keys])
            return ("looks for the coordinator of", *keys), find, refusal
        case _:
            level = Reply(name="transaction.version", max_version_level=kafka.version)
            return ("asks for features",), lambda: Reply(error_code=0, finalized_features=[level]), _FAILED

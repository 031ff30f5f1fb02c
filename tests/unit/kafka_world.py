"""Fake brokers, which answer the driver's requests about transactions, or reject them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError

from sparkonce.sinks.kafka.outcomes import BrokerAnswer

SILENT = BrokerAnswer(None, "reset by peer")
UNSENT = BrokerAnswer(None, "refused", never_sent=True)
NOT_COORDINATOR = 16

Refusal = BrokerAnswer | int


class Brokers:
    """Stands in for a client's connection.

    Attributes:
        holds: The ids that each broker coordinates. Broker 1 also coordinates all others.
        refuse: The next answers of a broker or to a kind of request, in order, which replace the real ones.
        not_here: The answer of a broker that does not coordinate an id.
        leaves_out: The ids that a coordinator lookup does not mention.
        changes_ids: True if the brokers remove spaces from the ids in requests.
        asked: The requests in order, as ``(broker, kind)``. A lookup goes to any broker, which is None.
        asked_about: The broker and the id of each request about one id.
        looked_up: The ids of each coordinator lookup.
        patterns: The patterns of all requests that list transactions.
    """

    def __init__(self) -> None:
        self.holds: dict[int, list[str]] = {1: [], 2: []}
        self.refuse: dict[Any, list[Refusal]] = {}
        self.not_here = NOT_COORDINATOR
        self.leaves_out: set[str] = set()
        self.changes_ids = False
        self.asked: list[tuple[Any, str]] = []
        self.asked_about: list[tuple[int, str]] = []
        self.looked_up: list[list[str]] = []
        self.patterns: set[str | None] = set()
        self.manager = SimpleNamespace(
            cluster=SimpleNamespace(add_coordinator=lambda *_: None, update_metadata=lambda _: None)
        )

    def call(self, ask: Callable[[], Coroutine[Any, Any, Any]], deadline_s: float) -> Any:
        try:
            ask().send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("nothing here is waited for")

    async def gather(self, requests: Sequence[tuple[Any, Any]], deadline_s: float) -> list[Any]:
        return [
            self._answer(type(request).__name__.removesuffix("Request"), request, node) for request, node in requests
        ]

    def close(self) -> None:
        pass

    def count(self, kind: str) -> list[Any]:
        return [broker for broker, one in self.asked if one == kind]

    def _answer(self, kind: str, request: Any, node: Any) -> Any:
        broker = int(node.removeprefix("coordinator-").partition(".")[0]) if isinstance(node, str) else node
        self.asked.append((broker, kind))
        left = self.refuse.get(broker) or self.refuse.get(kind) or []
        refusal = left.pop(0) if left else 0
        if isinstance(refusal, BrokerAnswer):
            if refusal.code is None:
                return refusal
            refusal = refusal.code
        match kind:
            case "Metadata":
                return SimpleNamespace(brokers=[SimpleNamespace(node_id=one) for one in self.holds])
            case "FindCoordinator":
                self.looked_up.append(list(request.coordinator_keys))
                found = [
                    SimpleNamespace(error_code=refusal, key=key, node_id=self._holder(key), host="h", port=1)
                    for key in request.coordinator_keys
                    if key not in self.leaves_out
                ]
                return SimpleNamespace(coordinators=found)
            case "ListTransactions":
                self.patterns.add(request.transactional_id_pattern)
                names = [] if refusal else self.holds[broker]
                states = [SimpleNamespace(transactional_id=name) for name in names]
                return SimpleNamespace(error_code=refusal, transaction_states=states)
            case "DescribeTransactions":
                states = [self._state(name, self._code(broker, name, refusal)) for name in request.transactional_ids]
                return SimpleNamespace(transaction_states=states)
            case "AddOffsetsToTxn" | "TxnOffsetCommit":
                return SimpleNamespace(error_code=refusal, topics=[])
            case "DescribeGroups" | "ConsumerGroupDescribe":
                return SimpleNamespace(groups=[SimpleNamespace(error_code=0, group_state="Empty")])
        return SimpleNamespace(error_code=self._code(broker, request.transactional_id, refusal))

    def _code(self, broker: int, name: str, refusal: int) -> int:
        self.asked_about.append((broker, name))
        return refusal or (0 if self._holder(name) == broker else self.not_here)

    def _holder(self, name: str) -> int:
        return next((broker for broker, names in self.holds.items() if name in names), 1)

    def _state(self, name: str, code: int) -> Any:
        return SimpleNamespace(
            error_code=code,
            transactional_id=name.strip() if self.changes_ids else name,
            producer_id=7,
            producer_epoch=3,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=5,
            topics=[],
        )


class Told:
    """Records what a batch producer reports."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.refused: list[tuple[int, str, int, int]] = []
        self.errors: list[int] = []
        self.identities: list[tuple[int, int]] = []
        self.stats = ""

    def on_acknowledged(self, rows: int) -> None:
        self.acknowledged += rows

    def on_refused(self, error: KafkaError, topic: str, partition: int, size: int) -> None:
        self.refused.append((error.code(), topic, partition, size))

    def on_error(self, error: KafkaError) -> None:
        self.errors.append(error.code())

    def on_stats(self, text: str) -> None:
        self.stats = text

    def on_identity(self, producer_id: int, epoch: int) -> None:
        self.identities.append((producer_id, epoch))

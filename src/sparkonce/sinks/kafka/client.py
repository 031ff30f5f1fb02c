"""Requests about transactions that librdkafka does not offer, sent with kafka-python's protocol classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from sparkonce.sinks.kafka.connection import Connection, Request, Response
from sparkonce.sinks.kafka.outcomes import (
    MOVED,
    NONE,
    TRANSACTIONAL_ID_NOT_FOUND,
    Answer,
    Description,
    Transaction,
)

LANES = 4
"""Connections to each coordinator. A broker works on one request of a connection at a time: 50 commits on an idle
broker take 18 ms over one connection and 8 ms over four (measured, Kafka 4.3)."""

_DESCRIBED_AT_ONCE = 1000

_EPOCH_KEPT = {"max_version": 4}
_EPOCH_RAISED = {"min_version": 5, "max_version": 5}
"""EndTxn's versions: from v5 on the broker raises the producer's epoch (KIP-890)."""


class TransactionClient:
    """Asks transaction coordinators, all requests of a call at a time. Every ``deadline_s`` is by `time.monotonic`.

    A coordinator's address is looked up once and remembered until the coordinator moves or keeps silent.

    Args:
        settings: kafka-python's settings, see `sparkonce.sinks.kafka.settings.admin_settings`.
        lanes: Connections to each coordinator.
    """

    def __init__(self, settings: Mapping[str, Any], lanes: int = LANES) -> None:
        self._connection = Connection(settings)
        self._lanes = lanes
        self._coordinators: dict[str, int] = {}
        self._looked_up_by: object = None

    def end_transactions(self, transactions: Sequence[Transaction], *, commit: bool, deadline_s: float) -> list[Answer]:
        """Asks once to commit or abort each transaction; the answers come in the same order.

        A commit leaves the epoch as it is (EndTxn up to v4), so that it can be repeated. An abort raises the epoch
        (EndTxn v5, KIP-890), so that the writer cannot open the transaction again; it needs `transaction_version` 2.
        """
        versions = _EPOCH_KEPT if commit else _EPOCH_RAISED
        return self._ask_coordinators(transactions, lambda one: _end_txn(one, commit, **versions), deadline_s)

    def fence(self, transactions: Mapping[Transaction, int], *, deadline_s: float) -> list[Answer]:
        """Aborts by initialising the ids anew (InitProducerId v3+), for clusters below transaction version 2.

        The broker raises the epoch, aborts what is open and answers CONCURRENT_TRANSACTIONS until that is done. While
        a transaction is open it compares the producer id and not the epoch: describe the transaction first.

        Args:
            transactions: What to abort, with the transaction timeout in milliseconds that the id is to keep.
            deadline_s: Until when to wait.
        """

        def request(transaction: Transaction) -> Request:
            return InitProducerIdRequest(
                transactional_id=transaction.transactional_id,
                transaction_timeout_ms=transactions[transaction],
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                min_version=3,
                max_version=5,
            )

        return self._ask_coordinators(list(transactions), request, deadline_s)

    def describe_transactions(
        self, transactions: Sequence[Transaction], *, deadline_s: float
    ) -> list[Description | Answer]:
        """The coordinators' view of these transactional ids, in the same order; an `Answer` where there is none."""

        def request(transaction: Transaction) -> Request:
            return DescribeTransactionsRequest(transactional_ids=[transaction.transactional_id])

        views = self._ask_coordinators(
            transactions, request, deadline_s, read=lambda response: _description(response.transaction_states[0])
        )
        return [_of_this_id(view, one) for view, one in zip(views, transactions, strict=True)]

    def list_transactions(self, states: Sequence[str], *, deadline_s: float) -> list[str] | Answer:
        """The transactional ids in one of these states, from every broker; an `Answer` if any broker gives none."""

        async def ask() -> list[str] | Answer:
            listed = await self._list(states, deadline_s)
            return listed if isinstance(listed, Answer) else [name for _, name in listed]

        return self._connection.call(ask, deadline_s)

    def survey(
        self, states: Sequence[str], wanted: Callable[[str], bool], *, deadline_s: float
    ) -> list[Description] | Answer:
        """The coordinators' views of all ids in one of these states of which ``wanted(id)`` holds; they may be many.

        Each broker is asked to describe what it has listed itself, so that no coordinator has to be looked up. What it
        has forgotten since then is left out; an `Answer` if a broker gives none, or is no longer the coordinator.
        """

        async def ask() -> list[Description] | Answer:
            listed = await self._list(states, deadline_s)
            if isinstance(listed, Answer):
                return listed
            chosen: dict[int, list[str]] = {}
            for broker, name in listed:
                if wanted(name):
                    chosen.setdefault(broker, []).append(name)
            requests = [
                (DescribeTransactionsRequest(transactional_ids=names[start : start + _DESCRIBED_AT_ONCE]), broker)
                for broker, names in chosen.items()
                for start in range(0, len(names), _DESCRIBED_AT_ONCE)
            ]
            views: list[Description] = []
            for response in await self._connection.gather(requests, deadline_s):
                if isinstance(response, Answer):
                    return response
                for state in response.transaction_states:
                    view = _description(state)
                    if isinstance(view, Description):
                        views.append(view)
                    elif view.code != TRANSACTIONAL_ID_NOT_FOUND:
                        return view
            return views

        return self._connection.call(ask, deadline_s)

    async def _list(self, states: Sequence[str], deadline_s: float) -> list[tuple[int, str]] | Answer:
        """Broker and transactional id of everything in one of these states."""
        cluster = self._connection.manager.cluster
        await cluster.refresh_metadata()
        brokers = [broker.node_id for broker in cluster.brokers()]
        requests = [(ListTransactionsRequest(state_filters=list(states)), broker) for broker in brokers]
        listed: list[tuple[int, str]] = []
        for broker, response in zip(brokers, await self._connection.gather(requests, deadline_s), strict=True):
            answer = _answer(response)
            if answer.code != NONE:
                return answer
            listed.extend((broker, found.transactional_id) for found in response.transaction_states)
        return listed

    def transaction_version(self, *, deadline_s: float) -> int | Answer:
        """The cluster's finalized feature ``transaction.version``; 0 if it has none (KIP-584, KIP-890)."""
        request = ApiVersionsRequest(client_software_name="sparkonce", client_software_version="1", min_version=3)
        response = self.request(request, deadline_s=deadline_s)
        answer = _answer(response)
        if answer.code != NONE:
            return answer
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}
        return int(levels.get("transaction.version", 0))

    def probe(self, transaction: Transaction, *, deadline_s: float) -> Answer:
        """Asks to abort, by EndTxn v4, a transaction of an id that nobody has: only the permission is tried."""
        answers = self._ask_coordinators([transaction], lambda one: _end_txn(one, False, **_EPOCH_KEPT), deadline_s)
        return Answer(answers[0].code, answers[0].reason)

    def request(self, request: Request, *, deadline_s: float, node_id: int | None = None) -> Response:
        """Sends any request to one broker, or to any: the response, or an `Answer` without code."""

        async def ask() -> Response:
            return (await self._connection.gather([(request, node_id)], deadline_s))[0]

        return self._connection.call(ask, deadline_s)

    def close(self) -> None:
        """Closes every connection. A later call opens them again."""
        self._connection.close()

    def _ask_coordinators(
        self,
        transactions: Sequence[Transaction],
        request: Callable[[Transaction], Request],
        deadline_s: float,
        read: Callable[[Response], Any] | None = None,
    ) -> list[Any]:
        """Sends one request for each transaction to its coordinator; ``read`` turns a good response into a result."""

        async def ask() -> list[Any]:
            nodes = await self._look_up([one.transactional_id for one in transactions], deadline_s)
            results: list[Any] = [nodes[one.transactional_id] for one in transactions]
            places = [place for place, node in enumerate(results) if not isinstance(node, Answer)]
            requests = [
                (request(transactions[place]), _lane(results[place], turn % self._lanes))
                for turn, place in enumerate(places)
            ]
            responses = await self._connection.gather(requests, deadline_s)
            for place, response in zip(places, responses, strict=True):
                results[place] = self._result(transactions[place], response, read)
            return results

        results = self._connection.call(ask, deadline_s)
        return [results] * len(transactions) if isinstance(results, Answer) else results

    def _result(
        self,
        transaction: Transaction,
        response: Response,
        read: Callable[[Response], Any] | None,
    ) -> Any:
        result = _answer(response) if read is None or isinstance(response, Answer) else read(response)
        if isinstance(result, Answer) and result.code in MOVED:
            self._coordinators.pop(transaction.transactional_id, None)
        return result

    async def _look_up(self, names: Sequence[str], deadline_s: float) -> dict[str, int | Answer]:
        """The broker that coordinates each id, remembered or asked in one round trip for all (KIP-699)."""
        if self._looked_up_by is not self._connection.manager:
            self._coordinators.clear()
            self._looked_up_by = self._connection.manager
        unknown = [name for name in dict.fromkeys(names) if name not in self._coordinators]
        failed: dict[str, Answer] = {}
        if unknown:
            request = FindCoordinatorRequest(
                key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=unknown, min_version=4
            )
            response = (await self._connection.gather([(request, None)], deadline_s))[0]
            if isinstance(response, Answer):
                failed = dict.fromkeys(unknown, response)
            else:
                failed = {found.key: _answer(found) for found in response.coordinators if not self._remember(found)}
        return {name: failed[name] if name in failed else self._coordinators[name] for name in names}

    def _remember(self, found: Any) -> bool:
        if found.error_code != NONE:
            return False
        self._coordinators[found.key] = found.node_id
        for lane in range(self._lanes):
            # kafka-python keeps one connection for each node id, and makes "coordinator-<id>" of this one.
            node = SimpleNamespace(error_code=NONE, node_id=f"{found.node_id}.{lane}", host=found.host, port=found.port)
            self._connection.manager.cluster.add_coordinator(node, CoordinatorType.TRANSACTION, f"lane {lane}")
        return True


def versions_request() -> Request:
    """Asks for a broker's versions of every request, and for the cluster's features."""
    return ApiVersionsRequest(client_software_name="sparkonce", client_software_version="1", min_version=3)


def _end_txn(transaction: Transaction, commit: bool, **versions: int) -> Request:
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        committed=commit,
        **versions,
    )


def _lane(node_id: int, lane: int) -> str:
    return f"coordinator-{node_id}.{lane}"


def _answer(response: Response) -> Answer:
    if isinstance(response, Answer):
        return response
    return Answer(response.error_code, getattr(response, "error_message", None) or "")


def _description(state: Any) -> Description | Answer:
    if state.error_code != NONE:
        return _answer(state)
    return Description(
        transaction=Transaction(state.transactional_id, state.producer_id, state.producer_epoch),
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms,
    )


def _of_this_id(view: Description | Answer, asked: Transaction) -> Description | Answer:
    """What is said of another id says nothing of the one that was asked for."""
    if isinstance(view, Answer) or view.transaction.transactional_id == asked.transactional_id:
        return view
    said, wanted = view.transaction.transactional_id, asked.transactional_id
    return Answer(None, f"asked for the transactional id {wanted!r}, and the broker describes {said!r}")

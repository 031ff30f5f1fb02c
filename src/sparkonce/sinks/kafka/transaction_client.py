"""Requests about transactions that librdkafka does not offer, sent with kafka-python's protocol classes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from sparkonce.sinks.kafka.connection import Connection, Request, Response
from sparkonce.sinks.kafka.outcomes import (
    MOVED,
    NONE,
    TRANSACTIONAL_ID_NOT_FOUND,
    Answer,
    Description,
    Transaction,
    is_unanswered,
)
from sparkonce.sinks.kafka.waiting import Waiting
from sparkonce.words import one_line

LANES = 4
"""Connections to each coordinator. A broker works on one request of a connection at a time: 50 commits on an idle
broker take 18 ms over one connection and 8 ms over four (measured, Kafka 4.3)."""

REMEMBERED = 10_000
"""How many ids' coordinators are remembered before all are forgotten; one round trip looks them up again."""

_DESCRIBED_AT_ONCE = 1000

_SOME = -1
"""In place of all brokers, where none says which there are."""

_EPOCH_KEPT = {"max_version": 4}
_EPOCH_RAISED = {"min_version": 5, "max_version": 5}
"""EndTxn's versions: from v5 on the broker raises the producer's epoch (KIP-890)."""


class TransactionClient:
    """Asks transaction coordinators, all requests of a call at a time. Every ``deadline_s`` is by `time.monotonic`.

    A request that is refused for now, or not answered, is asked again by itself until the deadline; what others were
    answered is kept. Only an abort is sent once: before the next one the transaction has to be described again.

    A coordinator's address is looked up once and remembered until the coordinator moves or keeps silent.

    Args:
        settings: kafka-python's settings, see `sparkonce.sinks.kafka.settings.admin_settings`.
        lanes: Connections to each coordinator.

    Attributes:
        waiting: Says in the log what is waited for.
    """

    def __init__(self, settings: Mapping[str, Any], lanes: int = LANES) -> None:
        self._connection = Connection(settings)
        self._lanes = lanes
        self._coordinators: dict[str, int] = {}
        self._looked_up_by: object = None
        self.waiting = Waiting()

    def end_transactions(self, transactions: Sequence[Transaction], *, commit: bool, deadline_s: float) -> list[Answer]:
        """Asks to commit or abort each transaction; the answers come in the same order.

        A commit leaves the epoch as it is (EndTxn up to v4), so that it can be repeated. An abort raises the epoch
        (EndTxn v5, KIP-890), so that the writer cannot open the transaction again; it needs `transaction_version` 2.
        """
        versions = _EPOCH_KEPT if commit else _EPOCH_RAISED
        is_open = is_unanswered if commit else _is_never_sent
        return self._ask_coordinators(
            transactions, lambda one: _end_txn(one, commit, **versions), deadline_s, is_open=is_open
        )

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

        return self._ask_coordinators(list(transactions), request, deadline_s, is_open=_is_never_sent)

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

    def list_transactions(
        self, states: Sequence[str], begins: Sequence[str], *, deadline_s: float
    ) -> list[str] | Answer:
        """The ids in one of these states that begin so, from every broker; an `Answer` if any broker gives none."""
        listed, missing = self._list(states, begins, deadline_s - time.monotonic(), deadline_s)
        return list(listed) if missing is None else missing

    def survey(
        self, states: Sequence[str], begins: str, *, attempt_s: float, deadline_s: float
    ) -> tuple[list[Description], Answer | None]:
        """The coordinators' views of all ids in one of these states that begin so; they may be many.

        Each broker is asked to describe what it has listed itself, so that no coordinator has to be looked up. What it
        has forgotten since then is left out.

        Args:
            states: As the broker calls them.
            begins: How the ids begin.
            attempt_s: How long a broker's list is waited for at first. After silence twice as long, for the list of a
                large cluster takes its time.
            deadline_s: Until when to ask.

        Returns:
            The views, and why some are missing; None if none is.
        """
        views: dict[str, Description] = {}
        again = self.waiting.until(deadline_s, "describe transactions")
        while True:
            listed, missing = self._list(states, [begins], attempt_s, deadline_s)
            unseen = {name: broker for name, broker in listed.items() if name not in views}
            missing = self._describe_at(unseen, views, deadline_s) or missing
            if missing is None or not again(missing):
                return list(views.values()), missing

    def _describe_at(
        self, brokers: Mapping[str, int], views: dict[str, Description], deadline_s: float
    ) -> Answer | None:
        """Adds the views of these ids, by their brokers. Says why some are missing."""
        chosen: dict[int, list[str]] = {}
        for name, broker in brokers.items():
            chosen.setdefault(broker, []).append(name)
        requests = [
            (DescribeTransactionsRequest(transactional_ids=names[start : start + _DESCRIBED_AT_ONCE]), broker)
            for broker, names in chosen.items()
            for start in range(0, len(names), _DESCRIBED_AT_ONCE)
        ]
        missing = None
        for response in self.gather(requests, deadline_s=deadline_s):
            if isinstance(response, Answer):
                missing = response
                continue
            for state in response.transaction_states:
                view = _description(state)
                if isinstance(view, Description):
                    views[view.transaction.transactional_id] = view
                elif view.code != TRANSACTIONAL_ID_NOT_FOUND:
                    missing = view
        return missing

    def _list(
        self, states: Sequence[str], begins: Sequence[str], attempt_s: float, deadline_s: float
    ) -> tuple[dict[str, int], Answer | None]:
        """The broker of each id in one of these states that begins so, and why some may be missing.

        From Kafka 4.1 on (KIP-1152) brokers choose by the pattern; older ones are not sent it, and list all they have.
        """
        pattern = "|".join(f"{re.escape(begin)}.*" for begin in begins)
        request = ListTransactionsRequest(state_filters=list(states), transactional_id_pattern=pattern)
        start = tuple(begins)
        found: dict[str, int] = {}
        answered: set[int] = set()
        silent: set[int] = set()
        again = self.waiting.until(deadline_s, "list transactions")
        while True:
            until_s = min(deadline_s, time.monotonic() + attempt_s)
            told = self._connection.call(partial(self._ask_brokers, request, answered, until_s), until_s)
            brokers: set[int] = {_SOME}
            replies: dict[int, Response] = {_SOME: told}
            if not isinstance(told, Answer):
                brokers, replies = told
            refused = {broker: answer for broker, reply in replies.items() if (answer := _answer(reply)).code != NONE}
            for broker in replies.keys() - refused:
                names = (one.transactional_id for one in replies[broker].transaction_states)
                found.update((name, broker) for name in names if name.startswith(start))
            still_silent = {broker for broker, answer in refused.items() if answer.code is None}
            if silent - still_silent:
                # Who was away is back, or gone for good: what it coordinated may be with any other by now.
                answered.clear()
            answered.update(replies.keys() - refused)
            silent = still_silent
            if answered >= brokers:
                return found, None
            missing = next(iter(refused.values()), Answer(None, "brokers came or went while they were asked"))
            if not again(missing):
                return found, missing
            if silent:
                attempt_s *= 2

    async def _ask_brokers(
        self, request: Request, answered: set[int], deadline_s: float
    ) -> tuple[set[int], dict[int, Response]] | Answer:
        """The brokers that there are now, and what those say that have not answered yet."""
        metadata_request = MetadataRequest(topics=[], min_version=2, max_version=9)
        (metadata,) = await self._connection.gather([(metadata_request, None)], deadline_s)
        if isinstance(metadata, Answer):
            return metadata
        self._connection.manager.cluster.update_metadata(metadata)
        brokers = {broker.node_id for broker in metadata.brokers}
        asked = sorted(brokers - answered)
        replies = await self._connection.gather([(request, broker) for broker in asked], deadline_s)
        return brokers, dict(zip(asked, replies, strict=True))

    def transaction_version(self, *, deadline_s: float) -> int | Answer:
        """The cluster's finalized feature ``transaction.version``; 0 if it has none (KIP-584, KIP-890)."""
        response = self.request(versions_request(), deadline_s=deadline_s)
        answer = _answer(response)
        if answer.code != NONE:
            return answer
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}
        return int(levels.get("transaction.version", 0))

    def probe(self, transaction: Transaction, *, deadline_s: float) -> Answer:
        """Asks to abort, by EndTxn v4, a transaction of an id that nobody has: only the permission is tried."""

        def request(one: Transaction) -> Request:
            return _end_txn(one, False, **_EPOCH_KEPT)

        (answer,) = self._ask_coordinators([transaction], request, deadline_s)
        return Answer(answer.code, answer.reason)

    def request(self, request: Request, *, deadline_s: float, node_id: int | None = None) -> Response:
        """Sends any request to one broker, or to any: the response, or an `Answer` without code."""
        return self.gather([(request, node_id)], deadline_s=deadline_s)[0]

    def gather(self, requests: Sequence[tuple[Request, int | None]], *, deadline_s: float) -> list[Response]:
        """Sends each request to its broker, all at a time; the answers are like those of `request`."""
        responses = self._connection.call(partial(self._connection.gather, requests, deadline_s), deadline_s)
        return [responses] * len(requests) if isinstance(responses, Answer) else responses

    def close(self) -> None:
        """Closes every connection. A later call opens them again."""
        self._connection.close()

    def _ask_coordinators(
        self,
        transactions: Sequence[Transaction],
        request: Callable[[Transaction], Request],
        deadline_s: float,
        read: Callable[[Response], Any] | None = None,
        is_open: Callable[[Answer], bool] = is_unanswered,
    ) -> list[Any]:
        """Sends one request for each transaction to its coordinator, and again while its answer leaves all open.

        Args:
            transactions: What to ask about.
            request: Makes the request.
            deadline_s: Until when to ask.
            read: Turns a good response into a result.
            is_open: Whether to ask again after such an answer.
        """
        results: list[Any] = [None] * len(transactions)
        waiting: Sequence[int] = range(len(transactions))
        again = self.waiting.until(deadline_s, "find out about or end transactions")
        while True:
            asked = [transactions[place] for place in waiting]
            found = self._connection.call(partial(self._ask_once, asked, request, deadline_s, read), deadline_s)
            for turn, place in enumerate(waiting):
                results[place] = found if isinstance(found, Answer) else found[turn]
            waiting = [place for place in waiting if isinstance(results[place], Answer) and is_open(results[place])]
            if not waiting or not again(results[waiting[0]]):
                return results

    async def _ask_once(
        self,
        transactions: Sequence[Transaction],
        request: Callable[[Transaction], Request],
        deadline_s: float,
        read: Callable[[Response], Any] | None,
    ) -> list[Any]:
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

    def _result(
        self,
        transaction: Transaction,
        response: Response,
        read: Callable[[Response], Any] | None,
    ) -> Any:
        result = _answer(response) if read is None or isinstance(response, Answer) else read(response)
        if isinstance(result, Answer) and (result.code is None or result.code in MOVED):
            self._coordinators.pop(transaction.transactional_id, None)
        return result

    async def _look_up(self, names: Sequence[str], deadline_s: float) -> dict[str, int | Answer]:
        """The broker that coordinates each id, remembered or asked in one round trip for all (KIP-699)."""
        if self._looked_up_by is not self._connection.manager or len(self._coordinators) > REMEMBERED:
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
                # The look-up has had no answer, and what it was for was never sent.
                failed = dict.fromkeys(unknown, replace(response, never_sent=True))
            else:
                failed = {found.key: _answer(found) for found in response.coordinators if not self._remember(found)}
        unsaid = Answer(None, "FindCoordinator said nothing of it", never_sent=True)
        return {name: failed[name] if name in failed else self._coordinators.get(name, unsaid) for name in names}

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


def _is_never_sent(answer: Answer) -> bool:
    return answer.never_sent


def _lane(node_id: int, lane: int) -> str:
    return f"coordinator-{node_id}.{lane}"


def _answer(response: Response) -> Answer:
    if isinstance(response, Answer):
        return response
    return Answer(response.error_code, one_line(getattr(response, "error_message", None) or ""))


def _description(state: Any) -> Description | Answer:
    if state.error_code != NONE:
        return _answer(state)
    return Description(
        transaction=Transaction(state.transactional_id, state.producer_id, state.producer_epoch),
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms,
        partitions=tuple((topic.topic, number) for topic in state.topics for number in topic.partitions),
    )


def _of_this_id(view: Description | Answer, asked: Transaction) -> Description | Answer:
    """What is said of another id says nothing of the one that was asked for."""
    if isinstance(view, Answer) or view.transaction.transactional_id == asked.transactional_id:
        return view
    said, wanted = view.transaction.transactional_id, asked.transactional_id
    return Answer(None, f"asked for the transactional id {wanted!r}, and the broker describes {said!r}")

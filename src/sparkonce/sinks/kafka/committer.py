"""The driver half of the Kafka sink: commits and aborts transactions that writers have prepared."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, NOTHING, HandleCommitter
from sparkonce.sinks._shared.names import Claims
from sparkonce.sinks.kafka.connection import Response
from sparkonce.sinks.kafka.leader_check import LeaderCheck
from sparkonce.sinks.kafka.outcomes import (
    COMMITTED_STATES,
    ENDED_STATES,
    INVALID_PRODUCER_ID_MAPPING,
    TRANSACTIONAL_ID_NOT_FOUND,
    BrokerAnswer,
    Description,
    Transaction,
    abort_outcome,
    before_abort,
    commit_outcome,
    confirm_forgotten,
    confirm_lost,
    is_behind,
    is_empty,
    is_undescribed,
    still_open,
)
from sparkonce.sinks.kafka.partitions import metadata_request
from sparkonce.sinks.kafka.retention import RetentionCheck
from sparkonce.sinks.kafka.settings import admin_settings
from sparkonce.sinks.kafka.topic import (
    BROKER_RESOURCE,
    SURE_AFTER_S,
    configs_request,
    told_settings,
    why_not_decide,
)
from sparkonce.sinks.kafka.transaction_client import TransactionClient

log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S = 10.0
"""The time for which one call waits for brokers before it answers RETRY."""

TRACES_ATTEMPTS = 12
"""The factor by which `list_traces` may take longer: there may be many traces."""

_ASK_AGAIN_S = 0.25

_METADATA_VALID_S = 1.0
"""The time for which the leaders found before a decision count at the commit, which follows it within milliseconds."""

_EXPIRATION = "transactional.id.expiration.ms"

_EPOCH_BUMPED_BY_END = 2
"""The level of ``transaction.version`` from which EndTxn v5 raises the epoch (KIP-890)."""


class KafkaCommitter(HandleCommitter[Transaction]):
    """Commits and aborts by (transactional id, producer id, epoch), from any process.

    Args:
        settings: The sink's settings, in librdkafka's names.
        name: The sink's name, for the handles that `list_lingering` makes.
        topic: The topic of all rows; None if they name their own.
        attempt_timeout_s: The time for which one call may wait for brokers.

    Raises:
        ConfigurationError: for a setting that the driver's connection cannot follow.
    """

    handle_fields = frozenset({"transactional_id", "producer_id", "epoch"})

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        *,
        topic: str | None = None,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> None:
        self._client = TransactionClient(admin_settings(settings))
        self._leaders = LeaderCheck(self._client, topic)
        self._name = name
        self._attempt_timeout_s = attempt_timeout_s
        self._retention = RetentionCheck(self._client)
        self._described: tuple[float, Response] | None = None  # the topic, with the time of the request

    def transaction_of(self, handle: Handle) -> Transaction | Finished:
        """Returns the transaction that a handle names, or `FOREIGN`."""
        try:
            return transaction_of(handle)
        except KeyError:
            return FOREIGN

    def commit_all(self, wanted: Mapping[Transaction, Handle]) -> Mapping[Transaction, Finished]:
        """Commits these transactions. COMMITTED stands for the second commit too, which Kafka answers alike.

        COMMITTED means that the coordinator has the decision in its log. The markers that release readers are written
        afterwards, and Kafka 4.3 and 4.4 forget the marker of a partition without a leader (KAFKA-20734). So the leader
        is waited for. With one replica, a crash of its broker right after a commit can still leave rows hidden.
        """
        deadline_s = self._deadline_s()
        (asked_s, metadata), self._described = self._described or (0.0, None), None
        is_recent = time.monotonic() - asked_s < _METADATA_VALID_S
        held = self._leaders.held_back(list(wanted), deadline_s, metadata if is_recent else None)
        begun_ms = {one: handle.opened_ms for one, handle in wanted.items() if one not in held}
        held |= self._retention.held_back(begun_ms, deadline_s)
        ready = [one for one in wanted if one not in held]
        answers = self._client.end_transactions(ready, commit=True, deadline_s=deadline_s) if ready else []
        verdicts = [commit_outcome(answer) for answer in answers]
        doubtful = [
            place
            for place, (answer, verdict) in enumerate(zip(answers, verdicts, strict=True))
            if verdict.outcome is Outcome.LOST or answer.code == INVALID_PRODUCER_ID_MAPPING
        ]
        self._confirm(doubtful, ready, verdicts, deadline_s)
        return held | dict(zip(ready, verdicts, strict=True))

    def abort_all(self, wanted: Mapping[Transaction, Handle]) -> Mapping[Transaction, Finished]:
        """Aborts these transactions and raises their epochs, so that writers can neither write nor commit.

        A request that the broker asks to repeat is described again first. One without an answer is not repeated, since
        it may still arrive.
        """
        deadline_s = self._deadline_s()
        ended: dict[Transaction, Finished] = {}
        again = self._client.waiting.until(deadline_s, "abort transactions")
        waiting = list(wanted)
        while waiting:
            views = self._client.describe_transactions(waiting, deadline_s=deadline_s)
            verdicts = {one: before_abort(one, view) for one, view in zip(waiting, views, strict=True)}
            ended.update((one, verdict) for one, verdict in verdicts.items() if verdict is not None)
            timeouts_ms = {
                view.transaction: view.timeout_ms
                for view in views
                if isinstance(view, Description) and verdicts.get(view.transaction, NOTHING) is None
            }
            answers, initialised = self._end_and_fence(timeouts_ms, deadline_s)
            ended.update(
                (one, replace(abort_outcome(answer), in_flight=initialised and _may_arrive(answer)))
                for one, answer in answers.items()
            )
            waiting = [
                one
                for one, answer in answers.items()
                if answer.code is not None and ended[one].outcome is Outcome.RETRY
            ]
            if waiting and not again(answers[waiting[0]]):
                break
        return ended

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists the open transactions of these runs.

        Raises:
            UnknownOutcomeError: if any broker does not list its open transactions.
        """
        deadline_s, claims = self._deadline_s(), Claims(owners)
        begins = [begin_of(prefix, query) for prefix, query in claims]
        names = self._client.list_transactions(["Ongoing"], begins, deadline_s=deadline_s) if begins else []
        if isinstance(names, BrokerAnswer):
            raise _unlisted(names)
        parsed = {name: TransactionalId.parse(name) for name in names}
        own = [Transaction(name, -1, -1) for name, one in parsed.items() if one is not None and claims.has(one)]
        views = self._client.describe_transactions(own, deadline_s=deadline_s) if own else []
        return [handle for view in views if (handle := self._lingering(view)) is not None]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """Lists the commits that Kafka remembers, for a week (``transactional.id.expiration.ms``).

        An id shows only its last transaction. But a worker never takes the id of its newest transaction again (see
        `LanePool`), so all commits of a run's last batch with rows are there.

        If the cluster answers other requests, but not these in time, the traces so far are returned with a warning.
        """
        prefix = facts.get("prefix")
        if prefix is None:
            return ()
        views, missing = self._client.survey(
            sorted(COMMITTED_STATES),
            begin_of(prefix, query),
            attempt_s=self._attempt_timeout_s,
            deadline_s=time.monotonic() + TRACES_ATTEMPTS * self._attempt_timeout_s,
        )
        if missing is not None:
            if isinstance(self._client.transaction_version(deadline_s=self._deadline_s()), BrokerAnswer):
                raise _unlisted(missing, "start")
            log.warning(
                "Kafka did not tell all that it remembers of this query: %s. The run starts without knowing if its "
                "checkpoint is an old copy. Next: If it was restored, stop the query and see docs/operations.md.",
                missing,
            )
        return [trace for view in views if (trace := _trace(view, prefix, query)) is not None]

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Returns those that the coordinators' logs do not show as committed.

        A producer without a transaction counts only on a broker that keeps how transactions ended. An unknown id counts
        if it is younger than half the time for which brokers remember idle ids. The other half allows for clocks that
        differ. A user who may not ask for that time gets none of them.

        Raises:
            UnknownOutcomeError: if a coordinator does not answer, or a broker does not tell how long it remembers ids.
        """
        transactions = [transaction_of(handle) for handle in handles]
        views = self._client.describe_transactions(transactions, deadline_s=self._deadline_s())
        if (unknown := next(filter(is_undescribed, views), None)) is not None:
            raise _unlisted(unknown, "start")
        sure_ms = self._remembered_ms() // 2 if any(isinstance(view, BrokerAnswer) for view in views) else 0
        now_ms = time.time_ns() // 1_000_000
        empty = {one for one, view in zip(transactions, views, strict=True) if is_empty(one, view)}
        lost = empty if empty and self._keeps_ended(transactions[0].transactional_id) else set()
        return [
            handle
            for handle, one, view in zip(handles, transactions, views, strict=True)
            if one in lost
            or is_behind(one, view)
            or (isinstance(view, BrokerAnswer) and 0 <= now_ms - handle.opened_ms < sure_ms)
        ]

    def _keeps_ended(self, transactional_id: str) -> bool:
        """Returns True if the broker still shows how some transaction of this id's query ended.

        Raises:
            UnknownOutcomeError: if a broker does not list its transactions.
        """
        own = TransactionalId.parse(transactional_id)
        begin = transactional_id if own is None else begin_of(own.prefix, own.query)
        names = self._client.list_transactions(sorted(ENDED_STATES), [begin], deadline_s=self._deadline_s())
        if isinstance(names, BrokerAnswer):
            raise _unlisted(names, "start")
        if not names:
            log.warning(
                "These brokers do not keep how a transaction ended, as Apache Kafka does. A cluster that went back to "
                "an older state is not detected."
            )
        return bool(names)

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """Returns when the coordinators began these transactions; None if one is not open at exactly this epoch.

        Raises:
            UnknownOutcomeError: if a coordinator does not describe its transaction.
        """
        transactions = [transaction_of(handle) for handle in handles]
        views = self._client.describe_transactions(transactions, deadline_s=self._deadline_s())
        if (unknown := next(filter(is_undescribed, views), None)) is not None:
            raise _unlisted(unknown, "decision")
        begun = {view.transaction: view.started_ms for view in still_open(transactions, views)}
        return [begun.get(one) for one in transactions]

    def before_decision(self, facts: Facts) -> str:
        """Tells why the batch must not be decided: the topic is not the one that the run has started with.

        The commit that follows takes the partitions' leaders from the same response.
        """
        topic = facts.get("topic")
        if topic is None:
            return ""
        asked, deadline_s = time.monotonic(), self._deadline_s()
        while True:
            asked_s = time.monotonic()
            metadata = self._client.request(metadata_request(topic), deadline_s=deadline_s)
            objection = why_not_decide(facts, metadata)
            unanswered = isinstance(metadata, BrokerAnswer)
            if not objection and not unanswered:
                self._described = (asked_s, metadata) if topic == self._leaders.topic else None
                return ""
            if time.monotonic() >= (deadline_s if unanswered else asked + SURE_AFTER_S):
                break
            time.sleep(_ASK_AGAIN_S)
        if unanswered:
            log.warning("topic=%r: No broker tells whether it is still the same topic. The batch is decided.", topic)
        return objection

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _confirm(
        self, doubtful: list[int], transactions: list[Transaction], verdicts: list[Finished], deadline_s: float
    ) -> None:
        """Confirms these verdicts, by place, with the coordinators' descriptions of the ids."""
        if not doubtful:
            return
        views = self._client.describe_transactions([transactions[place] for place in doubtful], deadline_s=deadline_s)
        for place, view in zip(doubtful, views, strict=True):
            confirm = confirm_lost if verdicts[place].outcome is Outcome.LOST else confirm_forgotten
            verdicts[place] = confirm(verdicts[place], transactions[place], view)

    def _end_and_fence(
        self, timeouts_ms: Mapping[Transaction, int], deadline_s: float
    ) -> tuple[dict[Transaction, BrokerAnswer], bool]:
        """Aborts these transactions, and returns the answers, and whether ids were initialised.

        An initialisation ends the open transaction even if it arrives late.
        """
        if not timeouts_ms:
            return {}, False
        transactions = list(timeouts_ms)
        level = self._client.transaction_version(deadline_s=deadline_s)
        if isinstance(level, BrokerAnswer):
            return dict.fromkeys(transactions, level), False
        if level >= _EPOCH_BUMPED_BY_END:
            answers = self._client.end_transactions(transactions, commit=False, deadline_s=deadline_s)
        else:
            answers = self._client.fence(timeouts_ms, deadline_s=deadline_s)
        return dict(zip(transactions, answers, strict=True)), level < _EPOCH_BUMPED_BY_END

    def _lingering(self, view: Description | BrokerAnswer) -> Handle | None:
        if isinstance(view, BrokerAnswer):
            if view.code == TRANSACTIONAL_ID_NOT_FOUND:
                return None
            raise _unlisted(view)
        if view.state != "Ongoing":
            return None
        return Handle(
            sink=self._name,
            slot=0,
            opened_ms=max(0, view.started_ms),
            transaction=transaction_fields(fields_of(view.transaction)),
        )

    def _remembered_ms(self) -> int:
        """Returns the time for which every broker remembers an idle id; 0 if this user may not ask."""
        deadline_s = self._deadline_s()
        metadata = self._client.request(metadata_request(), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            raise _unlisted(metadata, "start")
        brokers = [broker.node_id for broker in metadata.brokers]
        requests = [(configs_request(BROKER_RESOURCE, str(broker), _EXPIRATION), broker) for broker in brokers]
        times_ms = []
        for response in self._client.gather(requests, deadline_s=deadline_s):
            if isinstance(response, BrokerAnswer):
                raise _unlisted(response, "start")
            told = told_settings(response).get(_EXPIRATION)
            times_ms.append(0 if told is None else int(told))
        return min(times_ms, default=0)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._attempt_timeout_s


def transaction_of(handle: Handle) -> Transaction:
    """Returns the transaction that a handle of the Kafka sink names.

    Raises:
        KeyError: if the handle is of another sink.
    """
    return Transaction(str(handle["transactional_id"]), int(handle["producer_id"]), int(handle["epoch"]))


def fields_of(transaction: Transaction) -> dict[str, str | int]:
    """Returns a transaction as the plain fields of a handle."""
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
    }


def _may_arrive(answer: BrokerAnswer) -> bool:
    """Returns whether a request may still be carried out, although nobody waits for its answer any more."""
    return answer.code is None and not answer.never_sent


def _trace(view: Description, prefix: str, query: str) -> Trace | None:
    """Returns the trace that an id shows of the query; None if it is another query's, or not committed."""
    parsed = TransactionalId.parse(view.transaction.transactional_id)
    if parsed is None or (parsed.prefix, parsed.query) != (prefix, query) or view.state not in COMMITTED_STATES:
        return None
    return Trace(
        token=parsed.token,
        committed=transaction_fields(fields_of(view.transaction)),
        lane=("transactional_id", view.transaction.transactional_id),
    )


def begin_of(prefix: str, query: str) -> str:
    """Returns the beginning of a query's ids, so that most ids of other queries need not be parsed."""
    return f"{prefix}.{query}."


def _unlisted(answer: BrokerAnswer, phase: str = "sweep") -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"Kafka did not tell which transactions there are: {answer}.",
        next_step="Check the brokers and the permission to describe the transactional ids; nothing was undone.",
        phase=phase,
    )

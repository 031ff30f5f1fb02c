"""The driver half of the Kafka sink: finishes transactions that writers in other processes have prepared."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, Runs, SinkCommitter, claimed_by
from sparkonce.sinks.kafka.other_queries import other_queries
from sparkonce.sinks.kafka.outcomes import (
    COMMITTED_STATES,
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
"""How long one call waits for brokers before it answers RETRY."""

TRACES_ATTEMPTS = 12
"""For how many times as long the traces are asked for: there may be many of them."""

_ASK_AGAIN_S = 0.25

_EXPIRATION = "transactional.id.expiration.ms"

_EPOCH_BUMPED_BY_END = 2
"""The level of ``transaction.version`` from which EndTxn v5 raises the epoch (KIP-890)."""

_NOTHING = Finished(outcome=Outcome.COMMITTED, reason="The slot had no rows: there is nothing to finish.")


class KafkaCommitter(SinkCommitter):
    """Commits and aborts by (transactional id, producer id, epoch), from any process.

    Args:
        settings: The sink's settings, in librdkafka's names.
        name: The sink's name, for the handles that `list_lingering` makes.
        attempt_timeout_s: How long one call may wait for brokers.

    Raises:
        ConfigurationError: for a setting that the driver's connection cannot follow.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, *, attempt_timeout_s: float = ATTEMPT_TIMEOUT_S) -> None:
        self._client = TransactionClient(admin_settings(settings))
        self._name = name
        self._attempt_timeout_s = attempt_timeout_s
        self._retention = RetentionCheck(self._client)

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.commit`. COMMITTED stands for the second commit too: Kafka answers both alike.

        It says that the coordinator has the decision in its log. The markers that let readers go on are written
        afterwards, and Kafka 4.3 and 4.4 forget the marker of a partition that has no leader then (KAFKA-20734): with
        one replica, a crash of its broker right after a commit can leave rows hidden.
        """
        deadline_s = self._deadline_s()
        open_handles = [handle for handle in handles if handle.transaction]
        transactions = [transaction_of(handle) for handle in open_handles]
        begun_ms = [handle.opened_ms for handle in open_handles]
        held = self._retention.held_back(dict(zip(transactions, begun_ms, strict=True)), deadline_s)
        ready = [one for one in transactions if one not in held]
        answers = self._client.end_transactions(ready, commit=True, deadline_s=deadline_s) if ready else []
        verdicts = [commit_outcome(answer) for answer in answers]
        doubtful = [
            place
            for place, (answer, verdict) in enumerate(zip(answers, verdicts, strict=True))
            if verdict.outcome is Outcome.LOST or answer.code == INVALID_PRODUCER_ID_MAPPING
        ]
        self._confirm(doubtful, ready, verdicts, deadline_s)
        found = held | dict(zip(ready, verdicts, strict=True))
        return _in_order(handles, [found[one] for one in transactions])

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.abort`. The epoch is raised: the writer can neither write on nor commit.

        What the broker asks to repeat is described again first. What was not answered is not: it may still arrive.
        """
        deadline_s = self._deadline_s()
        transactions = [transaction_of(handle) for handle in handles if handle.transaction]
        ended: dict[Transaction, Finished] = {}
        again = self._client.waiting.until(deadline_s, "abort transactions")
        waiting = transactions
        while waiting:
            views = self._client.describe_transactions(waiting, deadline_s=deadline_s)
            verdicts = {one: before_abort(one, view) for one, view in zip(waiting, views, strict=True)}
            ended.update((one, verdict) for one, verdict in verdicts.items() if verdict is not None)
            timeouts_ms = {
                view.transaction: view.timeout_ms
                for view in views
                if isinstance(view, Description) and verdicts.get(view.transaction, _NOTHING) is None
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
        return _in_order(handles, [ended[one] for one in transactions])

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """See `SinkCommitter.list_lingering`. Runs whose facts hold no prefix wrote no transactions.

        Raises:
            UnknownOutcomeError: if any broker does not say which transactions are open.
        """
        deadline_s = self._deadline_s()
        claimed = claimed_by(owners)
        begins = [begin_of(prefix, query) for prefix, query in claimed]
        names = self._client.list_transactions(["Ongoing"], begins, deadline_s=deadline_s) if claimed else []
        if isinstance(names, BrokerAnswer):
            raise _unlisted(names)
        own = [Transaction(name, -1, -1) for name in names if _is_claimed(name, claimed)]
        views = self._client.describe_transactions(own, deadline_s=deadline_s) if own else []
        return [handle for view in views if (handle := self._lingering(view)) is not None]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """See `SinkCommitter.list_traces`. Kafka remembers an id for a week (``transactional.id.expiration.ms``).

        An id shows its last transaction only. But a worker never takes the id of its newest transaction again (see
        `LanePool`), so the commits of a run's last batch with rows are all there.

        A cluster that answers other questions, and not this one in time, is held to be well: then what it has said so
        far is all there is, with a warning.
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
                "Kafka did not say all that it remembers of this query (%s). The run goes on without knowing whether "
                "its checkpoint is an old copy: if it was restored, stop the query and see docs/operations.md.",
                missing,
            )
        return [trace for view in views if (trace := _trace(view, prefix, query)) is not None]

    def other_queries(self, query: str, facts: Facts) -> Sequence[str]:
        """See `SinkCommitter.other_queries`, and `sparkonce.sinks.kafka.other_queries`."""
        return other_queries(self._client, query, facts, self._deadline_s())

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """See `SinkCommitter.missing`. An id that the cluster does not know may have been idle for too long.

        Half of the time that it remembers idle ids is left to clocks. Who may not ask for that time is told nothing.

        Raises:
            UnknownOutcomeError: if a coordinator does not answer, or a broker does not say how long it remembers.
        """
        transactions = [transaction_of(handle) for handle in handles]
        views = self._client.describe_transactions(transactions, deadline_s=self._deadline_s())
        if (unknown := next(filter(is_undescribed, views), None)) is not None:
            raise _unlisted(unknown, "start")
        sure_ms = self._remembered_ms() // 2 if any(isinstance(view, BrokerAnswer) for view in views) else 0
        now_ms = time.time_ns() // 1_000_000
        return [
            handle
            for handle, one, view in zip(handles, transactions, views, strict=True)
            if is_behind(one, view) or (isinstance(view, BrokerAnswer) and 0 <= now_ms - handle.opened_ms < sure_ms)
        ]

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """See `SinkCommitter.begun_ms`. The coordinator must say that it is open at exactly this epoch.

        Raises:
            UnknownOutcomeError: if a coordinator does not say.
        """
        transactions = [transaction_of(handle) for handle in handles]
        views = self._client.describe_transactions(transactions, deadline_s=self._deadline_s())
        if (unknown := next(filter(is_undescribed, views), None)) is not None:
            raise _unlisted(unknown, "decision")
        begun = {view.transaction: view.started_ms for view in still_open(transactions, views)}
        return [begun.get(one) for one in transactions]

    def before_decision(self, facts: Facts) -> str:
        """See `SinkCommitter.before_decision`. The topic has to be the one that the run has started with."""
        topic = facts.get("topic")
        if topic is None:
            return ""
        asked, deadline_s = time.monotonic(), self._deadline_s()
        while True:
            metadata = self._client.request(metadata_request(topic), deadline_s=deadline_s)
            objection = why_not_decide(facts, metadata)
            unanswered = isinstance(metadata, BrokerAnswer)
            if not objection and not unanswered:
                return ""
            if time.monotonic() >= (deadline_s if unanswered else asked + SURE_AFTER_S):
                break
            time.sleep(_ASK_AGAIN_S)
        if unanswered:
            log.warning("topic=%r: no broker says whether it is still the same; the batch is decided", topic)
        return objection

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _confirm(
        self, doubtful: list[int], transactions: list[Transaction], verdicts: list[Finished], deadline_s: float
    ) -> None:
        """Holds these verdicts, by place, against what the coordinators say of the ids."""
        if not doubtful:
            return
        views = self._client.describe_transactions([transactions[place] for place in doubtful], deadline_s=deadline_s)
        for place, view in zip(doubtful, views, strict=True):
            confirm = confirm_lost if verdicts[place].outcome is Outcome.LOST else confirm_forgotten
            verdicts[place] = confirm(verdicts[place], transactions[place], view)

    def _end_and_fence(
        self, timeouts_ms: Mapping[Transaction, int], deadline_s: float
    ) -> tuple[dict[Transaction, BrokerAnswer], bool]:
        """Returns the answers, and whether ids were initialised: that ends what is open, also if it arrives late."""
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
        """Returns how long every broker remembers an id that is idle; 0 if this user may not ask."""
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
    """The transaction that a handle of the Kafka sink finishes."""
    return Transaction(str(handle["transactional_id"]), int(handle["producer_id"]), int(handle["epoch"]))


def fields_of(transaction: Transaction) -> dict[str, str | int]:
    """A transaction as the plain fields of a handle."""
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
    }


def _may_arrive(answer: BrokerAnswer) -> bool:
    """Whether a request may be carried out later than its answer was waited for."""
    return answer.code is None and not answer.never_sent


def _in_order(handles: Sequence[Handle], finished: Sequence[Finished]) -> list[Finished]:
    """One outcome for each handle, of which those without a transaction were left out."""
    rest = iter(finished)
    return [next(rest) if handle.transaction else _NOTHING for handle in handles]


def _is_claimed(name: str, claimed: Runs) -> bool:
    parsed = TransactionalId.parse(name)
    return parsed is not None and any(
        parsed.belongs_to(prefix, query, tokens) for (prefix, query), tokens in claimed.items()
    )


def _trace(view: Description, prefix: str, query: str) -> Trace | None:
    """What an id shows of the query; None if it is another's, or not committed."""
    parsed = TransactionalId.parse(view.transaction.transactional_id)
    if parsed is None or (parsed.prefix, parsed.query) != (prefix, query) or view.state not in COMMITTED_STATES:
        return None
    return Trace(
        token=parsed.token,
        committed=transaction_fields(fields_of(view.transaction)),
        lane=("transactional_id", view.transaction.transactional_id),
    )


def begin_of(prefix: str, query: str) -> str:
    """How the ids of a query begin under a prefix: most ids of other queries need not be parsed."""
    return f"{prefix}.{query}."


def _unlisted(answer: BrokerAnswer, phase: str = "sweep") -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"Kafka did not say which transactions there are: {answer}.",
        next_step="Check the brokers and the permission to describe the transactional ids; nothing was undone.",
        phase=phase,
    )

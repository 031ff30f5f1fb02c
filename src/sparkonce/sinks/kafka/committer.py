"""The driver half of the Kafka sink: commits and aborts transactions that writers have prepared.

Two checks run before each commit, because a broker would report success even if they failed:

`RetentionCheck` checks that the brokers still have the rows of transactions that have been open for a long time.
``retention.ms``, ``retention.bytes`` and DeleteRecords delete rows of open transactions too (tested on Kafka 4.3: three
rows, `log.retention.ms=5000`, EndTxn answers 0, no reader sees a row). A partition has lost no row of an open
transaction if it starts before its last stable offset, because no open transaction begins below that. For other
partitions, the leaders are queried for their producers (KIP-664), which needs READ on the topic.

`LeaderCheck` checks that partitions have a leader. Kafka 4.3 and 4.4 may lose the marker of a partition without one
(KAFKA-20734). Its rows, and everything written to it later, then stay hidden.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, NOTHING, Claims, HandleCommitter
from sparkonce.sinks.kafka.connection import Response
from sparkonce.sinks.kafka.outcomes import (
    COMMITTED_STATES,
    ENDED_STATES,
    INVALID_PRODUCER_ID_MAPPING,
    TRANSACTIONAL_ID_NOT_FOUND,
    BrokerAnswer,
    Description,
    KafkaTransaction,
    abort_outcome,
    before_abort,
    commit_outcome,
    confirm_forgotten,
    confirm_lost,
    is_behind,
    is_empty,
    is_undescribed,
    still_open,
    undescribed_outcome,
)
from sparkonce.sinks.kafka.preflight import BROKER_RESOURCE, SURE_AFTER_S, configs_request, read_configs, why_not_decide
from sparkonce.sinks.kafka.settings import admin_settings
from sparkonce.sinks.kafka.transaction_client import (
    LEADER_NOT_AVAILABLE,
    Partition,
    TransactionClient,
    answered,
    ask_leaders,
    last_stable_offsets,
    leaders_of,
    metadata_request,
    producers,
    start_offsets,
)

log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S = 10.0
"""The time that one call waits for brokers before it returns RETRY, in seconds."""

TRACES_ATTEMPTS = 12
"""The factor by which `list_traces` may take longer than other calls, since there may be many traces."""

_ASK_AGAIN_S = 0.25

_METADATA_VALID_S = 0.25
"""The time for which the leaders found before a decision can be used for its commit, in seconds.

The commit normally follows within milliseconds. A shorter time would repeat the request if the decision log is slow. A
longer one would miss a leader that fails.
"""

_EXPIRATION = "transactional.id.expiration.ms"

_EPOCH_BUMPED_BY_END = 2
"""The lowest level of ``transaction.version`` at which EndTxn v5 raises the epoch (KIP-890)."""

_UNKNOWN_TOPIC_OR_PARTITION = 3
_TOPIC_AUTHORIZATION_FAILED = 29

_YOUNG_MS = 60_000
"""Rows of a younger transaction need no check.

Brokers only look for rows to delete every five minutes (``log.retention.check.interval.ms``).
"""

_DAMAGED = Finished(
    outcome=Outcome.DAMAGED,
    reason="The topic's retention, or somebody, has deleted rows of it: it is aborted, and written again.",
    next_step="Raise retention.ms and retention.bytes of the topic, or give rows a newer timestamp.",
)


class KafkaCommitter(HandleCommitter[KafkaTransaction]):
    """Commits and aborts by (transactional id, producer id, epoch), from any process.

    Args:
        settings: The sink's settings, with librdkafka's names.
        name: The sink's name, for the handles that `list_lingering` creates.
        topic: The topic of all rows; None if each row names its topic.
        attempt_timeout_s: How long one call may wait for brokers, in seconds.
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
        self._described: tuple[float, Response] | None = None  # The topic's metadata, and when it was requested.

    def transaction_of(self, handle: Handle) -> KafkaTransaction | Finished:
        try:
            return transaction_of(handle)
        except KeyError:
            return FOREIGN

    def commit_all(self, wanted: Mapping[KafkaTransaction, Handle]) -> Mapping[KafkaTransaction, Finished]:
        """Commits these transactions. A repeated commit is also COMMITTED, because Kafka answers it like the first one.

        COMMITTED means that the coordinator has the decision in its log. The coordinator writes the markers that
        release readers afterward, and Kafka 4.3 and 4.4 lose the marker of a partition without a leader (KAFKA-20734),
        so the commit waits for the leader. With a single replica, a crash of its broker right after a commit can still
        leave rows hidden.
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
            index
            for index, (answer, verdict) in enumerate(zip(answers, verdicts, strict=True))
            if verdict.outcome is Outcome.LOST or answer.code == INVALID_PRODUCER_ID_MAPPING
        ]
        self._confirm(doubtful, ready, verdicts, deadline_s)
        return held | dict(zip(ready, verdicts, strict=True))

    def abort_all(self, wanted: Mapping[KafkaTransaction, Handle]) -> Mapping[KafkaTransaction, Finished]:
        """Aborts these transactions, and raises their epochs so that the writers can neither write nor commit.

        If the broker asks for a retry, the transaction is described again before the next attempt. A request without an
        answer is not repeated, because it may still arrive.
        """
        deadline_s = self._deadline_s()
        ended: dict[KafkaTransaction, Finished] = {}
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
                (
                    one,
                    replace(
                        abort_outcome(answer), in_flight=initialised and (answer.code is None and not answer.never_sent)
                    ),
                )
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
        """Lists the open transactions of these runs. Raises UnknownOutcomeError if any broker does not list its own."""
        deadline_s, claims = self._deadline_s(), Claims(owners)
        begins = [begin_of(prefix, query) for prefix, query in claims]
        names = self._client.list_transactions(["Ongoing"], begins, deadline_s=deadline_s) if begins else []
        if isinstance(names, BrokerAnswer):
            raise _unlisted(names)
        parsed = {name: TransactionalId.parse(name) for name in names}
        own = [KafkaTransaction(name, -1, -1) for name, one in parsed.items() if one is not None and claims.has(one)]
        views = self._client.describe_transactions(own, deadline_s=deadline_s) if own else []
        return [handle for view in views if (handle := self._lingering(view)) is not None]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """Lists the commits that Kafka remembers, for a week by default (``transactional.id.expiration.ms``).

        A transactional id only shows its last transaction. However, a worker never reuses the id of its latest
        transaction (see `LanePool`), so all commits of a run's last batch with rows are included.

        If the cluster answers other requests but not these in time, the traces found so far are returned, with a
        warning.
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
                "Kafka did not report everything that it remembers of this query: %s. The run starts without knowing "
                "whether its checkpoint is an old copy. Next: If it was restored, stop the query and see "
                "docs/operations.md.",
                missing,
            )
        return [trace for view in views if (trace := _trace(view, prefix, query)) is not None]

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Returns the transactions that the coordinators' logs do not show as committed.

        If a producer has no transaction, its transaction only counts as missing on brokers that record how transactions
        ended. An unknown id counts as missing if it is younger than half the time for which brokers remember idle ids;
        the other half allows for clock differences. If the user may not read that time, unknown ids do not count.

        Raises:
            UnknownOutcomeError: If a coordinator does not answer, or a broker does not report how long it remembers
                ids.
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
        """Returns True if the brokers still have the outcome of a transaction of this id's query."""
        own = TransactionalId.parse(transactional_id)
        begin = transactional_id if own is None else begin_of(own.prefix, own.query)
        names = self._client.list_transactions(sorted(ENDED_STATES), [begin], deadline_s=self._deadline_s())
        if isinstance(names, BrokerAnswer):
            raise _unlisted(names, "start")
        if not names:
            log.warning(
                "These brokers do not keep how a transaction ended, as Apache Kafka does. A cluster that returned to "
                "an older state is not detected."
            )
        return bool(names)

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """Returns when the coordinators began these transactions; None for one that is not open at its exact epoch."""
        transactions = [transaction_of(handle) for handle in handles]
        views = self._client.describe_transactions(transactions, deadline_s=self._deadline_s())
        if (unknown := next(filter(is_undescribed, views), None)) is not None:
            raise _unlisted(unknown, "decision")
        begun = {view.transaction: view.started_ms for view in still_open(transactions, views)}
        return [begun.get(one) for one in transactions]

    def before_decision(self, facts: Facts) -> str:
        """Returns why not to decide the batch: its topic is not the one that the run started with. Empty if it is.

        The commit that follows uses the partitions' leaders from the same response.
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
            log.warning("topic=%r: No broker can say whether it is still the same topic. The batch is decided.", topic)
        return objection

    def close(self) -> None:
        self._client.close()

    def _confirm(
        self, doubtful: list[int], transactions: list[KafkaTransaction], verdicts: list[Finished], deadline_s: float
    ) -> None:
        if not doubtful:
            return
        views = self._client.describe_transactions([transactions[index] for index in doubtful], deadline_s=deadline_s)
        for index, view in zip(doubtful, views, strict=True):
            confirm = confirm_lost if verdicts[index].outcome is Outcome.LOST else confirm_forgotten
            verdicts[index] = confirm(verdicts[index], transactions[index], view)

    def _end_and_fence(
        self, timeouts_ms: Mapping[KafkaTransaction, int], deadline_s: float
    ) -> tuple[dict[KafkaTransaction, BrokerAnswer], bool]:
        """Aborts these transactions. Returns the answers, and True if ids were initialized to do so.

        An initialization ends the open transaction even if the request arrives late.
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
        """Returns how long every broker remembers an idle id; 0 if this user may not read that setting."""
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
            configured = read_configs(response).get(_EXPIRATION)
            times_ms.append(0 if configured is None else int(configured))
        return min(times_ms, default=0)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._attempt_timeout_s


def transaction_of(handle: Handle) -> KafkaTransaction:
    """Returns the transaction that a handle of the Kafka sink refers to; raises KeyError for another sink's handle."""
    return KafkaTransaction(str(handle["transactional_id"]), int(handle["producer_id"]), int(handle["epoch"]))


def fields_of(transaction: KafkaTransaction) -> dict[str, str | int]:
    """Returns a transaction as the plain fields of a handle."""
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
    }


def _trace(view: Description, prefix: str, query: str) -> Trace | None:
    """Returns the commit of this query that an id shows; None if the id is another query's or shows no commit."""
    parsed = TransactionalId.parse(view.transaction.transactional_id)
    if parsed is None or (parsed.prefix, parsed.query) != (prefix, query) or view.state not in COMMITTED_STATES:
        return None
    return Trace(
        token=parsed.token,
        committed=transaction_fields(fields_of(view.transaction)),
        lane=("transactional_id", view.transaction.transactional_id),
    )


def begin_of(prefix: str, query: str) -> str:
    """Returns the prefix of a query's ids, which lets brokers filter out most ids of other queries."""
    return f"{prefix}.{query}."


def _unlisted(answer: BrokerAnswer, phase: str = "sweep") -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"Kafka did not report which transactions there are: {answer}.",
        next_step="Check the brokers and the permission to describe the transactional ids; nothing was undone.",
        phase=phase,
    )


@dataclass
class RetentionCheck:
    """Finds transactions whose rows the brokers may have deleted, by querying the leaders of their partitions."""

    client: TransactionClient
    _warned: set[str] = field(default_factory=set)
    _damaged: set[KafkaTransaction] = field(default_factory=set)
    _has_checked: bool = False

    def held_back(
        self, begun_ms: Mapping[KafkaTransaction, int], deadline_s: float
    ) -> dict[KafkaTransaction, Finished]:
        """Returns the transactions that must not be committed now, because their rows are gone or may be gone.

        Checks transactions that were damaged before, and those that are older than a minute by their executors' clocks.
        Because clocks may be wrong, also checks all transactions of a run's first batch, but a leader that does not
        answer does not delay young transactions. A transaction that is not open has already been committed or lost.

        Args:
            begun_ms: When each transaction began, in milliseconds since the epoch by its executor's clock.
            deadline_s: When to stop waiting, by `time.monotonic`.
        """
        old = {one for one, began in begun_ms.items() if _may_be_old(began) or one in self._damaged}
        checked = [one for one in begun_ms if one in old or not self._has_checked]
        if not checked:
            return {}
        views = self.client.describe_transactions(checked, deadline_s=deadline_s)
        held = {
            one: undescribed_outcome(view) for one, view in zip(checked, views, strict=True) if is_undescribed(view)
        }
        is_open = still_open(checked, views)
        damaged, unknown = self.find_damaged(is_open, deadline_s)
        if time.monotonic() >= deadline_s:
            unknown = {
                partition: BrokerAnswer(None, "it took too long") for view in is_open for partition in view.partitions
            }
        for view in is_open:
            answer = next((unknown[partition] for partition in view.partitions if partition in unknown), None)
            if answer is not None and view.transaction in old:
                reason = f"Kafka did not report whether it still has all rows: {answer}."
                held[view.transaction] = Finished(outcome=Outcome.RETRY, reason=reason)
        self._has_checked |= not unknown
        self._damaged = damaged
        suspects = list(damaged)
        # If the transaction is still open after its rows were found missing, no reader has read them.
        views = self.client.describe_transactions(suspects, deadline_s=deadline_s) if suspects else []
        held |= {
            one: undescribed_outcome(view) for one, view in zip(suspects, views, strict=True) if is_undescribed(view)
        }
        return held | {view.transaction: _DAMAGED for view in still_open(suspects, views)}

    def find_damaged(
        self, views: Sequence[Description], deadline_s: float
    ) -> tuple[set[KafkaTransaction], Mapping[Partition, BrokerAnswer]]:
        """Returns the open transactions whose rows are gone, and the partitions whose leaders did not answer.

        A partition counts as intact if it no longer exists or, with a warning, if this user may not query it.
        """
        unknown: dict[Partition, BrokerAnswer] = {}
        leaders = self._known(
            self._leaders({partition for view in views for partition in view.partitions}, deadline_s), unknown
        )
        # Query the last stable offsets first: if rows are deleted between the two requests, the partition is then
        # treated as suspect and examined.
        (ends,) = ask_leaders(self.client, leaders, last_stable_offsets, deadline_s=deadline_s)
        (starts,) = ask_leaders(self.client, leaders, start_offsets, deadline_s=deadline_s)
        stable, first = self._known(ends, unknown), self._known(starts, unknown)
        offsets = {
            partition: (first[partition].offset, stable[partition].offset) for partition in first.keys() & stable.keys()
        }
        doubtful = {
            partition: leaders[partition] for partition, (start, end) in offsets.items() if start and start >= end
        }
        (writing,) = ask_leaders(self.client, doubtful, producers, deadline_s=deadline_s)
        begins = {
            at: {(one.producer_id, one.producer_epoch): one.current_txn_start_offset for one in told.active_producers}
            for at, told in self._known(writing, unknown).items()
        }
        damaged = {
            view.transaction
            for view in views
            for partition in begins.keys() & set(view.partitions)
            if begins[partition].get((view.transaction.producer_id, view.transaction.epoch), -1) < offsets[partition][0]
        }
        return damaged, unknown

    def _leaders(self, partitions: set[Partition], deadline_s: float) -> Mapping[Partition, int | BrokerAnswer]:
        if not partitions:
            return {}
        metadata = self.client.request(
            metadata_request(*sorted({name for name, _ in partitions})), deadline_s=deadline_s
        )
        if isinstance(metadata, BrokerAnswer):
            return dict.fromkeys(partitions, metadata)
        return {partition: leader for partition, leader in leaders_of(metadata).items() if partition in partitions}

    def _known(self, replies: Mapping[Partition, Any], unknown: dict[Partition, BrokerAnswer]) -> dict[Partition, Any]:
        """Returns the replies that have a result. Adds partitions that must be queried again to ``unknown``."""
        for partition, reply in replies.items():
            if not isinstance(reply, BrokerAnswer):
                continue
            if reply.code == _TOPIC_AUTHORIZATION_FAILED:
                self._warn(partition[0])
            elif reply.code != _UNKNOWN_TOPIC_OR_PARTITION:
                unknown[partition] = reply
        return answered(replies)

    def _warn(self, topic: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning(
                "Rows of long transactions on topic %r may have been deleted by its retention, and Kafka does not let "
                "this user check. The transactions are committed anyway. Next: Grant READ on the topic.",
                topic,
            )


def _may_be_old(began_ms: int) -> bool:
    """Returns True if a transaction is older than a minute, or its clock is ahead by more than that."""
    # Tolerate a clock that is up to a minute ahead. Otherwise, a driver whose own clock is slightly slow would check
    # every batch.
    return abs(time.time_ns() // 1_000_000 - began_ms) >= _YOUNG_MS


@dataclass(frozen=True, slots=True)
class LeaderCheck:
    """Finds partitions without a leader, with one request per commit, or none if the topic was described just before.

    If rows name their topics, a second request describes the transactions.
    """

    client: TransactionClient
    topic: str | None

    def held_back(
        self, wanted: Sequence[KafkaTransaction], deadline_s: float, known: Response | None = None
    ) -> dict[KafkaTransaction, Finished]:
        """Returns the transactions that must not be committed now: they have written to a partition without a leader.

        If the cluster does not answer, no transaction is held back, since the commit will not be answered either.

        Args:
            wanted: The transactions to commit.
            deadline_s: When to stop waiting, by `time.monotonic`.
            known: The metadata of the topic of all rows, if it was fetched a moment ago.
        """
        views: Sequence[Description | BrokerAnswer] = ()
        topics = [] if self.topic is None else [self.topic]
        if not topics:
            views = self.client.describe_transactions(wanted, deadline_s=deadline_s)
            topics = sorted({topic for view in still_open(wanted, views) for topic, _ in view.partitions})
        if not (wanted and topics):
            return {}
        metadata = known or self.client.request(metadata_request(*topics), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            return {}
        leaders = leaders_of(metadata).items()
        alone = {partition: told for partition, told in leaders if getattr(told, "code", None) == LEADER_NOT_AVAILABLE}
        if not alone:
            return {}
        if not views:
            views = self.client.describe_transactions(wanted, deadline_s=deadline_s)
        held = {one: undescribed_outcome(view) for one, view in zip(wanted, views, strict=True) if is_undescribed(view)}
        for view in still_open(wanted, views):
            if without := sorted(alone.keys() & set(view.partitions)):
                reason = (
                    f"It is committed once every partition that it has written to has a leader: {alone[without[0]]}."
                )
                held[view.transaction] = Finished(outcome=Outcome.RETRY, reason=reason)
        return held

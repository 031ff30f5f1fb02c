"""Maps Kafka's answers to outcomes, each with one sentence. Commits and aborts have separate tables.

An answer that is not listed is UNKNOWN. The meanings follow Kafka's ``TransactionCoordinator.endTransaction`` and
``prepareInitProducerIdTransit``, and were tested against Kafka 4.3:

- The coordinator compares first the producer id, then the epoch, then the state. A fenced answer therefore means that
  another producer has used the id since then. INVALID_TXN_STATE means that none has, and that the transaction is not
  open.
- If the coordinator fails while it appends to its own log, it returns COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR. The
  append may still have succeeded, which a retry shows. The outcome is therefore RETRY, not UNKNOWN.

LOST makes the caller write rows again, so the table alone does not decide it: `confirm_lost` compares it with the
coordinator's own description of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kafka.errors import for_code

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning

NONE = 0
INVALID_PRODUCER_ID_MAPPING = 49
TRANSACTIONAL_ID_NOT_FOUND = 105

LAST_EPOCH = 32_766
"""The last epoch of a producer id. After it comes epoch 0 of a new id (Kafka's ``isProducerEpochExhausted``)."""

MOVED = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR, after which the coordinator is looked up again."""

_OLDER = "That is older than the transaction: the broker may have lost a part of its own log."

COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})
"""The states of a transaction whose commit is in the coordinator's log."""

ENDED_STATES = frozenset({"CompleteCommit", "CompleteAbort"})

_ABORTED_STATES = frozenset({"PrepareEpochFence", "PrepareAbort", "CompleteAbort"})


@dataclass(frozen=True, slots=True)
class KafkaTransaction:
    """A transaction, as stored in a handle of the Kafka sink. Producer id and epoch together identify it."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """A broker's reply to one request.

    Attributes:
        code: Kafka's error code, 0 for none; None if there was no reply.
        reason: Why there was no reply, or the broker's own message.
        never_sent: True if the request certainly never left this machine and therefore cannot arrive later.
    """

    code: int | None
    reason: str = ""
    never_sent: bool = False

    def __str__(self) -> str:
        if self.code is None:
            return self.reason
        name = for_code(self.code).message
        known = name if name != "UNKNOWN" else f"error code {self.code}"
        return f"{known}: {self.reason}" if self.reason else known


@dataclass(frozen=True, slots=True)
class Description:
    """The coordinator's view of a transactional id (KIP-664, DescribeTransactions).

    Attributes:
        transaction: The id with the producer id and epoch that currently own it.
        state: ``Empty``, ``Ongoing``, ``PrepareCommit``, ``PrepareAbort``, ``CompleteCommit`` or ``CompleteAbort``.
        timeout_ms: The transaction timeout that its producer requested.
        started_ms: When the open transaction, or otherwise the last one, began, by the broker's clock; -1 if there was
            none since the id was last initialized.
        partitions: Topic and partition of everything that the open transaction has written to.
        coordinator: The id of the broker that describes it; -1 if it was not recorded.
    """

    transaction: KafkaTransaction
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[tuple[str, int], ...] = ()
    coordinator: int = -1


_GRANT = "Nothing is lost yet: grant the permission before the transaction times out."
_TIMED_OUT = "The broker timed the transaction out, or a newer producer fenced it."
_GONE = "It was already gone."

_RETRIABLE: Mapping[int, Meaning] = {
    7: Meaning(Outcome.RETRY, "The coordinator's log did not accept it in time, or accepted it late."),
    14: Meaning(Outcome.RETRY, "The coordinator is still reading its log."),
    15: Meaning(Outcome.RETRY, "No coordinator now, or its log lacks replicas."),
    16: Meaning(Outcome.RETRY, "The coordinator has moved to another broker."),
    51: Meaning(Outcome.RETRY, "The broker is still ending the transaction."),
}
_UNDESCRIBED: ErrorTable[int] = ErrorTable(
    {
        **_RETRIABLE,
        -1: Meaning(Outcome.UNKNOWN, "The broker failed; its own log says why."),
        31: Meaning(Outcome.UNKNOWN, _GRANT),
        53: Meaning(Outcome.UNKNOWN, f"{_GRANT} It is WRITE on the transactional ids, by their prefix."),
    }
)
_COMMIT: ErrorTable[int] = ErrorTable(
    {
        **_UNDESCRIBED.by_code,
        NONE: Meaning(Outcome.COMMITTED),
        47: Meaning(Outcome.LOST, _TIMED_OUT),
        48: Meaning(Outcome.LOST, "The transaction was aborted."),
        INVALID_PRODUCER_ID_MAPPING: Meaning(
            Outcome.UNKNOWN,
            "The broker has forgotten the transactional id (after transactional.id.expiration.ms, 7 days by default) "
            "or never knew it, and cannot tell whether this transaction was committed, now or later: look its rows up "
            "in the topic, as docs/operations.md says.",
        ),
        90: Meaning(Outcome.LOST, _TIMED_OUT),
    }
)
_ABORT: ErrorTable[int] = ErrorTable(
    {
        **_UNDESCRIBED.by_code,
        NONE: Meaning(Outcome.ABORTED),
        47: Meaning(Outcome.ABORTED, _GONE),
        # The coordinator has just reported the transaction as open, so it has ended since. The next request shows how.
        48: Meaning(Outcome.RETRY, "The transaction has just ended."),
        INVALID_PRODUCER_ID_MAPPING: Meaning(Outcome.RETRY, "The transactional id has just changed hands."),
        90: Meaning(Outcome.ABORTED, _GONE),
    }
)


def is_retriable(answer: BrokerAnswer) -> bool:
    """Returns True if the broker asks for a retry."""
    return answer.code in _RETRIABLE


def is_unanswered(answer: BrokerAnswer) -> bool:
    """Returns True if the outcome is still unknown: there was no reply, or only one that asks for a retry."""
    return answer.code is None or is_retriable(answer)


def commit_outcome(answer: BrokerAnswer) -> Finished:
    """Returns the outcome of a commit. LOST still has to pass `confirm_lost`.

    Kafka answers a repeated commit like the first one, so COMMITTED stands for both.
    """
    return _read(_COMMIT, answer)


def abort_outcome(answer: BrokerAnswer) -> Finished:
    """Returns the outcome of an abort that was sent because `before_abort` returned None."""
    return _read(_ABORT, answer)


def undescribed_outcome(answer: BrokerAnswer) -> Finished:
    """Returns the outcome for a transaction that its coordinator does not describe."""
    return _read(_UNDESCRIBED, answer)


def is_undescribed(view: Description | BrokerAnswer) -> TypeGuard[BrokerAnswer]:
    """Returns True if the coordinator returned an error, other than that the id is unknown."""
    return isinstance(view, BrokerAnswer) and view.code != TRANSACTIONAL_ID_NOT_FOUND


def still_open(asked: Sequence[KafkaTransaction], views: Sequence[Description | BrokerAnswer]) -> list[Description]:
    """Returns the views of the transactions that are open at exactly the requested epoch."""
    return [
        view
        for one, view in zip(asked, views, strict=True)
        if isinstance(view, Description) and (view.state, view.transaction) == ("Ongoing", one)
    ]


def _read(table: ErrorTable[int], answer: BrokerAnswer) -> Finished:
    if answer.code is None:
        return Finished(outcome=Outcome.RETRY, reason=f"No answer: {answer.reason}")
    if answer.code == NONE:
        return Finished(outcome=table.meaning(NONE).outcome)
    return table.finished(answer.code, answer.reason, shown=str(answer))


def confirm_forgotten(verdict: Finished, transaction: KafkaTransaction, now: Description | BrokerAnswer) -> Finished:
    """Finds out why a producer id is unknown: the broker forgot it, or aborted the transaction at the id's last epoch.

    From transaction version 2 on, aborting an open transaction leaves its id in the state CompleteAbort at the next
    epoch. The next epoch after the last one is epoch 0 of a new producer id. A commit does not change the id, and an
    initialization after a commit leaves a different state.
    """
    if isinstance(now, BrokerAnswer):
        return verdict
    owner = now.transaction
    is_next = transaction.epoch == LAST_EPOCH and owner.epoch == 0 and owner.producer_id != transaction.producer_id
    # An abort of the id's next transaction could look the same, but there is no such transaction yet: a worker reuses
    # an id only in the batch after next (see `LanePool`), and by then this transaction is finished.
    if is_next and now.state == "CompleteAbort":
        reason = f"INVALID_PRODUCER_ID_MAPPING: aborted at the producer id's last epoch. {_view(now)}"
        return Finished(outcome=Outcome.LOST, reason=reason)
    return Finished(outcome=verdict.outcome, reason=f"{verdict.reason} {_view(now)}")


def confirm_lost(verdict: Finished, transaction: KafkaTransaction, now: Description | BrokerAnswer) -> Finished:
    """Compares a LOST verdict with the coordinator's description, which can only weaken it.

    With transaction version 2, a commit raises the epoch of its own producer. A second commit may then be answered as
    fenced although the first one was applied.
    """
    if isinstance(now, BrokerAnswer):
        if now.code == TRANSACTIONAL_ID_NOT_FOUND:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{verdict.reason} The broker then forgot the id.")
        unsure = undescribed_outcome(now)
        return Finished(outcome=unsure.outcome, reason=f"{verdict.reason} Not confirmed: {unsure.reason}")
    reason = f"{verdict.reason} {_view(now)}"
    owner = now.transaction
    if owner == transaction and now.state in COMMITTED_STATES:
        return Finished(outcome=Outcome.ALREADY_COMMITTED, reason=reason)
    if owner == transaction and now.state == "Ongoing":
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} Somebody is writing to it again.")
    if (owner == transaction and now.state == "Empty") or _is_older(owner, transaction):
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} {_OLDER}")
    own_next = KafkaTransaction(transaction.transactional_id, transaction.producer_id, transaction.epoch + 1)
    # Aborting an open transaction raises the epoch by one and leaves the state CompleteAbort; initializing the producer
    # after that raises the epoch once more. So if the next epoch is in any other state, the transaction had already
    # ended, perhaps with a commit.
    if owner == own_next and now.state not in _ABORTED_STATES:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} That commit may have been this transaction's.")
    return Finished(outcome=Outcome.LOST, reason=reason)


def is_behind(transaction: KafkaTransaction, now: Description | BrokerAnswer) -> bool:
    """Returns True if the coordinator's log ends before the commit of a transaction that was committed.

    Returns False for a description for which `is_empty` is True, because some brokers also return such a description
    after a commit.
    """
    if isinstance(now, BrokerAnswer):
        # The coordinator forgets ids that have been idle for a long time, so an unknown id does not mean that the log
        # is behind.
        return False
    return _is_older(now.transaction, transaction) or (
        now.transaction == transaction and now.state in {"Ongoing", *_ABORTED_STATES}
    )


def is_empty(transaction: KafkaTransaction, now: Description | BrokerAnswer) -> bool:
    """Returns True if the coordinator knows the transaction's producer, but shows no transaction of that producer.

    Apache Kafka shows how the last transaction ended (CompleteCommit or CompleteAbort), so True means there that the
    coordinator's log ends before the transaction. Redpanda before 24.2 and franz-go's kfake show every ended
    transaction as Empty.
    """
    return isinstance(now, Description) and now.transaction == transaction and now.state == "Empty"


def before_abort(transaction: KafkaTransaction, now: Description | BrokerAnswer) -> Finished | None:
    """Returns the outcome if it is known before an abort is sent; None if the abort has to be sent.

    An abort that raises the epoch (KIP-890) also succeeds on a committed transaction, where it has no other effect, so
    the answer to the abort does not show whether the transaction was committed.
    """
    if isinstance(now, BrokerAnswer):
        if now.code == TRANSACTIONAL_ID_NOT_FOUND:
            return Finished(outcome=Outcome.ABORTED, reason="The broker does not know the id: nothing is open.")
        return undescribed_outcome(now)
    owner = now.transaction
    if owner == transaction:
        if now.state in COMMITTED_STATES:
            return Finished(outcome=Outcome.ALREADY_COMMITTED, reason=_view(now))
        return None
    if _is_older(owner, transaction):
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{_view(now)} {_OLDER}")
    return Finished(outcome=Outcome.ABORTED, reason=f"{_GONE} {_view(now)}")


def _is_older(owner: KafkaTransaction, transaction: KafkaTransaction) -> bool:
    return owner.producer_id == transaction.producer_id and owner.epoch < transaction.epoch


def _view(now: Description) -> str:
    owner = now.transaction
    return f"The broker has the id in state {now.state} at producer id {owner.producer_id}, epoch {owner.epoch}."

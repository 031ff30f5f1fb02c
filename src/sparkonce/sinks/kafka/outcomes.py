"""What Kafka's answers mean: one table for commit, one for abort. What is not listed is UNKNOWN.

Where each answer of the broker comes from (Kafka's ``TransactionCoordinator.endTransaction`` and
``prepareInitProducerIdTransit``, tried against Kafka 4.3):

- The coordinator compares producer id, then epoch, then state. So a fenced answer says that somebody else has gone
  on with the id, and INVALID_TXN_STATE that nobody has, but that the transaction is not there to be ended.
- Errors while the coordinator appends to its own log come back as COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR, and
  then the append may stand all the same. Asking again tells: hence RETRY, not UNKNOWN.

LOST makes the caller write rows again, so the table's word is not enough for it: `confirm_lost` holds it against the
coordinator's own description of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kafka.errors import for_code

from sparkonce.protocol.outcomes import Finished, Outcome

NONE = 0
INVALID_PRODUCER_ID_MAPPING = 49
TRANSACTIONAL_ID_NOT_FOUND = 105

LAST_EPOCH = 32_766
"""After which a producer id is used up: the next epoch is 0, of a new one (Kafka's ``isProducerEpochExhausted``)."""

MOVED = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the coordinator has to be looked up again."""

_OLDER = "That is older than the transaction: the broker may have lost a part of its own log."

COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})
"""The coordinator has the decision to commit in its log."""

_ABORTED_STATES = frozenset({"PrepareEpochFence", "PrepareAbort", "CompleteAbort"})


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a handle of the Kafka sink holds.

    Attributes:
        transactional_id: The id that the writer initialised.
        producer_id: What the initialisation gave, with `epoch` unique to one transaction.
        epoch: The producer's epoch, 0 to 32767.
    """

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """A broker's reply to one request.

    Attributes:
        code: Kafka's error code, 0 for none; None if no reply came.
        reason: Why no reply came, or the broker's own message.
        never_sent: Whether the request surely never left this machine, so that it cannot arrive later.
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
        transaction: The id with the producer id and epoch that own it now.
        state: ``Empty``, ``Ongoing``, ``PrepareCommit``, ``PrepareAbort``, ``CompleteCommit`` or ``CompleteAbort``.
        timeout_ms: The transaction timeout its producer asked for.
        started_ms: When the open or else the last transaction began, by the broker's clock; -1 if there was none since
            the id was last initialised.
        partitions: Topic and partition of all that the open transaction has written to.
    """

    transaction: Transaction
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Meaning:
    name: str
    outcome: Outcome
    sentence: str


_GRANT = "Nothing is lost yet: grant the permission before the transaction times out."

_RETRIABLE: Mapping[int, _Meaning] = {
    7: _Meaning("REQUEST_TIMED_OUT", Outcome.RETRY, "The coordinator's log did not take it in time, or took it late."),
    14: _Meaning("COORDINATOR_LOAD_IN_PROGRESS", Outcome.RETRY, "The coordinator is still reading its log."),
    15: _Meaning("COORDINATOR_NOT_AVAILABLE", Outcome.RETRY, "No coordinator now, or its log lacks replicas."),
    16: _Meaning("NOT_COORDINATOR", Outcome.RETRY, "The coordinator has moved to another broker."),
    51: _Meaning("CONCURRENT_TRANSACTIONS", Outcome.RETRY, "The broker is still ending the transaction."),
}
_REFUSED: Mapping[int, _Meaning] = {
    -1: _Meaning("UNKNOWN_SERVER_ERROR", Outcome.UNKNOWN, "The broker failed; its own log says why."),
    31: _Meaning(
        "CLUSTER_AUTHORIZATION_FAILED",
        Outcome.UNKNOWN,
        _GRANT,
    ),
    53: _Meaning(
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        Outcome.UNKNOWN,
        f"{_GRANT} It is WRITE on the transactional ids, by their prefix.",
    ),
}
_COMMIT: Mapping[int, _Meaning] = {
    NONE: _Meaning("NONE", Outcome.COMMITTED, ""),
    **_RETRIABLE,
    **_REFUSED,
    47: _Meaning(
        "INVALID_PRODUCER_EPOCH", Outcome.LOST, "The broker timed the transaction out, or a newer producer fenced it."
    ),
    48: _Meaning("INVALID_TXN_STATE", Outcome.LOST, "The transaction was aborted."),
    INVALID_PRODUCER_ID_MAPPING: _Meaning(
        "INVALID_PRODUCER_ID_MAPPING",
        Outcome.UNKNOWN,
        "The broker has forgotten the transactional id (after transactional.id.expiration.ms, 7 days by default) or "
        "never knew it, and cannot tell whether this transaction was committed, now or later: look its rows up in the "
        "topic, as docs/operations.md says.",
    ),
    90: _Meaning(
        "PRODUCER_FENCED", Outcome.LOST, "The broker timed the transaction out, or a newer producer fenced it."
    ),
}
_ABORT: Mapping[int, _Meaning] = {
    NONE: _Meaning("NONE", Outcome.ABORTED, ""),
    **_RETRIABLE,
    **_REFUSED,
    47: _Meaning("INVALID_PRODUCER_EPOCH", Outcome.ABORTED, "It was gone already."),
    # Described as open a moment ago, so it has just ended: describing it again tells how.
    48: _Meaning("INVALID_TXN_STATE", Outcome.RETRY, "The transaction has just ended."),
    INVALID_PRODUCER_ID_MAPPING: _Meaning(
        "INVALID_PRODUCER_ID_MAPPING", Outcome.RETRY, "The transactional id has just changed hands."
    ),
    90: _Meaning("PRODUCER_FENCED", Outcome.ABORTED, "It was gone already."),
}


def is_retriable(answer: BrokerAnswer) -> bool:
    """Whether the broker asks to be asked again."""
    return answer.code in _RETRIABLE


def is_unanswered(answer: BrokerAnswer) -> bool:
    """Whether nothing is known yet: no reply, or one that asks to be asked again."""
    return answer.code is None or is_retriable(answer)


def commit_outcome(answer: BrokerAnswer) -> Finished:
    """What an answer to a commit says. LOST is still to be confirmed by `confirm_lost`.

    Kafka answers the second commit of a transaction like the first, so COMMITTED stands for both.
    """
    return _read(_COMMIT, answer)


def abort_outcome(answer: BrokerAnswer) -> Finished:
    """What an answer to an abort says, for a transaction that `before_abort` let through."""
    return _read(_ABORT, answer)


def is_undescribed(view: Description | BrokerAnswer) -> TypeGuard[BrokerAnswer]:
    """Whether the coordinator said neither what became of a transaction nor that it does not know the id."""
    return isinstance(view, BrokerAnswer) and view.code != TRANSACTIONAL_ID_NOT_FOUND


def still_open(asked: Sequence[Transaction], views: Sequence[Description | BrokerAnswer]) -> list[Description]:
    """Returns the views of those that are open at exactly the epoch that was asked for."""
    return [
        view
        for one, view in zip(asked, views, strict=True)
        if isinstance(view, Description) and (view.state, view.transaction) == ("Ongoing", one)
    ]


def undescribed_outcome(answer: BrokerAnswer) -> Finished:
    """What it means for a transaction that its coordinator does not describe it."""
    return _read({**_RETRIABLE, **_REFUSED}, answer)


def _read(table: Mapping[int, _Meaning], answer: BrokerAnswer) -> Finished:
    if answer.code is None:
        return Finished(outcome=Outcome.RETRY, reason=f"No answer: {answer.reason}")
    meaning = table.get(answer.code)
    if meaning is None:
        reason = f"Error code {answer.code}: no answer this request is known to get. {answer.reason}".rstrip()
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)
    if answer.code == NONE:
        return Finished(outcome=meaning.outcome)
    return Finished(outcome=meaning.outcome, reason=f"{meaning.name}: {meaning.sentence}")


def confirm_forgotten(verdict: Finished, transaction: Transaction, now: Description | BrokerAnswer) -> Finished:
    """Tells what the broker has forgotten from what was aborted at the last epoch of a producer id.

    From transaction version 2 on, an abort of an open transaction leaves its id at the next epoch as CompleteAbort, and
    after the last epoch that is 0 of a new producer id. A commit leaves it where it is, and what initialises it next is
    in another state. After that, an abort of the id's next transaction could look the same; but no worker takes an id
    again before the batch after its own is decided (see `LanePool`), and then this one is finished.
    """
    if isinstance(now, BrokerAnswer):
        return verdict
    owner = now.transaction
    is_next = transaction.epoch == LAST_EPOCH and owner.epoch == 0 and owner.producer_id != transaction.producer_id
    if is_next and now.state == "CompleteAbort":
        reason = f"INVALID_PRODUCER_ID_MAPPING: aborted at the producer id's last epoch. {_view(now)}"
        return Finished(outcome=Outcome.LOST, reason=reason)
    return Finished(outcome=verdict.outcome, reason=f"{verdict.reason} {_view(now)}")


def confirm_lost(verdict: Finished, transaction: Transaction, now: Description | BrokerAnswer) -> Finished:
    """Holds a LOST verdict against the coordinator's description, which may only make it weaker.

    A producer that speaks transaction version 2 has its epoch raised by its own commit, and then a second commit may
    be called fenced although the first one was applied.
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
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} Somebody writes to it again.")
    if owner == transaction and now.state == "Empty":
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} {_OLDER}")
    if _is_older(owner, transaction):
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} {_OLDER}")
    own_next = Transaction(transaction.transactional_id, transaction.producer_id, transaction.epoch + 1)
    # An abort of an open transaction ends at the next epoch as CompleteAbort, and an initialisation after it one
    # further on: the next epoch in any other state follows a transaction that had ended, perhaps by a commit.
    if owner == own_next and now.state not in _ABORTED_STATES:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{reason} That commit may have been this transaction's.")
    return Finished(outcome=Outcome.LOST, reason=reason)


def is_behind(transaction: Transaction, now: Description | BrokerAnswer) -> bool:
    """Whether the coordinator's log ends before the commit of a transaction that was committed.

    Of an id that it does not know nothing is said: it forgets those that were idle for long.
    """
    if isinstance(now, BrokerAnswer):
        return False
    return _is_older(now.transaction, transaction) or (
        now.transaction == transaction and now.state in {"Empty", "Ongoing", *_ABORTED_STATES}
    )


def before_abort(transaction: Transaction, now: Description | BrokerAnswer) -> Finished | None:
    """What is known before an abort is sent; None if it has to be sent.

    An abort that bumps the epoch succeeds on a transaction that is committed already (KIP-890: there it just bumps),
    so its answer alone cannot tell.
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
    return Finished(outcome=Outcome.ABORTED, reason=f"It was gone already. {_view(now)}")


def _is_older(owner: Transaction, transaction: Transaction) -> bool:
    return owner.producer_id == transaction.producer_id and owner.epoch < transaction.epoch


def _view(now: Description) -> str:
    owner = now.transaction
    return f"The broker has the id in state {now.state} at producer id {owner.producer_id}, epoch {owner.epoch}."

from __future__ import annotations

import pytest

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.kafka.outcomes import (
    INVALID_PRODUCER_ID_MAPPING,
    LAST_EPOCH,
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
    is_retriable,
)

OURS = KafkaTransaction("id", 7, 3)
NEXT = KafkaTransaction("id", 7, 4)
LOST = Finished(outcome=Outcome.LOST, reason="PRODUCER_FENCED: gone.")


def now(state: str, owner: KafkaTransaction = OURS) -> Description:
    return Description(transaction=owner, state=state, timeout_ms=60_000, started_ms=-1)


CODES = range(-2, 150)
"""Kafka's error codes, and some unassigned ones."""


def test_every_code_has_one_outcome_and_what_is_not_listed_is_unknown():
    patience = (7, 14, 15, 16, 51)
    abort = {
        0: Outcome.ABORTED,
        **dict.fromkeys((*patience, 48, 49), Outcome.RETRY),
        **dict.fromkeys((47, 90), Outcome.ABORTED),
        **dict.fromkeys((-1, 31, 53), Outcome.UNKNOWN),
    }
    commit = {
        0: Outcome.COMMITTED,
        **dict.fromkeys(patience, Outcome.RETRY),
        **dict.fromkeys((47, 48, 90), Outcome.LOST),
        **dict.fromkeys((-1, 31, 49, 53), Outcome.UNKNOWN),
    }
    said = {
        code: (
            commit_outcome(BrokerAnswer(code)).outcome,
            abort_outcome(BrokerAnswer(code)).outcome,
            is_retriable(BrokerAnswer(code)),
        )
        for code in CODES
    }
    assert said == {
        code: (commit.get(code, Outcome.UNKNOWN), abort.get(code, Outcome.UNKNOWN), code in patience) for code in CODES
    }


@pytest.mark.parametrize(
    ("view", "outcome"),
    [
        (now("CompleteAbort"), Outcome.LOST),
        (now("PrepareAbort"), Outcome.LOST),
        (now("Empty"), Outcome.UNKNOWN),
        (now("CompleteAbort", NEXT), Outcome.LOST),
        # InitProducerId on an open transaction raises the epoch by two, so this transaction had already ended.
        (now("Empty", NEXT), Outcome.UNKNOWN),
        (now("Ongoing", NEXT), Outcome.UNKNOWN),
        (now("CompleteCommit", KafkaTransaction("id", 7, 5)), Outcome.LOST),
        (now("CompleteCommit", KafkaTransaction("id", 8, 4)), Outcome.LOST),
        # The coordinator reports the opposite.
        (now("CompleteCommit"), Outcome.ALREADY_COMMITTED),
        (now("PrepareCommit"), Outcome.ALREADY_COMMITTED),
        # It may have been this transaction's commit that raised the epoch.
        (now("CompleteCommit", NEXT), Outcome.UNKNOWN),
        (now("PrepareCommit", NEXT), Outcome.UNKNOWN),
        # States that a healthy broker and writer cannot reach.
        (now("Ongoing"), Outcome.UNKNOWN),
        (now("CompleteAbort", KafkaTransaction("id", 7, 2)), Outcome.UNKNOWN),
        (BrokerAnswer(TRANSACTIONAL_ID_NOT_FOUND), Outcome.UNKNOWN),
        (BrokerAnswer(53), Outcome.UNKNOWN),
        (BrokerAnswer(999), Outcome.UNKNOWN),
        (BrokerAnswer(15), Outcome.RETRY),
        (BrokerAnswer(None, "no route"), Outcome.RETRY),
    ],
)
def test_lost_is_confirmed_or_weakened(view, outcome):
    finished = confirm_lost(LOST, OURS, view)
    assert finished.outcome is outcome
    assert finished.reason.startswith(LOST.reason)


@pytest.mark.parametrize(
    ("view", "outcome"),
    [
        (now("CompleteAbort", KafkaTransaction("id", 8, 0)), Outcome.LOST),
        # Initialized again, whatever happened to it before.
        (now("PrepareAbort", KafkaTransaction("id", 8, 0)), Outcome.UNKNOWN),
        (now("Empty", KafkaTransaction("id", 8, 0)), Outcome.UNKNOWN),
        (now("Ongoing", KafkaTransaction("id", 8, 0)), Outcome.UNKNOWN),
        (now("CompleteCommit", KafkaTransaction("id", 8, 0)), Outcome.UNKNOWN),
        (now("CompleteAbort", KafkaTransaction("id", 8, 1)), Outcome.UNKNOWN),
        (now("CompleteAbort", KafkaTransaction("id", 7, 0)), Outcome.UNKNOWN),
        (BrokerAnswer(TRANSACTIONAL_ID_NOT_FOUND), Outcome.UNKNOWN),
        (BrokerAnswer(None, "no route"), Outcome.UNKNOWN),
    ],
)
def test_what_was_aborted_at_the_last_epoch_is_not_called_forgotten(view, outcome):
    forgotten = commit_outcome(BrokerAnswer(INVALID_PRODUCER_ID_MAPPING))
    finished = confirm_forgotten(forgotten, KafkaTransaction("id", 7, LAST_EPOCH), view)
    assert finished.outcome is outcome
    assert ("look its rows up" in finished.reason) == (outcome is Outcome.UNKNOWN)
    assert confirm_forgotten(forgotten, OURS, view).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("view", "outcome"),
    [
        (now("Ongoing"), None),
        (now("Empty"), None),
        (now("CompleteAbort"), None),
        (now("PrepareAbort"), None),
        (now("CompleteCommit"), Outcome.ALREADY_COMMITTED),
        (now("PrepareCommit"), Outcome.ALREADY_COMMITTED),
        (now("Ongoing", NEXT), Outcome.ABORTED),
        (now("CompleteAbort", NEXT), Outcome.ABORTED),
        (now("Ongoing", KafkaTransaction("id", 8, 0)), Outcome.ABORTED),
        (now("Ongoing", KafkaTransaction("id", 7, 2)), Outcome.UNKNOWN),
        (BrokerAnswer(TRANSACTIONAL_ID_NOT_FOUND), Outcome.ABORTED),
        (BrokerAnswer(53), Outcome.UNKNOWN),
        (BrokerAnswer(49), Outcome.UNKNOWN),
        (BrokerAnswer(16), Outcome.RETRY),
        (BrokerAnswer(None, "no route"), Outcome.RETRY),
    ],
)
def test_an_abort_is_sent_only_where_it_is_right(view, outcome):
    finished = before_abort(OURS, view)
    assert (finished.outcome if finished else None) is outcome


@pytest.mark.parametrize(
    ("view", "behind"),
    [
        *((now(state), False) for state in ("PrepareCommit", "CompleteCommit")),
        *((now(state), True) for state in ("Ongoing", "PrepareAbort", "CompleteAbort", "PrepareEpochFence")),
        (now("SomethingNew"), False),
        (now("Empty"), False),  # on some brokers, that alone proves nothing (see `is_empty`)
        (now("CompleteCommit", KafkaTransaction("id", 7, 2)), True),
        *((now(state, NEXT), False) for state in ("CompleteCommit", "Empty", "Ongoing", "CompleteAbort")),
        (now("Empty", KafkaTransaction("id", 8, 0)), False),
        (BrokerAnswer(TRANSACTIONAL_ID_NOT_FOUND), False),
    ],
)
def test_a_coordinator_is_behind_only_if_its_log_ends_before_the_commit(view, behind):
    assert is_behind(OURS, view) is behind

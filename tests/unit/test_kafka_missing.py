"""What brokers report about a committed transaction, and when that means that it is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka.committer import KafkaCommitter, fields_of
from sparkonce.sinks.kafka.outcomes import TRANSACTIONAL_ID_NOT_FOUND, BrokerAnswer, Description, KafkaTransaction

IDS = "shop.0123456789ab.3-0badcafe.c0ffee123456-"
COMMITTED = [KafkaTransaction(f"{IDS}{number}", 7, number) for number in range(2)]
HANDLES = [
    Handle(sink="kafka", slot=n, transaction=transaction_fields(fields_of(one))) for n, one in enumerate(COMMITTED)
]


def missing(
    monkeypatch: pytest.MonkeyPatch, states: Sequence[str], ended: Sequence[str], handles: Sequence[Handle] = HANDLES
) -> list[int]:
    """Returns the slots that are missing on brokers that show these states ('' for none), and these ids as ended."""
    views = [
        Description(one, state, 60_000, 1) if state else BrokerAnswer(TRANSACTIONAL_ID_NOT_FOUND)
        for one, state in zip(COMMITTED, states, strict=True)
    ]

    def list_transactions(states: Sequence[str], begins: Sequence[str], *, deadline_s: float) -> list[str]:
        assert (list(states), list(begins)) == (["CompleteAbort", "CompleteCommit"], ["shop.0123456789ab."])
        return [name for name in ended if name.startswith(begins[0])]

    client: Any = SimpleNamespace(
        describe_transactions=lambda *_, **__: views, list_transactions=list_transactions, close=lambda: None
    )
    monkeypatch.setattr(committer_module, "TransactionClient", lambda *_: client)
    committer = KafkaCommitter({"bootstrap.servers": "h:1"}, "kafka")
    monkeypatch.setattr(committer, "_remembered_ms", lambda: 2 * 3_600_000)
    return [handle.slot for handle in committer.missing(handles)]


def test_a_broker_that_forgets_how_transactions_end_has_lost_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Redpanda before 24.2 and franz-go's kfake show every ended transaction as Empty."""
    caplog.set_level(logging.WARNING)
    assert missing(monkeypatch, ["Empty", "Empty"], ended=[]) == []
    assert "do not keep how a transaction ended" in caplog.text


def test_a_broker_that_keeps_how_transactions_end_has_lost_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(monkeypatch, ["Empty", "CompleteCommit"], ended=[f"{IDS}1"]) == [0]
    assert missing(monkeypatch, ["CompleteAbort", "CompleteCommit"], ended=[]) == [0]
    assert missing(monkeypatch, ["CompleteCommit", "CompleteCommit"], ended=[]) == []


def test_an_unknown_id_is_missing_up_to_half_the_time_for_which_ids_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other half allows for clock differences."""
    ages_ms = (59 * 60_000, 61 * 60_000)
    now_ms = time.time_ns() // 1_000_000
    handles = [replace(one, opened_ms=now_ms - age_ms) for one, age_ms in zip(HANDLES, ages_ms, strict=True)]
    assert missing(monkeypatch, ["", ""], ended=[], handles=handles) == [0]

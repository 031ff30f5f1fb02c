"""A transaction is only reported as holding up readers if every broker has answered."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.sinks.kafka.blocking import KafkaMonitor, OpenPart
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, Description, KafkaTransaction

QUERY = "0123456789ab"
LOADING, ID_NOT_ALLOWED = 14, 53


def knows(**names: int) -> Any:
    states = [SimpleNamespace(producer_id=number, transactional_id=name) for name, number in names.items()]
    return SimpleNamespace(error_code=0, transaction_states=states)


def refuses(code: int) -> Any:
    return SimpleNamespace(error_code=code, transaction_states=[])


def described(
    monkeypatch: pytest.MonkeyPatch, responses: Sequence[Any], view: Description | BrokerAnswer
) -> Sequence[Description | None] | None:
    """Returns what is known about the transaction of producer 7, or None if nothing should be reported."""
    monitor = KafkaMonitor({"bootstrap.servers": "nobody:1"}, "t", QUERY)
    monkeypatch.setattr(monitor._client, "gather", lambda *_, **__: list(responses))
    monkeypatch.setattr(monitor._client, "describe_transactions", lambda asked, **_: [view for _ in asked])
    found = monitor._described([OpenPart(("t", 0), 5, 7, 0)], [1, 2], 0.0)
    return [one.view for one in found] or None


@pytest.mark.parametrize("silent", [BrokerAnswer(None, "silence"), refuses(LOADING)])
def test_nobody_is_named_while_a_broker_does_not_list_its_transactions(
    monkeypatch: pytest.MonkeyPatch, silent: Any
) -> None:
    """The transaction may be the query's own, coordinated by that broker."""
    assert described(monkeypatch, [knows(), silent], BrokerAnswer(None, "")) is None


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("other", LOADING, None),
        ("other", ID_NOT_ALLOWED, [None]),
        (f"orders.{QUERY}.3-0badcafe.000000000001-0", ID_NOT_ALLOWED, None),
    ],
)
def test_one_that_is_not_described_is_named_only_if_its_id_may_not_be_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, says: Any
) -> None:
    assert described(monkeypatch, [knows(**{name: 7}), knows()], BrokerAnswer(code, "")) == says


def test_what_is_described_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Description(KafkaTransaction("other", 7, 0), "Ongoing", 60_000, 1)
    assert described(monkeypatch, [knows(other=7), knows()], view) == [view]
    assert described(monkeypatch, [knows(), knows()], view) == [None], "an id that this user may not see"

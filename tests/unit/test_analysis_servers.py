"""The analyzer queries exactly the topics that a source's options select, and assumes nothing without an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.analysis import servers
from sparkonce.analysis.servers import _topics


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"subscribe": "orders, users,"}, ["orders", "users"]),
        ({"assign": '{"orders": [0, 1], "users": [3]}'}, ["orders", "users"]),
        ({"subscribepattern": "orders.*"}, ["orders", "orders-eu"]),
        ({"subscribepattern": "order"}, []),
        ({}, []),
    ],
)
def test_topics_are_chosen_as_spark_chooses_them(options: dict[str, str], chosen: list[str]) -> None:
    assert _topics(options, ["orders", "orders-eu", "users"]) == chosen


@pytest.mark.parametrize(("led_by", "is_transactional"), [((1, 1), False), ((1, -1), None), ((-1, -1), None)])
def test_writers_of_a_partition_without_a_leader_are_unknown(
    monkeypatch: pytest.MonkeyPatch, led_by: tuple[int, int], is_transactional: bool | None
) -> None:
    def partition(number: int, **known: Any) -> SimpleNamespace:
        return SimpleNamespace(partition_index=number, error_code=0, **known)

    def topic(partitions: list[SimpleNamespace]) -> SimpleNamespace:
        return SimpleNamespace(name="orders", error_code=0, partitions=partitions)

    configs = {"retention.ms": "1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    told = [SimpleNamespace(name=name, value=value) for name, value in configs.items()]
    answers = iter(
        [
            SimpleNamespace(topics=[topic([partition(number, leader_id=one) for number, one in enumerate(led_by)])]),
            SimpleNamespace(results=[SimpleNamespace(error_code=0, configs=told)]),
        ]
    )
    led = [partition(number, active_producers=[]) for number, one in enumerate(led_by) if one >= 0]
    client = SimpleNamespace(
        insist=lambda *_, **__: next(answers),
        gather=lambda *_, **__: [SimpleNamespace(topics=[topic(led)])],
        close=lambda: None,
    )
    monkeypatch.setattr(servers, "TransactionClient", lambda *_, **__: client)
    found = servers._describe({"bootstrap.servers": "broker:9092"}, {"subscribe": "orders"}, [])
    assert found["orders"].transactional is is_transactional

"""The analyzer queries exactly the topics that a source's options select."""

from __future__ import annotations

import pytest

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

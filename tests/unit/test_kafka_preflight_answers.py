"""How preflight interprets answers of brokers, without any brokers."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from sparkonce.sinks.kafka import preflight


def test_a_topic_that_is_not_known_to_every_broker_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def told_of_a_topic(errors: list[int], *, within_s: float) -> tuple[int, int]:
        """Feeds these error codes as answers, and returns the number of requests and the last code."""
        left = list(errors)

        def ask(_: object) -> object:
            return SimpleNamespace(topics=[SimpleNamespace(error_code=left.pop(0) if len(left) > 1 else left[0])])

        look = SimpleNamespace(ask=ask, deadline_s=time.monotonic() + within_s)
        found = preflight._metadata(look, "orders")  # type: ignore[arg-type]
        return len(errors) - len(left) + 1, found.topics[0].error_code

    monkeypatch.setattr(preflight, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(preflight, "SURE_AFTER_S", 600.0)
    assert told_of_a_topic([3, 3, 0], within_s=600.0) == (3, 0)
    assert told_of_a_topic([29], within_s=600.0) == (1, 29)

    monkeypatch.setattr(preflight, "SURE_AFTER_S", 0.0)
    assert told_of_a_topic([3], within_s=600.0) == (1, 3)

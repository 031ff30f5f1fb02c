"""What preflight makes of a coordinator's answers, without one."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from sparkonce.errors import PreflightError
from sparkonce.sinks.kafka import preflight
from sparkonce.sinks.kafka.outcomes import Answer

CUT, WORKS = Answer(None, "KafkaConnectionError: reset by peer"), Answer(preflight._NOBODY_HAS_THE_ID)
QUERY = "0123456789ab"


def asked(answers: list[Answer], *, within_s: float) -> int:
    """How often the coordinator was asked."""
    left = list(answers)

    def probe(transaction: object, *, deadline_s: float) -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    look = SimpleNamespace(client=SimpleNamespace(probe=probe), deadline_s=time.monotonic() + within_s)
    preflight._check_permission(look, "orders", QUERY)  # type: ignore[arg-type]
    return len(answers) - len(left) + 1


def test_a_connection_that_is_cut_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_ASK_AGAIN_S", 0.0)
    assert asked([CUT, CUT, WORKS], within_s=600.0) == 3


def test_a_coordinator_that_is_never_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_ASK_AGAIN_S", 0.0)
    with pytest.raises(PreflightError, match="reset by peer"):
        asked([CUT], within_s=0.0)

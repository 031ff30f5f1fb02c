"""A batch that one process begins and another ends, while a newer run claims the query."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkonce.driver.halves import Handover, continued, resumed
from sparkonce.driver.start import read_log
from sparkonce.errors import SupersededError
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import effects as do
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim
from sparkonce.protocol.state import Batch, State

OURS = Claim(nonce="aaaa", run="ours", query="q")
NEWER = Claim(nonce="bbbb", run="newer", query="q")


@pytest.fixture
def log(tmp_path: Path) -> DecisionLog:
    log = DecisionLog(LocalLogStore(tmp_path))
    log.put(0, OURS)
    return log


def test_a_half_ends_what_another_began_unless_a_newer_run_has_claimed(log: DecisionLog) -> None:
    view = read_log(log)
    begun = Handover(
        state=State(
            claim=OURS, token=Token(0, OURS.nonce), batch=Batch(number=7, offsets=("7",), previous_offsets=None)
        ),
        position=view.end,
        effect=do.Write(batch=7, sinks=("out",)),
        owners={},
        opened_s=0.0,
    )
    assert resumed(begun, log) == replace(begun.state, view=view)

    log.put(1, NEWER)
    with pytest.raises(SupersededError, match="a newer run has claimed the query"):
        resumed(begun, log)


def test_a_claim_is_gone_on_with_unless_a_newer_run_has_claimed(log: DecisionLog) -> None:
    ours = Token(0, OURS.nonce)
    state = continued(OURS, ours, read_log(log), ("out",), moved=False)
    assert state is not None
    assert (state.token, state.view.end) == (ours, 1)

    log.put(1, NEWER)
    assert continued(OURS, ours, read_log(log), ("out",), moved=False) is None

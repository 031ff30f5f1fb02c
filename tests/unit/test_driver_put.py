"""A record that waits for space in the log, while the transactions in it grow old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkonce.driver.put import LogWriter
from sparkonce.driver.stops import Failure
from sparkonce.log import DecisionLog
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Amend, Claim, Commit, LogView
from sparkonce.storage.local import LocalFiles
from unit.driver_world import FlakyLog, Work, stopped_clock

DECISION: dict[str, Any] = {"token": Token(0, "aaaa"), "query": "q", "batch": 7, "offsets": ("7",), "handles": ()}


@pytest.mark.parametrize("record", [Commit(**DECISION), Amend(**DECISION)], ids=["commit", "amendment"])
def test_a_decision_that_waited_for_room_is_not_put_if_what_it_names_grew_too_old(
    record: Commit | Amend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_clock(monkeypatch)
    log = FlakyLog(DecisionLog(LocalFiles(tmp_path)), type(record), "full")
    ages = ["a transaction is about to expire"]
    writer = LogWriter(log, 60.0, Failure(), grown_old=lambda: ages[0])
    refused = writer.put(do.Put(position=0, record=record), LogView(), Work({}, 7))
    assert isinstance(refused, on.PutRefused)
    assert "a transaction is about to expire" in refused.reason
    assert log.standing(0) is None

    ages[0] = ""
    assert isinstance(writer.put(do.Put(position=0, record=record), LogView(), Work({}, 7)), on.PutLanded)


def test_a_claim_names_no_transactions_that_could_grow_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_clock(monkeypatch)
    log = FlakyLog(DecisionLog(LocalFiles(tmp_path)), Claim, "full")
    writer = LogWriter(log, 60.0, Failure(), grown_old=lambda: "a transaction is about to expire")
    claim = Claim(nonce="aaaa", run="r", query="q")
    assert isinstance(writer.put(do.Put(position=0, record=claim), LogView(), Work({}, 0)), on.PutLanded)

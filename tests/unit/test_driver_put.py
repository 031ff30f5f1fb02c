from __future__ import annotations

import logging
from typing import Any

import pytest

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.positions import Positions
from sparkonce.driver.put import LogWriter
from sparkonce.driver.stops import Failure
from sparkonce.errors import ConfigurationError
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Amend, Claim, Commit, LogView
from sparkonce.storage.local import LocalFiles
from unit.driver_world import FlakyLog, Work, stopped_clock

DECISION: dict[str, Any] = {"token": Token(0, "aaaa"), "query": "q", "batch": 7, "offsets": ("7",), "handles": ()}


@pytest.mark.parametrize("record", [Commit(**DECISION), Amend(**DECISION)], ids=["commit", "amendment"])
def test_a_decision_that_waited_for_room_is_not_put_if_what_it_names_grew_too_old(record, tmp_path, monkeypatch):
    stopped_clock(monkeypatch)
    log = FlakyLog(DecisionLog(LocalFiles(tmp_path)), type(record), "full")
    ages = ["a transaction is about to expire"]
    writer = LogWriter(log, 60.0, Failure(), grown_old=lambda: ages[0])
    refused = writer.put(do.Put(position=0, record=record), LogView(), Work({}, 7))
    assert "a transaction is about to expire" in refused.reason
    assert log.standing(0) is None

    ages[0] = ""
    assert isinstance(writer.put(do.Put(position=0, record=record), LogView(), Work({}, 7)), on.PutLanded)


def test_a_claim_names_no_transactions_that_could_grow_old(tmp_path, monkeypatch):
    stopped_clock(monkeypatch)
    log = FlakyLog(DecisionLog(LocalFiles(tmp_path)), Claim, "full")
    writer = LogWriter(log, 60.0, Failure(), grown_old=lambda: "a transaction is about to expire")
    claim = Claim(nonce="aaaa", run="r", query="q")
    assert isinstance(writer.put(do.Put(position=0, record=claim), LogView(), Work({}, 0)), on.PutLanded)


class Reporter:
    def __init__(self, error: Exception | None = None, refusal: str = "") -> None:
        self.error = error
        self.refusal = refusal
        self.told: list[object] = []

    def _hear(self, *what: object) -> None:
        self.told.append(what)
        if self.error is not None:
            raise self.error

    def check(self, facts: object) -> None:
        self._hear("check", facts)

    def before_decision(self, handles: object, sources: object) -> str:
        self._hear("before", handles, sources)
        return self.refusal

    def after_finish(self, sources: object) -> None:
        self._hear("after", sources)

    def close(self) -> None:
        self._hear("close")


def test_one_that_fails_is_told_of_and_the_others_are_still_told(caplog):
    broken, other = Reporter(RuntimeError("no way")), Reporter()
    positions = Positions([broken, other])
    with caplog.at_level(logging.WARNING, logger="sparkonce"):
        positions.after_finish(("a",))
        positions.close()
    assert broken.told == other.told == [("after", ("a",)), ("close",)]
    assert [record.getMessage() for record in caplog.records] == [
        "A position could not be reported: RuntimeError: no way"
    ] * 2

    with pytest.raises(ConfigurationError):
        Positions([Reporter(ConfigurationError("wrong"))]).check({})


@pytest.mark.parametrize(
    ("reporter", "reason"),
    [
        (Reporter(), ""),
        (Reporter(refusal="silence"), "silence"),
        (Reporter(RuntimeError("no way")), "RuntimeError: no way"),
    ],
)
def test_who_may_have_touched_a_transaction_unseen_keeps_the_batch_from_its_decision(reporter, reason):
    assert Positions([Reporter(), reporter]).before_decision((), ("a",)) == reason

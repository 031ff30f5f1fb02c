from __future__ import annotations

import logging

import pytest

from sparkonce.driver.positions import Positions
from sparkonce.errors import ConfigurationError


class Reporter:
    """Records its calls, and fails on request."""

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


def test_one_that_fails_is_told_of_and_the_others_are_still_told(caplog: pytest.LogCaptureFixture) -> None:
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
def test_who_may_have_touched_a_transaction_unseen_keeps_the_batch_from_its_decision(
    reporter: Reporter, reason: str
) -> None:
    assert Positions([Reporter(), reporter]).before_decision((), ("a",)) == reason

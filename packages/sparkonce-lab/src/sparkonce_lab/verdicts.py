"""The checkers' verdicts on a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Anomaly(str, Enum):
    """The anomalies that checkers look for. The value is the name in reports."""

    MISSING = "missing"
    DOUBLED = "doubled"
    UNEXPECTED = "unexpected"
    EARLY = "early"
    OUT_OF_ORDER = "out of order"
    TORN = "torn"
    LINGERING = "lingering"
    STATE_DIFFERS = "state differs"
    STUCK = "stuck"
    STOPPED = "stopped"
    GROWING = "growing"

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Anomaly.MISSING: "a row that should be there is missing",
    Anomaly.DOUBLED: "a row is there more than once",
    Anomaly.UNEXPECTED: "an unexpected row is there: it has a wrong sum or no key, or is unreadable",
    Anomaly.EARLY: "a reader saw rows of a batch before it was decided",
    Anomaly.OUT_OF_ORDER: "a partition has rows of a key in a different order from the one they were sent in",
    Anomaly.TORN: "a batch is in one system, and missing or incomplete in another",
    Anomaly.LINGERING: "something was left open after the last recovery",
    Anomaly.STATE_DIFFERS: "the undisturbed query produced different rows, or kept different state",
    Anomaly.STUCK: "the query did not continue before a deadline",
    Anomaly.STOPPED: "the query stopped with an error that no fault explains",
    Anomaly.GROWING: "memory, file handles, or a folder keep growing",
}

NEEDS_THE_END = frozenset({Anomaly.MISSING, Anomaly.TORN, Anomaly.STATE_DIFFERS, Anomaly.LINGERING})
"""The anomalies that an unfinished run cannot show, because the query may not have written or cleaned up yet."""
OPTIONAL = frozenset({Anomaly.GROWING})
"""The anomalies that only a long run can show. A shorter run can pass without the check for them."""
MOST_EXAMPLES = 5
"""The maximum number of examples in one verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One checker's result for one system, or for the whole run.

    Attributes:
        anomaly: The anomaly that was checked.
        system: The system; empty for the whole run.
        looked_at: The number of items examined. If it is 0, the verdict proves nothing.
        count: The number of times that the anomaly was found.
        examples: Examples of what was found, one per line.
    """

    anomaly: Anomaly
    system: str
    looked_at: int
    count: int
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.count == 0

    @property
    def blank(self) -> bool:
        """True if nothing was examined although something should have been. The result is then unknown."""
        return self.looked_at == 0 and self.anomaly not in OPTIONAL


def passed(verdicts: Sequence[Verdict]) -> bool:
    """Returns True if everything was checked, and no anomaly was found."""
    return bool(verdicts) and all(verdict.ok and not verdict.blank for verdict in verdicts)

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
    Anomaly.MISSING: "a row that must be there is not",
    Anomaly.DOUBLED: "a row is there more than once",
    Anomaly.UNEXPECTED: "a row is there that nobody expects: with a wrong sum, of no key, or not readable at all",
    Anomaly.EARLY: "a reader saw rows of a batch before it was decided",
    Anomaly.OUT_OF_ORDER: "rows of a key stand in a partition in another order than they were sent in",
    Anomaly.TORN: "a batch is in one system and not, or not whole, in another",
    Anomaly.LINGERING: "something was left open after the last recovery",
    Anomaly.STATE_DIFFERS: "a query that nobody disturbed made other rows, or kept other state",
    Anomaly.STUCK: "the query did not go on before a deadline",
    Anomaly.STOPPED: "the query stopped with an error that no fault explains",
    Anomaly.GROWING: "memory, file handles, or a folder grow and grow",
}

NEEDS_THE_END = frozenset({Anomaly.MISSING, Anomaly.TORN, Anomaly.STATE_DIFFERS, Anomaly.LINGERING})
"""The anomalies that an unfinished run cannot show: it may just not have written, or cleaned up, yet."""
OPTIONAL = frozenset({Anomaly.GROWING})
"""The anomalies that only a long run can show. A shorter run passes without the check."""
MOST_EXAMPLES = 5
"""The maximum number of examples in one verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One checker's result for one system, or for the whole run.

    Attributes:
        anomaly: What was checked for.
        system: The system; empty for the whole run.
        looked_at: The number of items examined. A verdict on nothing proves nothing.
        count: How often the anomaly was found.
        examples: Some of what was found, one per line.
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
        """True if nothing was examined although something should have been, so the result is unknown."""
        return self.looked_at == 0 and self.anomaly not in OPTIONAL


def passed(verdicts: Sequence[Verdict]) -> bool:
    """Returns True if everything was checked for, and nothing was found."""
    return bool(verdicts) and all(verdict.ok and not verdict.blank for verdict in verdicts)

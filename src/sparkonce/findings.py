"""What `sparkonce.explain` finds about a part of a query: reasons, conditions and remarks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparkonce.guarantees import Guarantee


class Kind(str, Enum):
    """The kinds of findings."""

    REASON = "reason"
    """A reason for the part's level. It was seen."""
    CONDITION = "condition"
    """A condition that cannot be seen from here. The level holds only if it does."""
    NOTE = "note"
    """A remark that changes no level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A single finding about a part.

    Attributes:
        says: The finding, as a clause.
        level: The best level that the part can have with it.
        change: The change that leads to a better level; empty if there is none.
        kind: See `Kind`.
    """

    says: str
    level: Guarantee = Guarantee.EXACTLY_ONCE
    change: str = ""
    kind: Kind = Kind.REASON


def holds(says: str) -> Finding:
    """Makes a reason for exactly-once."""
    return Finding(says=says)


def doubles(says: str, change: str) -> Finding:
    """Makes a reason why rows may come twice."""
    return Finding(says=says, level=Guarantee.AT_LEAST_ONCE, change=change)


def loses(says: str, change: str) -> Finding:
    """Makes a reason why rows may be missing."""
    return Finding(says=says, level=Guarantee.AT_MOST_ONCE, change=change)


def must(says: str) -> Finding:
    """Makes a condition that cannot be seen from here."""
    return Finding(says=says, kind=Kind.CONDITION)


def note(says: str) -> Finding:
    """Makes a remark."""
    return Finding(says=says, kind=Kind.NOTE)

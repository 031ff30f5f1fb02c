"""The findings of `sparkonce.explain` about a part of a query: reasons, conditions and notes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparkonce.guarantees import Guarantee


class Kind(str, Enum):
    """The kinds of findings."""

    REASON = "reason"
    """An observed reason for the part's level."""
    CONDITION = "condition"
    """A condition that cannot be checked here. The level is valid only if the condition holds."""
    NOTE = "note"
    """A note that does not affect the level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A single finding about a part.

    Attributes:
        says: The finding, as a clause.
        level: The best level that the part can have, given this finding.
        change: A change that leads to a better level; empty if there is none.
        kind: See `Kind`.
    """

    says: str
    level: Guarantee = Guarantee.EXACTLY_ONCE
    change: str = ""
    kind: Kind = Kind.REASON


def holds(says: str) -> Finding:
    """Returns a reason for exactly-once."""
    return Finding(says=says)


def doubles(says: str, change: str) -> Finding:
    """Returns a reason why rows may be duplicated."""
    return Finding(says=says, level=Guarantee.AT_LEAST_ONCE, change=change)


def loses(says: str, change: str) -> Finding:
    """Returns a reason why rows may be missing."""
    return Finding(says=says, level=Guarantee.AT_MOST_ONCE, change=change)


def must(says: str) -> Finding:
    """Returns a condition that cannot be checked here."""
    return Finding(says=says, kind=Kind.CONDITION)


def note(says: str) -> Finding:
    """Returns a note."""
    return Finding(says=says, kind=Kind.NOTE)

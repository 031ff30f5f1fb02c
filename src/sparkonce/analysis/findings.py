"""Findings, and the parts of a query that they are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sparkonce.guarantees import Guarantee, weakest


class Role(str, Enum):
    """The roles of parts in a query."""

    SOURCE = "source"
    ENGINE = "engine"
    SINK = "sink"
    READER = "reader"


class Kind(str, Enum):
    """The kinds of findings."""

    REASON = "reason"
    """Seen, and why the part has its level."""
    CONDITION = "condition"
    """Cannot be seen from here. The level holds only if this does."""
    NOTE = "note"
    """Worth knowing; changes no level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A single finding about a part.

    Attributes:
        says: What, in a sentence.
        level: The best level that the part can have with it.
        change: What to change so that it has a better one; empty where there is nothing to.
        kind: See `Kind`.
    """

    says: str
    level: Guarantee = Guarantee.EXACTLY_ONCE
    change: str = ""
    kind: Kind = Kind.REASON


def holds(says: str) -> Finding:
    """A reason for exactly-once."""
    return Finding(says=says)


def doubles(says: str, change: str) -> Finding:
    """A reason why rows may come twice."""
    return Finding(says=says, level=Guarantee.AT_LEAST_ONCE, change=change)


def loses(says: str, change: str) -> Finding:
    """A reason why rows may be missing."""
    return Finding(says=says, level=Guarantee.AT_MOST_ONCE, change=change)


def must(says: str) -> Finding:
    """Makes a finding that has to hold, and cannot be seen from here."""
    return Finding(says=says, kind=Kind.CONDITION)


def note(says: str) -> Finding:
    """Makes a finding that is worth knowing."""
    return Finding(says=says, kind=Kind.NOTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A source, the engine, a sink, or a sink's readers.

    Attributes:
        role: Which of them.
        name: Which one, for example ``kafka: orders``.
        findings: What was found out about it, in the order in which the rules ask.
    """

    role: Role
    name: str
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, role: Role, name: str, findings: Iterable[Finding]) -> Part:
        """A part with what the rules find."""
        return cls(role=role, name=name, findings=tuple(findings))

    @property
    def level(self) -> Guarantee:
        """The weakest that any finding allows."""
        return weakest([Guarantee.EXACTLY_ONCE, *(finding.level for finding in self.findings)])

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the part's level. For a weak part, only those that make it weak."""
        weak = [finding for finding in self.findings if finding.level is not Guarantee.EXACTLY_ONCE]
        chosen = weak or [finding for finding in self.findings if finding.kind is Kind.REASON]
        return tuple(finding.says for finding in chosen)

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes that would raise the level."""
        return tuple(dict.fromkeys(finding.change for finding in self.findings if finding.change))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The findings that have to hold, and cannot be seen from here."""
        return self._said(Kind.CONDITION)

    @property
    def notes(self) -> tuple[str, ...]:
        """The findings that are worth knowing."""
        return self._said(Kind.NOTE)

    def _said(self, kind: Kind) -> tuple[str, ...]:
        return tuple(finding.says for finding in self.findings if finding.kind is kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "role": self.role.value,
            "name": self.name,
            "level": self.level.value,
            "reasons": list(self.reasons),
            "changes": list(self.changes),
            "conditions": list(self.conditions),
            "notes": list(self.notes),
        }

"""The parts of a query, each with the findings about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sparkonce.findings import Finding, Kind
from sparkonce.guarantees import Guarantee, weakest


class Role(str, Enum):
    """The roles of a query's parts."""

    SOURCE = "source"
    ENGINE = "engine"
    SINK = "sink"
    READER = "reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A source, the engine, a sink, or a sink's readers.

    Attributes:
        role: The part's role.
        name: The part's name, for example ``kafka: orders``.
        findings: The findings about the part, in rule order.
    """

    role: Role
    name: str
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, role: Role, name: str, findings: Iterable[Finding]) -> Part:
        """Creates a part from the findings of the rules."""
        return cls(role=role, name=name, findings=tuple(findings))

    @property
    def level(self) -> Guarantee:
        """The lowest level of any finding."""
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
        """The conditions that cannot be checked here."""
        return self._said(Kind.CONDITION)

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks."""
        return self._said(Kind.NOTE)

    def _said(self, kind: Kind) -> tuple[str, ...]:
        return tuple(finding.says for finding in self.findings if finding.kind is kind)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "role": self.role.value,
            "name": self.name,
            "level": self.level.value,
            "reasons": list(self.reasons),
            "changes": list(self.changes),
            "conditions": list(self.conditions),
            "notes": list(self.notes),
        }

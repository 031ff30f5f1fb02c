"""The verdict on a cell: its outcome, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Late(str, Enum):
    """What a request that was delivered late did."""

    CHANGED = "changed something"
    WITHOUT_EFFECT = "was answered, without effect"
    ENDED = "found its connection ended by the server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a cell, in numbers.

    Attributes:
        missing: Decided rows that no reader sees.
        doubled: Rows seen more than once.
        unexpected: Rows that no batch has, or that were seen once and are gone.
        early: Rows that were seen before their batch was decided.
        lingering: What the server still has open after the last sweep.
        unconcluded: Batches that are done, without the sink having been told.
        broken: Errors that did not come from the driver and ended runs.
        missed: Why the cell, or its late request, did not do what it should; empty if it did.
        late: What the late request did; None in cells without one.
    """

    missing: int
    doubled: int
    unexpected: int
    early: int
    lingering: tuple[str, ...]
    unconcluded: tuple[int, ...]
    broken: tuple[str, ...]
    missed: str
    late: Late | None

    @property
    def violations(self) -> str:
        """Lists what must not happen; empty if all is well."""
        counts = {
            "missing": self.missing,
            "doubled": self.doubled,
            "unexpected": self.unexpected,
            "early": self.early,
            "lingering": list(self.lingering),
            "never concluded": list(self.unconcluded),
            "broken": list(self.broken),
        }
        return ", ".join(f"{name}: {found}" for name, found in counts.items() if found)


class DoesNotRecover(AssertionError):  # noqa: N818 - it is what it says
    """Runs without faults keep stopping."""

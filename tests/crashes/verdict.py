"""The verdict on a cell: what came of it, counted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Late(str, Enum):
    """Says what became of a request that was delivered late."""

    CHANGED = "changed something"
    WITHOUT_EFFECT = "was answered, without effect"
    ENDED = "found its connection ended by the server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts what came of a cell.

    Attributes:
        missing: Decided rows that no reader sees.
        doubled: Rows seen more than once.
        unexpected: Rows that no batch has, or that were seen once and are gone.
        early: Rows that were seen before their batch was decided.
        lingering: What the server has still open after the last sweep.
        unconcluded: Batches that are done, of which the sink was never told so.
        broken: Errors that are not the driver's, with which runs ended.
        stopped: Why runs stopped, in the driver's words. That is legal.
        runs: How many were started.
        looks: How often the reader looked.
        missed: Why the cell, or its late request, did not do what it should; empty if it did.
        late: What the request did that was delivered late; None in cells without one.
        seconds: How long it took.
    """

    missing: int
    doubled: int
    unexpected: int
    early: int
    lingering: tuple[str, ...]
    unconcluded: tuple[int, ...]
    broken: tuple[str, ...]
    stopped: tuple[str, ...]
    runs: int
    looks: int
    missed: str
    late: Late | None
    seconds: float

    @property
    def violations(self) -> str:
        """Names what must not be; empty if all is well."""
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
    """Runs without faults stop again and again."""

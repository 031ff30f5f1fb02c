"""The levels of consistency. A pipeline has the level of its weakest part."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Guarantee(str, Enum):
    """The promise of a sink about every row of the input, whatever fails."""

    AT_MOST_ONCE = "at-most-once"
    """Rows may be lost after a failure, and are never written twice."""
    AT_LEAST_ONCE = "at-least-once"
    """Rows are never lost, and may be written twice after a failure."""
    EXACTLY_ONCE = "exactly-once"
    """Every row takes effect once, for readers that see committed rows only."""


def weakest(parts: Iterable[Guarantee]) -> Guarantee:
    """Returns the guarantee of a whole: that of its weakest part.

    Neither of at-most-once and at-least-once is weaker: a whole with both may lose rows and may double them. It is
    called at-most-once, because a lost row cannot be repaired downstream, and a duplicate can.

    Raises:
        ValueError: if there are no parts.
    """
    order = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE)
    found = set(parts)
    if not found:
        raise ValueError("A pipeline without parts has no guarantee.")
    return min(found, key=order.index)

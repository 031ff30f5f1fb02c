"""The levels of consistency, and the rule that a pipeline is only as good as its weakest part."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Guarantee(str, Enum):
    """The promise of a sink about every row of the input, whatever fails on the way."""

    AT_MOST_ONCE = "at-most-once"
    """Rows may be lost after a failure, and are never written twice."""
    AT_LEAST_ONCE = "at-least-once"
    """Loses no row; may write rows twice after a failure."""
    EXACTLY_ONCE = "exactly-once"
    """Makes every row take effect once, for readers that see committed rows only."""


def weakest(parts: Iterable[Guarantee]) -> Guarantee:
    """The guarantee of a whole, which is that of its weakest part.

    At-most-once and at-least-once do not order each other: a whole that holds both may lose rows and may double
    them. It is called at-most-once here, because loss cannot be repaired downstream and a duplicate can.

    Raises:
        ValueError: if there are no parts.
    """
    order = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE)
    found = set(parts)
    if not found:
        raise ValueError("a pipeline without parts has no guarantee")
    return min(found, key=order.index)

"""Consistency levels. A pipeline has the level of its weakest part."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Guarantee(str, Enum):
    """A sink's promise for every row of the input, no matter what fails."""

    AT_MOST_ONCE = "at-most-once"
    """After a failure, rows may be lost, but are never written twice."""
    AT_LEAST_ONCE = "at-least-once"
    """After a failure, rows may be written twice, but are never lost."""
    EXACTLY_ONCE = "exactly-once"
    """Every row takes effect once, for readers that see only committed rows."""


def weakest(parts: Iterable[Guarantee]) -> Guarantee:
    """Returns the guarantee of a pipeline with these parts, at least one: that of the weakest part.

    A pipeline with both at-most-once and at-least-once parts may lose rows and may duplicate them. It counts as
    at-most-once, because downstream systems can remove a duplicate, but cannot restore a lost row.
    """
    order = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE)
    found = set(parts)
    if not found:
        raise ValueError("A pipeline without parts has no guarantee.")
    return min(found, key=order.index)

"""Publishing ids, computed from a batch and a row's position in what was staged, so that all processes agree on them.

An id consists of the batch's number plus one, the number of the group of slots that were committed together, and the
row's position in that group. The broker drops messages whose id is not above the publisher's highest. Ids therefore
increase in the order in which rows are published, which is that of batches, groups and positions.
"""

from __future__ import annotations

from dataclasses import dataclass

_GROUP_BITS, _PLACE_BITS = 5, 28
MOST_ROWS = 1 << _PLACE_BITS
"""The number of rows that one batch can have."""

_MOST_GROUPS = 1 << _GROUP_BITS
_MOST_BATCHES = (1 << (63 - _GROUP_BITS - _PLACE_BITS)) - 1


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of the rows of one group, without a gap.

    Attributes:
        first: The first row's id.
        last: The last row's id.
    """

    first: int
    last: int

    @classmethod
    def of(cls, batch: int, group: int, rows: int) -> Ids:
        """Returns the ids of a group's rows.

        Raises:
            OverflowError: If there are too many batches, groups or rows for an id.
        """
        if not (0 <= batch < _MOST_BATCHES and 0 <= group < _MOST_GROUPS and 0 < rows <= MOST_ROWS):
            raise OverflowError(
                f"Batch {batch} with {rows} rows in group {group} has no publishing ids: they count {_MOST_BATCHES} "
                f"batches, {_MOST_GROUPS} groups of each and {MOST_ROWS} rows of each."
            )
        first = (((batch + 1) << _GROUP_BITS) | group) << _PLACE_BITS
        return cls(first, first + rows - 1)


def batch_of(sequence: int) -> int:
    """Returns the batch of an id; -1 for 0, which is not an id."""
    return (sequence >> (_GROUP_BITS + _PLACE_BITS)) - 1

"""The ids of stored messages, each with the number of its segment."""

from __future__ import annotations

from collections.abc import Iterable


class Memory:
    """Remembers the newest ids, and all ids in unfinished batches.

    Args:
        most: The number of ids that are remembered if their batches are finished.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, identity: bytes) -> int | None:
        """Returns the number of the segment that contains a message; None if it is not remembered."""
        return self._numbers.get(identity)

    def add(self, identities: Iterable[bytes], number: int) -> None:
        """Remembers the messages of a segment. Segments are added in ascending order."""
        self._numbers.update(dict.fromkeys(identities, number))

    def forget(self, finished: int) -> None:
        """Forgets the oldest ids in excess of the limit.

        Args:
            finished: The number of the first unfinished segment. From there on, nothing is forgotten.
        """
        for identity in list(self._numbers)[: max(0, len(self._numbers) - self._most)]:
            if self._numbers[identity] >= finished:
                return
            del self._numbers[identity]

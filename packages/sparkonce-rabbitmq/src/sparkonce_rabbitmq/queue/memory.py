"""The ids of messages that were kept, each with the number of its segment."""

from __future__ import annotations

from collections.abc import Iterable


class Memory:
    """Remembers ids, the newest ones, and all that belong to batches that are not finished.

    Args:
        most: How many ids of finished batches, and newer ones, are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, identity: bytes) -> int | None:
        """Returns the number of the segment that a message is in; None if it is not remembered."""
        return self._numbers.get(identity)

    def add(self, identities: Iterable[bytes], number: int) -> None:
        """Remembers messages of a segment. Segments come in the order of their numbers."""
        self._numbers.update(dict.fromkeys(identities, number))

    def forget(self, finished: int) -> None:
        """Forgets the oldest of what is too much.

        Args:
            finished: The number of the first segment that is not finished: from there on nothing is forgotten.
        """
        for identity in list(self._numbers)[: max(0, len(self._numbers) - self._most)]:
            if self._numbers[identity] >= finished:
                return
            del self._numbers[identity]

"""Where a schedule's decisions come from: a seed, or a list of those that were taken.

A decision is a number, and 0 is always the dullest one: no fault, go on with the same party, no more copies. So a
schedule is the list of its decisions, and a shorter or lower list is a simpler schedule.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Dice:
    """Decisions from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Whether something rare happens."""
        return self._draw() < probability

    def pick(self, count: int) -> int:
        """One of so many."""
        return int(self._draw() * count)


class Noted(Dice):
    """The same decisions, written down."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.taken: list[int] = []

    def chance(self, probability: float) -> bool:
        found = super().chance(probability)
        self.taken.append(int(found))
        return found

    def pick(self, count: int) -> int:
        found = super().pick(count)
        self.taken.append(found)
        return found


class Given(Dice):
    """Decisions that somebody has written down. Beyond their end everything is dull."""

    def __init__(self, decisions: Sequence[int]) -> None:
        self._decisions = decisions
        self._next = 0

    def chance(self, probability: float) -> bool:
        # What cannot happen is asked for all the same, so that lists mean the same whatever the probabilities are.
        return self._take() != 0 and probability > 0

    def pick(self, count: int) -> int:
        return self._take() % count

    def _take(self) -> int:
        place = self._next
        self._next = place + 1
        return self._decisions[place] if place < len(self._decisions) else 0

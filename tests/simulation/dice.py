"""The source of a schedule's decisions: a seed, or a list of recorded decisions.

A decision is a number, and 0 is always the least eventful one: no fault, continue with the same party, no more task
attempts. A schedule is the list of its decisions, and a shorter or lower list is a simpler schedule.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Dice:
    """Decisions from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Decides whether something rare happens."""
        return self._draw() < probability

    def pick(self, count: int) -> int:
        """Chooses one of this many."""
        return int(self._draw() * count)


class Noted(Dice):
    """The same decisions, recorded."""

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
    """Recorded decisions. Beyond their end, nothing happens."""

    def __init__(self, decisions: Sequence[int]) -> None:
        self._decisions = decisions
        self._next = 0

    def chance(self, probability: float) -> bool:
        # Even an impossible event uses up a decision, so that a list of decisions has the same meaning for all
        # probabilities.
        return self._take() != 0 and probability > 0

    def pick(self, count: int) -> int:
        return self._take() % count

    def _take(self) -> int:
        place = self._next
        self._next = place + 1
        return self._decisions[place] if place < len(self._decisions) else 0

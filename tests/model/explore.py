from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from model.world import Label, Model, Violation, World


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a search.

    Attributes:
        worlds: Different worlds seen.
        moves: Moves tried.
        seconds: How much CPU time it took.
        violation: The first violation that was found, at the end of a shortest path.
        trace: The labels of the moves on that path.
    """

    worlds: int
    moves: int
    seconds: float
    violation: Violation | None = None
    trace: list[Label] = field(default_factory=list)

    @property
    def summary(self) -> str:
        speed = self.worlds / max(self.seconds, 0.001)
        head = f"{self.worlds:,} worlds, {self.moves:,} moves, {self.seconds:.1f} s ({speed:,.0f} worlds/s)"
        return head if self.violation is None else f"{head}: {self.violation.value}, after {len(self.trace)} moves"

    def __str__(self) -> str:
        lines = [f"  {number:3}. {' '.join(map(str, label))}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([self.summary, *lines])


@contextmanager
def _without_collector() -> Iterator[None]:
    """Worlds form no cycles, and looking for cycles among millions of them takes most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_without_collector()
def breadth_first(model: Model, *, traced: bool = True, limit: int | None = None) -> Found:
    """Visits every world, nearest first, until a rule is broken.

    Args:
        model: The moves.
        traced: True to remember the path to each world, which takes memory.
        limit: The number of worlds after which to give up.
    """
    began = time.process_time()
    first = model.first()
    seen: dict[World, tuple[World, Label] | None] = {first: None}
    layer, moves = [first], 0

    def found(violation: Violation | None = None, world: World | None = None, last: list[Label] | None = None) -> Found:
        trace = last or []
        while world is not None and (step := seen[world]) is not None:
            world, label = step
            trace = [label, *trace]
        return Found(
            worlds=len(seen), moves=moves, seconds=time.process_time() - began, violation=violation, trace=trace
        )

    while layer:
        following: list[World] = []
        for world in layer:
            for label, after, violation in model.moves(world):
                moves += 1
                if violation is not None:
                    return found(violation, world, [label])
                if after in seen:
                    continue
                seen[after] = (world, label) if traced else None
                following.append(after)
                if path := model.stranded(after):
                    return found(path[-1].violation, after, [move.label for move in path])
            if limit is not None and len(seen) > limit:
                return found()
        layer = following
    return found()

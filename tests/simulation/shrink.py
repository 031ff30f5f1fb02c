"""Minimizes a failing schedule: fewer and lower decisions, and a smaller world, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.config import Config

Fails = Callable[[Config, Sequence[int]], bool]
_World = tuple[Config, tuple[int, ...]]


class Shrinker:
    """Delta debugging of a list of numbers, where 0 is the least eventful, and of the world in which they are used.

    Args:
        fails: Returns True if a schedule still fails in the same way.
        most_tries: The maximum number of tries.
    """

    def __init__(self, fails: Fails, most_tries: int) -> None:
        self._fails = fails
        self._left = most_tries
        self._in_vain: set[_World] = set()

    def shrink(self, config: Config, decisions: Sequence[int]) -> _World:
        """Finds a local minimum: no single step makes it smaller without making it pass."""
        best = (config, tuple(decisions))
        while self._left > 0 and (smaller := next(filter(self._try, _smaller(*best)), None)) is not None:
            best = smaller
        return best

    def _try(self, tried: _World) -> bool:
        if self._left <= 0 or tried in self._in_vain:
            return False
        self._left -= 1
        if self._fails(*tried):
            return True
        self._in_vain.add(tried)
        return False


def _smaller(config: Config, decisions: tuple[int, ...]) -> Iterator[_World]:
    """Yields smaller lists of decisions, the smallest first. Decisions after the last one count as 0."""
    size = len(decisions)
    while size:
        for at in range(0, len(decisions), size):
            before, piece, behind = decisions[:at], decisions[at : at + size], decisions[at + size :]
            yield config, before + behind
            if any(piece):
                yield config, before + (0,) * len(piece) + behind
        size //= 2
    for at, number in enumerate(decisions):
        if number > 1:
            yield config, (*decisions[:at], number - 1, *decisions[at + 1 :])
    if len(config.sinks) > 1:
        for sink in config.sinks:
            yield replace(config, sinks=tuple(one for one in config.sinks if one != sink)), decisions
    for name in ("slots", "batches", "runs"):
        if getattr(config, name) > 1:
            yield replace(config, **{name: getattr(config, name) - 1}), decisions
    for fault in sorted(config.faults):
        yield replace(config, faults=config.faults - {fault}), decisions
    for name, plain in (("keep", 100), ("sweep_every_s", 10.0), ("deterministic", True), ("keep_ready", False)):
        if getattr(config, name) != plain:
            yield replace(config, **{name: plain}), decisions

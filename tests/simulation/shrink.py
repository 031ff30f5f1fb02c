"""Makes a failing schedule small: fewer decisions, lower ones, a smaller world, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.config import Config

Fails = Callable[[Config, Sequence[int]], bool]

MOST_TRIES = 6_000


class Shrinker:
    """Delta debugging of a list of numbers, of which 0 is the dullest, and of the world that they are taken in.

    Args:
        fails: Whether a schedule still fails in the same way.
        most_tries: After how many tries it has been enough.
    """

    def __init__(self, fails: Fails, most_tries: int = MOST_TRIES) -> None:
        self._fails = fails
        self._left = most_tries
        self._in_vain: set[tuple[Config, tuple[int, ...]]] = set()

    def shrink(self, config: Config, decisions: Sequence[int]) -> tuple[Config, list[int]]:
        """A local minimum: no single step makes it smaller and lets it fail still."""
        best = _trimmed(decisions)
        while self._left > 0:
            before = (config, best)
            config = self._smaller_world(config, best)
            for size in _sizes(len(best)):
                best = self._without(config, best, size)
                best = self._with_zeros(config, best, size)
            best = self._lower(config, best)
            if (config, best) == before:
                break
        return config, best

    def _try(self, config: Config, decisions: Sequence[int]) -> bool:
        # To take out one zero or its neighbour comes to the same, and most rounds try what the one before has tried.
        tried = (config, tuple(decisions))
        if self._left <= 0 or tried in self._in_vain:
            return False
        self._left -= 1
        if self._fails(config, decisions):
            return True
        self._in_vain.add(tried)
        return False

    def _smaller_world(self, config: Config, decisions: Sequence[int]) -> Config:
        for smaller in _smaller(config):
            if self._try(smaller, decisions):
                return self._smaller_world(smaller, decisions)
        return config

    def _without(self, config: Config, best: list[int], size: int) -> list[int]:
        place = 0
        while place < len(best):
            tried = _trimmed([*best[:place], *best[place + size :]])
            if self._try(config, tried):
                best = tried
            else:
                place += size
        return best

    def _with_zeros(self, config: Config, best: list[int], size: int) -> list[int]:
        for place in range(0, len(best), size):
            piece = best[place : place + size]
            if any(piece):
                tried = _trimmed([*best[:place], *([0] * len(piece)), *best[place + size :]])
                if self._try(config, tried):
                    best = tried
        return best

    def _lower(self, config: Config, best: list[int]) -> list[int]:
        place = 0
        while place < len(best):
            if best[place] > 1:
                tried = [*best[:place], best[place] - 1, *best[place + 1 :]]
                if self._try(config, tried):
                    best = tried
                    continue
            place += 1
        return best


def _sizes(length: int) -> Iterator[int]:
    size = max(1, length // 2)
    while size > 1:
        yield size
        size //= 2
    yield 1


def _trimmed(decisions: Sequence[int]) -> list[int]:
    """Without the zeros at the end: beyond it all decisions are 0 anyway."""
    kept = list(decisions)
    while kept and kept[-1] == 0:
        kept.pop()
    return kept


def _smaller(config: Config) -> Iterator[Config]:
    if len(config.sinks) > 1 and not config.letters:
        for sink in config.sinks:
            yield replace(config, sinks=tuple(one for one in config.sinks if one != sink))
    for name in ("slots", "batches", "runs"):
        if getattr(config, name) > 1:
            yield replace(config, **{name: getattr(config, name) - 1})
    for fault in sorted(config.faults):
        yield replace(config, faults=config.faults - {fault})
    if config.keep < 100:
        yield replace(config, keep=100)
    if config.sweep_every_s < 10.0:
        yield replace(config, sweep_every_s=10.0)
    if not config.deterministic:
        yield replace(config, deterministic=True)
    if config.keep_ready:
        yield replace(config, keep_ready=False)

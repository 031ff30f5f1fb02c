"""Runs many schedules, and minimizes one that fails."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from simulation import schedule
from simulation.config import FAMILIES, Config
from simulation.dice import Dice, Given, Noted
from simulation.mutants import Mutant
from simulation.product import replaced
from simulation.shrink import Shrinker

_COLLECT_EVERY = 25
_COLLECT_ALL_EVERY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The result of many schedules.

    Attributes:
        schedules: How many were run.
        requests: How often a party could have been stopped.
        failed: The first seed that failed; None if none did.
    """

    schedules: int
    requests: int
    failed: int | None


@contextmanager
def _collected_by_hand() -> Iterator[None]:
    """A schedule becomes garbage as a whole, and little else does, so collect only the newest generation."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def walk(seeds: Iterable[int], mutant: Mutant | None = None, *, family: str = "transactions") -> Count:
    """Runs the schedules of these seeds until one fails, for a family of worlds, or for the mutant's.

    A mutant's schedules are run only if a sink of its kinds takes part. The others are counted.
    """
    done, requests, failed = 0, 0, None
    drawn = FAMILIES[family if mutant is None else mutant.family]
    with replaced(), mutant.made() if mutant is not None else nullcontext(), _collected_by_hand():
        for seed in seeds:
            done += 1
            config = drawn(seed)
            if mutant is not None and not set(config.sinks) & set(mutant.kinds):
                continue
            outcome = schedule.run(config, Dice(seed))
            requests += outcome.requests
            if outcome.violation is not None:
                failed = seed
                break
            if done % _COLLECT_EVERY == 0:
                gc.collect(2 if done % _COLLECT_ALL_EVERY == 0 else 0)
    return Count(schedules=done, requests=requests, failed=failed)


def explain(
    seed: int, mutant: Mutant | None = None, *, family: str = "transactions", most_tries: int = 1_000
) -> schedule.Outcome:
    """Minimizes a seed's failing schedule, and describes it.

    Raises:
        ValueError: If it does not fail, or its decisions alone do not reproduce the failure.
    """
    noted, config = Noted(seed), FAMILIES[family if mutant is None else mutant.family](seed)
    with replaced(), mutant.made() if mutant is not None else nullcontext():
        violation = schedule.run(config, noted).violation

        def fails(config: Config, decisions: Sequence[int]) -> bool:
            return schedule.run(config, Given(decisions)).violation is violation

        if violation is None or not fails(config, noted.taken):
            raise ValueError(f"the schedule of seed {seed} does not fail, or does not fail again")
        smaller, kept = Shrinker(fails, most_tries).shrink(config, noted.taken)
        return schedule.run(smaller, Given(kept), tell=True)

"""Many schedules, and what to do with one that fails: make it small, write it down, play it again."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation import schedule
from simulation.config import FAMILIES, Config
from simulation.dice import Dice, Given
from simulation.mutants import EVERY_MUTANT, Mutant
from simulation.oracle import Violation
from simulation.product import replaced
from simulation.schedule import SYSTEMS, Outcome
from simulation.shrink import MOST_TRIES, Shrinker

DEARER_TRIES = 1_500
"""How often the shrinker tries, where a schedule takes several times as long."""

_COLLECT_EVERY = 25
_COLLECT_ALL_EVERY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A schedule that fails, as small as it could be made.

    Attributes:
        seed: Where it was found.
        family: The family of its world.
        mutant: The wrong rule that was in force; empty for the product as it is.
        violation: What happened.
        config: The world.
        decisions: All of them; those that follow are 0.
        told: What happened, in words.
        digest: Of what was told.
        first_length: How many decisions other than 0 the seed's schedule had.
    """

    seed: int
    family: str
    mutant: str
    violation: Violation
    config: Config
    decisions: tuple[int, ...]
    told: tuple[str, ...]
    digest: str
    first_length: int

    @property
    def length(self) -> int:
        """How many decisions are not the dullest ones."""
        return sum(1 for one in self.decisions if one)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "seed": self.seed,
            "family": self.family,
            "mutant": self.mutant,
            "violation": self.violation.name,
            "config": self.config.to_json(),
            "decisions": list(self.decisions),
            "first_length": self.first_length,
            "digest": self.digest,
            "told": list(self.told),
        }

    @classmethod
    def of_json(cls, plain: dict[str, Any]) -> Failure:
        """The inverse of `to_json`."""
        return cls(
            seed=plain["seed"],
            family=plain["family"],
            mutant=plain["mutant"],
            violation=Violation[plain["violation"]],
            config=Config.of_json(plain["config"]),
            decisions=tuple(plain["decisions"]),
            told=tuple(plain["told"]),
            digest=plain["digest"],
            first_length=plain["first_length"],
        )

    def write(self, folder: Path) -> Path:
        """Writes it down, and says where."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"schedule-{self.family}-{self.seed}.json"
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        return path


@contextmanager
def _world(mutant: Mutant | None) -> Iterator[Any]:
    with replaced(), mutant.built() if mutant is not None else nullcontext(SYSTEMS) as systems:
        yield systems


@contextmanager
def _collected_by_hand() -> Iterator[None]:
    """A schedule is garbage all at once, and little else is: it is looked for among the newest things."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What many schedules came to.

    Attributes:
        schedules: How many were run.
        requests: How often a party could have been stopped.
        failed: The seeds of those that failed.
    """

    schedules: int
    requests: int
    failed: tuple[int, ...]


def walk(
    seeds: Iterable[int], mutant: Mutant | None = None, *, family: str = "transactions", most_failures: int = 1
) -> Count:
    """Runs the schedules of these seeds, until so many have failed: of a family of worlds, or of the mutant's.

    A mutant's schedules are run only where a sink of its kinds takes part; the others are counted.
    """
    done, requests, failed = 0, 0, []
    drawn = FAMILIES[family if mutant is None else mutant.family]
    with _world(mutant) as systems, _collected_by_hand():
        for seed in seeds:
            done += 1
            config = drawn(seed)
            if mutant is not None and not set(config.sinks) & set(mutant.kinds):
                continue
            outcome = schedule.run(config, Dice(seed), systems=systems)
            requests += outcome.requests
            if outcome.violation is not None:
                failed.append(seed)
                if len(failed) >= most_failures:
                    break
            if done % _COLLECT_EVERY == 0:
                gc.collect(2 if done % _COLLECT_ALL_EVERY == 0 else 0)
    return Count(schedules=done, requests=requests, failed=tuple(failed))


def explain(
    seed: int, mutant: Mutant | None = None, *, family: str = "transactions", most_tries: int | None = None
) -> Failure:
    """Makes a seed's schedule, which fails, small."""
    family = family if mutant is None else mutant.family
    with _world(mutant) as systems:
        outcome, config, decisions = schedule.noted(seed, family, systems)
        violation = outcome.violation
        if violation is None:
            raise ValueError(f"the schedule of seed {seed} does not fail")

        def fails(config: Config, decisions: Sequence[int]) -> bool:
            return schedule.run(config, Given(decisions), systems=systems).violation is violation

        if fails(config, decisions):
            most_tries = most_tries or (MOST_TRIES if family == "transactions" else DEARER_TRIES)
            smaller, kept = Shrinker(fails, most_tries).shrink(config, decisions)
        else:
            raise RuntimeError(f"the schedule of seed {seed} does not fail again")
        told = schedule.run(smaller, Given(kept), tell=True, systems=systems)
    return Failure(
        seed=seed,
        family=family,
        mutant=mutant.name if mutant is not None else "",
        violation=violation,
        config=smaller,
        decisions=tuple(kept),
        told=told.told,
        digest=told.digest,
        first_length=sum(1 for one in decisions if one),
    )


def replay(failure: Failure) -> Outcome:
    """Plays it again."""
    mutant = next((one for one in EVERY_MUTANT if one.name == failure.mutant), None)
    with _world(mutant) as systems:
        return schedule.run(failure.config, Given(failure.decisions), tell=True, systems=systems)

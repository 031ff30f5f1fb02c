"""All faults: where each of them comes from and which lines it changes."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch

from mutants.operators import SOURCES, Fault, sites
from mutants.rules import RULES

GENERATED = {
    "driver/*.py": 20,
    "protocol/*.py": 18,
    "executor.py": 5,
    "spark/work.py": 3,
    "spark/classic.py": 3,
    "spark/exactly_once.py": 3,
    "spark/formats/*.py": 3,
    "spark/start/*.py": 6,
    "sinks/_shared/*.py": 5,
    "sinks/kafka/*.py": 22,
    "sinks/sql/*.py": 9,
    "sinks/sql/postgres/*.py": 9,
    "sinks/sql/mysql/*.py": 9,
    "sinks/redis/*.py": 9,
    "sparkonce_rabbitmq/sinks/*.py": 9,
    "sinks/files/*.py": 14,
    "sinks/write_ahead/*.py": 9,
    "storage/*.py": 14,
    "decision_log.py": 6,
    "operate/*.py": 9,
    "sinks/*/preflight.py": 5,
}
"""The number of faults to generate for each group of modules: those whose names have the smallest digests."""

NOT_IN = ("settings.py", "orphans.py", "sink.py", "progress.py", "stops.py")


@dataclass(frozen=True)
class Mutant:
    """A fault in the product.

    Attributes:
        source: ``generated``, ``rule``, or the harness that defines the fault.
        name: The name of the fault in its source.
        fault: The name for `Fault.of`. It is empty for faults of a model, which only their own harness runs.
    """

    source: str
    name: str
    fault: str = ""

    @property
    def places(self) -> list[tuple[str, range]]:
        """Lists the files and lines that it changes."""
        return [(one.file, one.lines) for one in Fault.of(self.fault)] if self.fault else []


def generated(known: Collection[str]) -> Iterator[Mutant]:
    """Yields the faults with these names whose code still exists; without names, all faults to choose from."""
    for name in sorted(known or _chosen(), key=_digest):
        with suppress(KeyError, OSError):
            Fault.of(name)
            yield Mutant("generated", name, name)


def _chosen() -> set[str]:
    chosen: set[str] = set()
    for pattern, number in GENERATED.items():
        found: set[str] = set()
        for file, path in ((path.relative_to(one).as_posix(), path) for one in SOURCES for path in one.rglob("*.py")):
            if fnmatch(file, pattern) and path.name not in NOT_IN:
                found.update(f"{file}:{end}" for end in sites(ast.parse(path.read_text())))
        chosen.update(sorted(found - chosen, key=_digest)[:number])
    return chosen


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def wrong_rules() -> Iterator[Mutant]:
    """Yields those that harnesses have in their lists, and all others of `rules.txt`."""
    from model.mutants import MUTANTS as OF_MODEL
    from simulation.mutants import MUTANTS as OF_SIMULATION
    from verifying.mutants import MUTANTS as OF_VERIFIER

    listed = [Mutant("model", one.name, one.rule) for one in OF_MODEL]
    listed += [Mutant("simulation", one.name, "" if one.patches else one.rule or one.name) for one in OF_SIMULATION]
    listed += [Mutant("verifier", name, one.rule) for name, one in OF_VERIFIER.items()]
    yield from listed
    used = {one.rule or one.name for one in OF_SIMULATION} | {one.fault for one in listed}
    yield from (Mutant("rule", name, name) for name in sorted(RULES.keys() - used))

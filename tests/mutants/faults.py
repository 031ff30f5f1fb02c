"""All faults: where each comes from, which lines it changes, and how it is made in this process."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

from mutants.named import NAMED
from mutants.operators import SOURCE, Fault, sites

GENERATED = {
    "driver/*.py": 20,
    "protocol/*.py": 18,
    "executor.py": 5,
    "spark/work.py": 3,
    "spark/exactly_once.py": 3,
    "spark/formats/*.py": 3,
    "spark/start/*.py": 6,
    "sinks/_shared/*.py": 5,
    "sinks/kafka/*.py": 22,
    "sinks/postgres/*.py": 9,
    "sinks/mysql/*.py": 9,
    "sinks/redis/*.py": 9,
    "sinks/rabbitmq/*.py": 9,
    "sinks/files/*.py": 14,
    "sinks/write_ahead/*.py": 9,
    "checkpoint/*.py": 14,
    "log/*.py": 6,
    "operate/*.py": 9,
    "sinks/*/preflight.py": 5,
}
"""How many faults are made in which modules. The chosen ones are those whose names have the smallest digests."""

NOT_IN = ("settings.py", "orphans.py", "sink.py", "other_queries.py", "progress.py", "stops.py", "oauth_tokens.py")


@dataclass(frozen=True)
class Mutant:
    """A fault of the product.

    Attributes:
        source: Who made it: ``generated``, ``named``, or the harness that has it.
        name: Its name there.
        places: The files, below ``src/sparkonce``, and lines that it changes; empty if its own harness alone has it.
        apply: Makes it, before (``generated``, ``named``) or after (others) the product is imported.
    """

    source: str
    name: str
    places: tuple[tuple[str, range], ...]
    apply: Callable[[], None] | None = None


def generated(known: Collection[str]) -> Iterator[Mutant]:
    """Yields the faults of these names, as far as the source still has their sites; without names those to choose."""
    for name in sorted(known or _chosen(), key=_digest):
        with suppress(KeyError, OSError):
            fault = Fault.of_site(name)
            yield Mutant("generated", name, ((fault.file, fault.lines),), fault.apply)


def _chosen() -> set[str]:
    chosen: set[str] = set()
    for pattern, number in GENERATED.items():
        found: set[str] = set()
        for path in SOURCE.rglob("*.py"):
            file = path.relative_to(SOURCE).as_posix()
            if fnmatch(file, pattern) and path.name not in NOT_IN:
                found.update(f"{file}:{end}" for end in sites(ast.parse(path.read_text())))
        chosen.update(sorted(found - chosen, key=_digest)[:number])
    return chosen


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def named() -> Iterator[Mutant]:
    """Yields those that are written down as replacements, as far as the source still has what they replace."""
    for one in NAMED:
        with suppress(KeyError):
            fault = Fault.of_text(*one)
            yield Mutant("named", fault.name, ((fault.file, fault.lines),), fault.apply)


def patched() -> Iterator[Mutant]:
    """Yields the wrong rules of model and simulation. Those that replace parts of a model are their own harness's."""
    from model.mutants import MUTANTS as RULES
    from model.world import Model
    from simulation.campaign import EVERY_MUTANT
    from sparkonce.protocol import coordinator

    wrong: list[tuple[str, Any, bool]] = [("model", one, one.model is Model) for one in RULES]
    wrong += [("simulation", one, not one.systems) for one in EVERY_MUTANT]
    for source, one, is_whole in wrong:
        patches = [
            (import_module(f"sparkonce.{owner}") if isinstance(owner, str) else owner, *rest)
            for owner, *rest in one.patches
        ]
        places = [_place(inspect.getattr_static(owner, name, None), owner) for owner, name, _ in patches]
        places += [
            _place(coordinator.TRANSITIONS[key], coordinator) for key in one.table if key in coordinator.TRANSITIONS
        ]
        known = [place for place in places if place is not None]

        def apply(patches: list[Any] = patches, table: Any = one.table) -> None:
            coordinator.TRANSITIONS = {**coordinator.TRANSITIONS, **table}
            for owner, name, value in patches:
                setattr(owner, name, value)

        is_product = is_whole and known and len(known) == len(places)
        yield Mutant(source, one.name, tuple(known) if is_product else (), apply)


def injured(name: str = "") -> Iterator[Mutant]:
    """Yields the verifier's, which patch the product themselves: what they change is found by making them."""
    from verifying.mutants import MUTANTS

    if name:
        yield Mutant("verifier", name, (), MUTANTS[name].injure)
        return
    for path in [one for folder in ("driver", "log", "sinks", "spark") for one in (SOURCE / folder).rglob("[!_]*.py")]:
        import_module(".".join(["sparkonce", *path.relative_to(SOURCE).with_suffix("").parts]))
    for name, one in MUTANTS.items():
        before = _attributes()
        one.injure()
        after = _attributes()
        changed = {key: value for key, value in before.items() if after[key] is not value}
        replaced = []
        for (owner, attribute), value in changed.items():
            if isinstance(value, dict):  # the coordinator's table
                replaced += [(value[key], None) for key in value if after[owner, attribute].get(key) is not value[key]]
            elif callable(getattr(value, "__func__", value)):
                replaced.append((value, owner))
            setattr(owner, attribute, value)
        places = [_place(value, owner) for value, owner in replaced]
        yield Mutant("verifier", name, tuple(place for place in places if place is not None), one.injure)


def _attributes() -> dict[tuple[Any, str], Any]:
    """Returns everything that the product's modules and their classes have."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("sparkonce.")]
    classes = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    owners = [*modules, *(one for one in classes if one.__module__.startswith("sparkonce."))]
    return {(owner, name): value for owner in owners for name, value in list(vars(owner).items())}


def _place(replaced: object, owner: Any) -> tuple[str, range] | None:
    """Returns where something of the product is defined; a value stands in its owner's module."""
    function = getattr(replaced, "__func__", replaced)
    for one in (function, owner):
        with suppress(TypeError, OSError):
            lines, first = inspect.getsourcelines(one)
            path = Path(inspect.getsourcefile(one) or "").resolve()
            if path.is_relative_to(SOURCE):
                return path.relative_to(SOURCE).as_posix(), range(
                    first + 1 if one is function else 1, first + len(lines)
                )
            return None
    return None


def find(source: str, name: str) -> Mutant:
    """Returns a mutant by its name. Imports the product only if its source does."""
    if source == "generated":
        fault = Fault.of_site(name)
        return Mutant(source, name, ((fault.file, fault.lines),), fault.apply)
    every = {"named": named, "verifier": lambda: injured(name)}.get(source, patched)
    return next(one for one in every() if (one.source, one.name) == (source, name))

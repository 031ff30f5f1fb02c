"""Chooses the tests that a run takes: all of them, or of each drawn group only those that a seed draws.

``pytest --draw=SEED`` is the first tier, which ``python3 dev.py test`` runs with the commit as the seed. A test without
the marker ``drawn`` is in every run. Of a group of tests that have it, ``drawn(n)`` or ``drawn(n, "its name")``, n are
drawn; without a name the group is the test function. ``--draw=SEED --all`` is the second tier: it draws from the groups
in `IN_ALL` only. Without ``--draw`` nothing is left out.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

AT_MOST_IN_RUNS = 12
"""A group draws at least one test in so many: each of them then comes up within some tens of runs."""

IN_ALL = {
    "a plan with a state store": 8,
    "an example's plan": 5,
    "a Spark of its own": 16,
    "the verifier": 3,
    "test_schedules.py::test_no_schedule_doubles_or_loses_a_row": 4,
    "worlds": 3,
    "injuries": 31,
    "delta conformance": 23,
    "iceberg conformance": 23,
}
"""How many the second tier draws from the dearest groups, a half or so. It runs all tests of the others."""

_COUNTS = "sparkonce_drawn"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", metavar="SEED", help="of each drawn group of tests run only those that SEED draws")
    parser.addoption("--all", action="store_true", help="with --draw, draw from the dearest groups only, and more")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "drawn(n, group): with --draw, n tests of the group are run, drawn by the seed")
    if config.getoption("--draw"):
        config.pluginmanager.register(_Counted(config), "sparkonce-drawn")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Comes last, so that what ``-m`` and ``-k`` leave out is in no group."""
    seed = config.getoption("--draw")
    if not seed:
        return
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for item in items:
        if (mark := item.get_closest_marker("drawn")) is not None:
            group = _group(item, *mark.args)
            groups[group].append(item)
            sizes[group] = mark.args[0]
    if config.getoption("--all"):
        groups = {group: members for group, members in groups.items() if group in IN_ALL}
        sizes = IN_ALL
    left_out: set[pytest.Item] = set()
    for group, members in groups.items():
        if sizes[group] * AT_MOST_IN_RUNS < len(members):
            raise pytest.UsageError(
                f"{group}: drawn({sizes[group]}) of {len(members)} tests, fewer than one in {AT_MOST_IN_RUNS}. "
                f"Draw {-(-len(members) // AT_MOST_IN_RUNS)} or more."
            )
        left_out.update(sorted(members, key=lambda item: rank(seed, _key(item)))[sizes[group] :])
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    drawable = sum(map(len, groups.values()))
    _note(config, {"groups": len(groups), "drawable": drawable, "drawn": drawable - len(left_out)})


@dataclass(frozen=True, slots=True)
class Proved:
    """Remembers that all tests of some files were green, which holds as long as nothing in them changes.

    Attributes:
        kept: The file that says for which they were when all tests of this were green. It is committed.
        files: They, and the tests.
        also: What else it depends on, such as a version.
    """

    kept: Path
    files: tuple[Path, ...]
    also: str = ""

    def digest(self) -> str:
        """Returns what tells these files from others."""
        found = hashlib.sha256(self.also.encode())
        for file in sorted(self.files):
            found.update(hashlib.sha256(file.read_bytes()).digest())
        return found.hexdigest()

    def drawn(self, n: int, group: str) -> list[pytest.MarkDecorator]:
        """Returns the mark of its tests: drawn as long as nothing has changed, none when they all have to run."""
        same = self.kept.exists() and self.kept.read_text().strip() == self.digest()
        return [pytest.mark.drawn(n, group)] if same else []

    def prove(self, *arguments: str) -> int:
        """Runs all its tests by pytest, and keeps the digest if they are green. Returns pytest's exit code."""
        now = self.digest()
        self.kept.unlink(missing_ok=True)
        code = subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode
        if code == 0:
            self.kept.write_text(f"{now}\n")
        return code


def rank(seed: str, key: str) -> bytes:
    """Returns where a test stands in the order in which a seed draws."""
    return hashlib.sha256(f"{seed}\n{key}".encode()).digest()


def _group(item: pytest.Item, _: int, name: str = "") -> str:
    return name or f"{item.path.name}::{getattr(item, 'originalname', item.name)}"


def _key(item: pytest.Item) -> str:
    """Names a test in the same way in every process: xdist adds the group to a node's id."""
    return f"{item.path.name}::{item.name}"


def _note(config: pytest.Config, counts: dict[str, int]) -> None:
    if hasattr(config, "workeroutput"):
        config.workeroutput[_COUNTS] = counts
    else:
        config.stash[_DRAWN] = counts


_DRAWN = pytest.StashKey[dict[str, int]]()


class _Counted:
    """Says what was drawn, in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes the count of a worker of xdist; all of them count the same."""
        if counts := getattr(node, "workeroutput", {}).get(_COUNTS):
            self._config.stash[_DRAWN] = counts

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        seed, counts = self._config.getoption("--draw"), self._config.stash.get(_DRAWN, None)
        if counts is not None:
            again, more = ("--all ", "--long") if self._config.getoption("--all") else ("", "--all")
            terminalreporter.write_line(
                f"drawn by {seed}: {counts['drawn']} of {counts['drawable']} tests in {counts['groups']} groups. "
                f"The same again: python3 dev.py test {again}--draw {seed}. More: python3 dev.py test {more}."
            )

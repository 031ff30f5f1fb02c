"""The product's files, each read and parsed once for all rules, and how a rule names the lines that break it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "sparkonce"
MODULES = sorted(SOURCE.rglob("*.py"))
assert MODULES, f"no module below {SOURCE}"

Found = list[tuple[int, str]]
"""Lines of one file, and what is wrong there."""


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), str(path))


@cache
def nodes(source: ast.AST) -> tuple[ast.AST, ...]:
    """Everything in a tree, in the order of ``ast.walk``: a dozen rules want it."""
    return tuple(ast.walk(source))


def lines(path: Path, found: Iterable[tuple[int, str]]) -> list[str]:
    """Each with its file, as an editor opens it."""
    return [f"{path.relative_to(ROOT)}:{line}: {wrong}" for line, wrong in found]


def offenders(paths: Iterable[Path], check: Callable[[Path], Found]) -> Iterator[str]:
    """Returns what a check finds in each of these files."""
    return (one for path in paths for one in lines(path, check(path)))


def nobody(does: Iterable[str], otherwise: str) -> None:
    """Fails with every offender, one a line, and with what is to be done about them."""
    found = list(does)
    assert not found, "\n".join([f"{len(found)} of them; {otherwise}", *found])

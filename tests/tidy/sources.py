"""The product's files, each read and parsed once for all rules, and how a rule names the lines that break it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "sparkonce"
DISTRIBUTIONS = [ROOT, *sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))]
SOURCES = [package for one in DISTRIBUTIONS for package in sorted((one / "src").iterdir()) if package.is_dir()]
MODULES = sorted(path for source in SOURCES for path in source.rglob("*.py"))
assert len(DISTRIBUTIONS) == len(SOURCES) > 1, SOURCES


def name(path: Path) -> str:
    """The path inside sparkonce, or for another package, the path including the package."""
    return path.relative_to(SOURCE if path.is_relative_to(SOURCE) else home(path).parent).as_posix()


def home(path: Path) -> Path:
    """The folder of the package that a module belongs to."""
    return next(one for one in SOURCES if path.is_relative_to(one))


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), str(path))


@cache
def nodes(source: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(source))


def nobody(does: Iterable[str], otherwise: str) -> None:
    """Fails if there are any findings, and lists them, one per line, with what to do about them."""
    found = list(does)
    assert not found, "\n".join([f"{len(found)} of them; {otherwise}", *found])

"""Scripts that no test runs, such as benchmarks, still find what they import of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tidy.sources import ROOT, Found, nobody, nodes, offenders, tree

ROOTS = (ROOT / "src", ROOT / "tests", ROOT / "examples", ROOT)
"""Where an import of ours may begin, in this order."""
FILES = sorted(path for name in ("tests", "examples", "benchmarks") for path in (ROOT / name).rglob("*.py"))
SCRIPTS = [path for path in FILES if not path.name.startswith("test_")]  # mypy and pytest look at the others


def found(module: str) -> Path | None:
    """Returns our file of a module; None for somebody else's."""
    parts = module.split(".")
    for root in ROOTS:
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return path
    return None


@cache
def names(path: Path) -> frozenset[str]:
    """Returns what a module defines, imports and contains."""
    inside = {one.stem for one in path.parent.iterdir()} if path.name == "__init__.py" else set[str]()
    return frozenset(inside.union(*map(bound, nodes(tree(path)))))


def bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]


def missing(path: Path) -> Found:
    return [
        (node.lineno, f"{node.module} has no {one.name}")
        for node in nodes(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and (file := found(node.module))
        for one in node.names
        if one.name not in names(file)
    ]


def test_what_is_imported_is_there() -> None:
    nobody(offenders(SCRIPTS, missing), "import it from where it is now")

"""Every package's docstring is a map: it names each room of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidy.sources import MODULES, SOURCE, nobody, tree

PACKAGES = [path.parent for path in MODULES if path.name == "__init__.py" and path.parent != SOURCE]
"""All but the library itself, whose docstring names what users import."""


def rooms(package: Path) -> set[str]:
    """Returns the names of a package's modules and sub-packages, without private ones."""
    modules = {path.stem for path in package.glob("*.py")}
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    return {name for name in modules | packages if not name.startswith("_")}


def unnamed(docstring: str | None, names: set[str]) -> list[str]:
    return sorted(names - set(re.findall(r"``([\w.]+)``", docstring or "")))


def gaps() -> Iterator[str]:
    for package in PACKAGES:
        docstring = ast.get_docstring(tree(package / "__init__.py"))
        if missing := unnamed(docstring, rooms(package)):
            yield f"{package.relative_to(SOURCE)}/__init__.py: {', '.join(missing)}"


def test_each_package_names_its_rooms() -> None:
    nobody(gaps(), "give each module and sub-package a line in the package's docstring, its name in double backticks")


@pytest.mark.parametrize(
    ("docstring", "missing"),
    [(None, ["a", "b"]), ("``a`` is one.", ["b"]), ("`a` and b.", ["a", "b"]), ("``a``, ``b``: two.", [])],
)
def test_a_room_that_is_not_named_is_found(docstring: str | None, missing: list[str]) -> None:
    assert unnamed(docstring, {"a", "b"}) == missing


def test_the_rooms_are_seen(tmp_path: Path) -> None:
    for name in ("__init__.py", "one.py", "_own.py", "two/__init__.py", "data/page.css"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    assert rooms(tmp_path) == {"one", "two"}

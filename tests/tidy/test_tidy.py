"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "sparkonce"
MODULES = sorted(SOURCE.rglob("*.py"))

MOST_LINES = 400
LONGER_WITH_REASON = {
    "protocol/coordinator.py": "one table and its handlers, read from top to bottom",
    "driver/run.py": "one method for each effect of the coordinator",
}
MAY_PRINT = ("cli", "demo")
MAY_RAISE_ASSERTIONS = ("testing",)

PURE = SOURCE / "protocol"
NOT_PURE = {"time", "random", "os", "socket", "threading", "uuid", "secrets", "datetime", "pathlib", "logging"}

ALIEN = re.compile(r"artifactory|nexus|jfrog|https?://(?!pypi\.org/)[^\s\"']*/simple\b", re.IGNORECASE)
"""Package hosts other than the public one: which is used belongs to the machine, never to the project."""


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def calls(path: Path, *wanted: str) -> list[int]:
    """Lines on which one of these functions is called by its bare name."""
    return [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted
    ]


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    if name(path) in LONGER_WITH_REASON:
        assert lines > MOST_LINES, "it is short now: take it off the list"
    else:
        assert lines <= MOST_LINES, "split it, or say above why it is better whole"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(tree(path))


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.relative_to(SOURCE).parts[0] not in MAY_PRINT], ids=name
)
def test_a_library_does_not_print(path: Path) -> None:
    assert calls(path, "print", "input", "breakpoint") == []


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.relative_to(SOURCE).parts[0] not in MAY_RAISE_ASSERTIONS], ids=name
)
def test_guards_are_errors_and_no_assertions(path: Path) -> None:
    """``python -O`` drops assertions."""
    found = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
    assert found == []
    assert "AssertionError" not in path.read_text()


@pytest.mark.parametrize("path", sorted(PURE.rglob("*.py")), ids=name)
def test_the_protocol_is_pure(path: Path) -> None:
    """No clock, no randomness, no I/O: the same events give the same effects."""
    assert set(imports(path)) & NOT_PURE == set()
    assert calls(path, "open", "print", "input") == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text()) == []


def test_no_file_names_a_package_host() -> None:
    """The locks must not either."""
    checked = [path for path in texts() if path != Path(__file__).resolve()]
    assert ROOT / "pyproject.toml" in checked
    assert [path.relative_to(ROOT).as_posix() for path in checked if ALIEN.search(path.read_text())] == []


def test_every_test_is_found() -> None:
    """A file or class whose name pytest does not know is never run."""
    stray = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not path.name.startswith("test_")
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert stray == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: path.stem)
def test_no_test_hides_another_of_the_same_name(path: Path) -> None:
    names = [node.name for node in tree(path).body if isinstance(node, ast.FunctionDef)]
    assert sorted({one for one in names if names.count(one) > 1}) == []


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def texts() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".lock", ".cfg", ".txt"}
    folders = [SOURCE, ROOT / "tests", ROOT / "docs", ROOT / "examples", ROOT / "benchmarks", ROOT / ".ci"]
    inside = [path for folder in folders if folder.exists() for path in folder.rglob("*") if path.suffix in kinds]
    return sorted({*inside, *(path for path in ROOT.iterdir() if path.suffix in kinds)})

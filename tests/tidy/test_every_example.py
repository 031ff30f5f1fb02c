"""The page of all examples: each command is there to be run, and runs where the page says so."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from page_of_examples import PAGE, ROWS
from tidy.sources import ROOT


@cache
def functions(path: Path) -> dict[str, bool]:
    """Returns the names of a file's tests, and whether each is only among the long ones."""
    return {
        node.name: any("slow" in ast.unparse(one) for one in node.decorator_list)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    }


def missing(command: str) -> Iterator[str]:
    """Yields what a command names and is not there."""
    first, second, *words = shlex.split(command)
    if (first, second) != ("python3", "dev.py"):
        yield f"{first} {second} is no command of a clone"
    elif words[0] == "example":
        program = ROOT / "examples" / f"{words[1]}.py"
        if not program.exists() or "typer.run(" not in program.read_text():
            yield words[1]
    elif words[:2] == ["run", "python"]:
        yield from (path for path in words[2:3] if not (ROOT / path).exists())
    elif words[:2] == ["run", "pytest"]:
        yield from missing_tests(words[2:])
    else:
        yield " ".join(words)


def missing_tests(words: list[str]) -> Iterator[str]:
    """Yields paths and names of tests that are not there."""
    wanted = words[words.index("-k") + 1].split(" or ") if "-k" in words else []
    paths = [ROOT / one for one in (words[: words.index("-k")] if wanted else words)]
    yield from (str(path) for path in paths if not path.exists())
    names = [name for path in paths if path.exists() for name in functions(path)]
    yield from (one for one in wanted if not any(one in name for name in names))


def test_the_page_has_the_examples() -> None:
    assert len(ROWS) == PAGE.read_text().count("`python3 dev.py ") > 20


@pytest.mark.parametrize(("command", "who"), ROWS)
def test_a_command_names_what_is_there(command: str, who: str) -> None:
    assert not list(missing(command))


@pytest.mark.parametrize(("command", "who"), [row for row in ROWS if "CI" in row[1] and " -k " in row[0]])
def test_what_ci_runs_is_not_only_among_the_long_tests(command: str, who: str) -> None:
    words = shlex.split(command)
    wanted = words[words.index("-k") + 1].split(" or ")
    found = [slow for name, slow in functions(ROOT / words[4]).items() if any(one in name for one in wanted)]
    assert not all(found)


def test_a_command_that_is_nowhere_is_found() -> None:
    assert list(missing("python3 dev.py example nothing")) == ["nothing"]
    assert list(missing("python3 dev.py run pytest tests/unit/test_cli.py -k nowhere")) == ["nowhere"]
    assert len(list(missing("python3 dev.py run pytest tests/unit/test_nothing.py"))) == 1

"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tidy.sources import MODULES, ROOT, SOURCE, Found, lines, nobody, nodes, offenders, text, tree

MOST_LINES = 400
MAY_PRINT = ("cli",)
MAY_RAISE_ASSERTIONS = ("testing",)

PURE = SOURCE / "protocol"
NOT_PURE = {"time", "random", "os", "socket", "threading", "uuid", "secrets", "datetime", "pathlib", "logging"}

ALIEN = re.compile(r"artifactory|nexus|jfrog|https?://(?!pypi\.org/)[^\s\"']*/simple\b", re.IGNORECASE)
"""Package hosts other than the public one: which is used belongs to the machine, never to the project."""


def calls(path: Path, *wanted: str) -> Found:
    """Finds where one of these functions is called by its bare name."""
    return [
        (node.lineno, f"{node.func.id}()")
        for node in nodes(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted
    ]


def words(path: Path, pattern: re.Pattern[str]) -> Found:
    """Every place in the text, comments too."""
    return [
        (number, match[0]) for number, line in enumerate(text(path).splitlines(), 1) for match in pattern.finditer(line)
    ]


def outside(*folders: str) -> list[Path]:
    return [path for path in MODULES if path.relative_to(SOURCE).parts[0] not in folders]


def of_another_length() -> Iterator[str]:
    for path in MODULES:
        length = len(text(path).splitlines())
        if length > MOST_LINES:
            yield from lines(path, [(length, f"{length} lines")])


def test_modules_are_short() -> None:
    nobody(of_another_length(), f"split what is over {MOST_LINES} lines")


def test_modules_say_what_they_are() -> None:
    def silent(path: Path) -> Found:
        return [] if ast.get_docstring(tree(path)) else [(1, "no docstring")]

    nobody(offenders(MODULES, silent), "say it in the first lines")


def test_a_library_does_not_print() -> None:
    nobody(offenders(outside(*MAY_PRINT), lambda path: calls(path, "print", "input", "breakpoint")), "raise, or log")


def test_guards_are_errors_and_no_assertions() -> None:
    """``python -O`` drops assertions."""

    def found(path: Path) -> Found:
        statements = [(node.lineno, "assert") for node in nodes(tree(path)) if isinstance(node, ast.Assert)]
        return statements + words(path, re.compile("AssertionError"))

    nobody(offenders(outside(*MAY_RAISE_ASSERTIONS), found), "raise an error of sparkonce.errors")


def test_the_protocol_is_pure() -> None:
    """No clock, no randomness, no I/O: the same events give the same effects."""
    paths = sorted(PURE.rglob("*.py"))
    assert paths

    def found(path: Path) -> Found:
        return [(line, f"imports {one}") for line, one in imports(path) if one in NOT_PURE] + calls(
            path, "open", "print", "input"
        )

    nobody(offenders(paths, found), "let an event bring it, or an effect ask for it")


def test_what_a_start_refuses_says_what_to_do_next() -> None:
    """What stops a batch may have nothing to say but what happened."""
    kinds = {"ConfigurationError", "SchemaError", "PreflightError"}

    def silent(path: Path) -> Found:
        made = [node for node in nodes(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        return [
            (node.lineno, node.func.id)
            for node in made
            if isinstance(node.func, ast.Name) and node.func.id in kinds
            if "next_step" not in {keyword.arg for keyword in node.keywords}
        ]

    nobody(offenders(outside("testing"), silent), "say it as next_step=")


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
    nobody(offenders(MODULES, lambda path: words(path, later)), "do it, or leave it")


def test_no_file_names_a_package_host() -> None:
    """The locks must not either."""
    checked = [path for path in texts() if path != Path(__file__).resolve()]
    assert ROOT / "pyproject.toml" in checked
    nobody(offenders(checked, lambda path: words(path, ALIEN)), "the machine says which host it is")


def test_every_test_is_found() -> None:
    """A file or class whose name pytest does not know is never run."""

    def stray(path: Path) -> Found:
        made = [node for node in tree(path).body if isinstance(node, ast.FunctionDef)]
        return [(node.lineno, node.name) for node in made if node.name.startswith("test_")]

    elsewhere = (path for path in sorted((ROOT / "tests").rglob("*.py")) if not path.name.startswith("test_"))
    nobody(offenders(elsewhere, stray), "put it into a file whose name begins with test_")


def test_no_test_hides_another_of_the_same_name() -> None:
    def hidden(path: Path) -> Found:
        made = [node for node in tree(path).body if isinstance(node, ast.FunctionDef)]
        twice = Counter(node.name for node in made)
        return [(node.lineno, node.name) for node in made if twice[node.name] > 1]

    nobody(offenders(sorted((ROOT / "tests").rglob("test_*.py")), hidden), "give each a name of its own")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module.split(".")[0]


def texts() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".lock", ".cfg", ".txt"}
    folders = [SOURCE, ROOT / "tests", ROOT / "docs", ROOT / "examples", ROOT / "benchmarks", ROOT / ".ci"]
    inside = [path for folder in folders if folder.exists() for path in folder.rglob("*") if path.suffix in kinds]
    return sorted({*inside, *(path for path in ROOT.iterdir() if path.suffix in kinds)})


ONE_NAME_IN_EACH_SYSTEM = {
    "Column", "Connection", "DirectWriter", "Finisher", "PreflightRequest", "Table", "Transaction",
}  # fmt: skip
"""Names for the same part of several systems: each system has its own."""
SEEN_TWICE = {
    "Batch": "the coordinator's, and the report's view of one",
    "Driver": "the verifier's process, and the report's view of one",
    "Finished": "an answer about a handle, and the event that brings all of them",
    "Kind": "a finding's, which is public, and a recorded event's",
    "Step": "a schedule's, and the report's view of one",
    "_Reader": "a private reader of each harness",
}


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    told = ONE_NAME_IN_EACH_SYSTEM | set(SEEN_TWICE)
    nobody((f"{name}: {', '.join(twice[name])}" for name in sorted(twice.keys() - told)), "give each its own name")
    assert told <= twice.keys(), "these have one home now: take them off the list"

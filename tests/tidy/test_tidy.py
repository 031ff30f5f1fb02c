"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from mutants.operators import RULES, Fault
from tidy.sources import MODULES, ROOT, name, nodes, text, tree


def test_modules_are_short_enough_to_read_in_one_sitting():
    most_lines = 800
    lengths = {str(path.relative_to(ROOT)): text(path).count("\n") for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > most_lines} == {}


def test_an_error_that_refuses_a_start_names_the_next_step():
    needs_a_next_step = {"ConfigurationError", "SchemaError", "PreflightError"}
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if not name(path).startswith(("testing/", "sparkonce_lab/"))
        for node in nodes(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in needs_a_next_step
        if "next_step" not in {keyword.arg for keyword in node.keywords}
    ]
    assert silent == []


def test_a_class_name_has_one_meaning():
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name(path))
    assert {one: found for one, found in homes.items() if len(found) > 1} == {}


def test_no_file_names_a_package_host():
    """The package index is a setting of the machine, never of the project, not even of the lock file."""

    def project_files() -> Iterator[Path]:
        kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".lock", ".cfg", ".txt"}
        yield from (path for path in ROOT.iterdir() if path.suffix in kinds)
        for folder in ("src", "packages", "tests", "docs", "examples", "benchmarks", ".ci"):
            yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in kinds)

    package_host = re.compile(r"artifactory|nexus|jfrog|https?://(?!pypi\.org/)[^\s\"']*/simple\b", re.IGNORECASE)
    named = [str(path.relative_to(ROOT)) for path in project_files() if package_host.search(path.read_text())]
    assert named == [str(Path(__file__).relative_to(ROOT))]


def test_every_wrong_rule_still_finds_the_code_that_it_changes():
    """Only some of them run in the first tier."""
    assert [fault.source() for name in RULES for fault in Fault.of(name)]


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_scripts_that_no_test_runs_find_what_they_import(folder):
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module} has no {alias.name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in nodes(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sparkonce")
        for alias in node.names
        if not hasattr(import_module(str(node.module)), alias.name)
    ]
    assert missing == []


FOREIGN = re.compile(
    r"\b(as it has to|as it looks|asked again|beside the others|begun anew|comes? late|copies that lost|deposed"
    r"|(is|are|was|were) (away|said|told)|looked at again|made again|stands? still|went back|without a word)\b"
)
"""Words that no native speaker would use here."""


def test_pages_are_in_plain_english():
    def foreign_words() -> Iterator[str]:
        for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"):
            prose = re.sub(r"^ *```.*?^ *```$|`[^`\n]+`", "", page.read_text(), flags=re.M | re.S)
            unquoted = re.sub(r'"[^"]*"', "", " ".join(prose.split()))
            for found in FOREIGN.finditer(unquoted):
                yield f"{page.relative_to(ROOT)}: {found[0]}"

    messages = "docs/mistakes.md: "  # which the tests write
    assert [one for one in foreign_words() if not one.startswith(messages)] == []


def test_docstrings_and_comments_are_in_plain_english():
    def foreign_words() -> Iterator[str]:
        for path in (one for top in ("src", "packages", "tests") for one in sorted((ROOT / top).rglob("*.py"))):
            with path.open("rb") as file:
                for token in tokenize.tokenize(file.readline):
                    if token.type == tokenize.COMMENT or token.line.lstrip().startswith('"""'):
                        prose = re.sub(r'`[^`]+`|"[^"]+"', "", token.string.strip('"')).replace("told", "")
                        for found in (*FOREIGN.finditer(prose), *re.finditer(r"\b(any more|made anew)\b", prose)):
                            yield f"{path.relative_to(ROOT)}:{token.start[0]}: {found[0]}"

    assert list(foreign_words()) == []


def test_messages_are_in_plain_english():
    found = []
    for path in MODULES:
        docstrings = [node.value for node in nodes(tree(path)) if isinstance(node, ast.Expr)]
        for node in nodes(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                found += [f"{name(path)}:{node.lineno}: {one[0]}" for one in FOREIGN.finditer(node.value)]
    assert found == []

"""Checks that the table of mutants only names rules that match the source, and tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from mutants.operators import Fault
from mutants.rules import RULES
from mutants.table import read

ROOT = Path(__file__).parents[2]


def test_the_text_that_a_wrong_rule_replaces_stands_in_the_source() -> None:
    assert all(Fault.of(name) for name in RULES)


def test_the_tests_in_the_table_of_mutants_are_there() -> None:
    @cache
    def functions(file: str) -> set[str]:
        path = ROOT / file
        if not path.exists():
            return set()
        return {one.name for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef)}

    named = {test.partition("[")[0] for row in read().values() for test in (row["test"], row["own"]) if test}
    for test in sorted(named):
        file, *_, function = test.split("::")
        assert function in functions(file), f"{test} is gone: rename it in tests/mutants/table.csv too"

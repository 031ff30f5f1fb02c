"""docs/explain.md lists every verdict that a test proves, in the words of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("sinks", "kafka", "files", "tables", "engine")


def proofs() -> Iterator[dict[str, str]]:
    for name in MODULES:
        module = import_module(f"spark.test_explain_{name}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", ()) if callable(test) else ():
                yield from marked(mark)


def marked(mark: Any) -> Iterator[dict[str, str]]:
    if mark.name == "proves":
        yield mark.kwargs
    elif mark.name == "parametrize":
        for case in mark.args[1]:
            yield from (each.kwargs for each in getattr(case, "marks", ()) if each.name == "proves")


def test_the_docs_list_every_proof() -> None:
    rows = [f"| {one['query']} | {one['verdict']} | {one['injury']} | {one['seen']} |" for one in proofs()]
    assert len(rows) >= 25
    text = (ROOT / "docs" / "explain.md").read_text()
    table = [line for line in text.splitlines() if line.count("|") == 5 and line in rows]
    assert table == rows, "the table in docs/explain.md is to be:\n" + "\n".join(rows)

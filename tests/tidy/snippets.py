"""The code blocks of the README and the docs, each as a program that imports what earlier blocks of its page define."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tidy.sources import ROOT

PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "SECURITY", "CHANGELOG", "CONTRIBUTING", "tests/README")),
    *sorted((ROOT / "docs").glob("*.md")),
]
DOCSTRINGS = [
    path
    for folder in ("src", *(f"packages/{name}/src" for name in ("sparkonce-rabbitmq", "sparkonce-pravega")))
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "```python" in path.read_text("utf-8")
]
"""The modules whose docstrings have examples."""

GIVEN = """
from typing import Any

from pyspark.sql import DataFrame, SparkSession

spark: SparkSession
df: DataFrame
counts: DataFrame
orders: DataFrame
records: DataFrame
rows: DataFrame
totals: DataFrame
query: Any
sink: Any
password: str
target: Any
MyServer: Any
MySink: Any
ask: Any
create_empty_table: Any
post: Any
"""
"""What readers are assumed to have already: a session, streaming DataFrames and their own server."""

HEADER = (
    "# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, check-untyped-defs, implicit-reexport, "
    "allow-untyped-globals, no-warn-return-any, no-warn-unreachable, "
    'disable-error-code="import-not-found, import-untyped, misc, union-attr"'
)
LINES_BEFORE = 2
"""The number of lines before those of the block in a program: `HEADER` and the imports."""

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: The file that contains the block.
        line: The number of its first line of code.
        language: The language after the opening fence. ``""`` means shell commands or output of a program.
        text: The code.
    """

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def module(self) -> str:
        return re.sub(r"\W", "_", self.where)

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.where)


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Returns all blocks of a page. A block with diff markers yields two: the old version and the new one."""
    return tuple(one for found in _BLOCK.finditer(page.read_text()) for one in _sides(page, found))


def _sides(page: Path, found: re.Match[str]) -> Iterator[Block]:
    line = found.string.count("\n", 0, found.start()) + 2
    block = Block(page, line, found["language"], textwrap.dedent(found["text"]))
    if block.language != "diff":
        yield block
        return
    for other in ("+", "-"):
        kept = ["" if one.startswith(other) else one[1:] for one in block.text.splitlines()]
        yield replace(block, language="python", text="\n".join(kept) + "\n")


def python_blocks(page: Path) -> list[Block]:
    return [one for one in blocks(page) if one.language == "python"]


def program(block: Block, earlier: list[Block], given: frozenset[str]) -> str:
    """Returns the block with imports for the names that it uses without defining them."""
    imports = []
    for name in sorted(_uses(block.text) - _makes(block.text)):
        source = next((one.module for one in reversed(earlier) if name in _makes(one.text)), None)
        if source or name in given:
            imports.append(f"from {source or 'given'} import {name} as {name}")
    return "\n".join([HEADER, "; ".join(imports), block.text])


def given_names() -> frozenset[str]:
    return frozenset(_makes(GIVEN))


@cache
def _makes(text: str) -> frozenset[str]:
    table = symtable.symtable(text, "block", "exec")
    return frozenset(
        one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported() or one.is_annotated()
    )


def _uses(text: str) -> set[str]:
    def used(table: symtable.SymbolTable) -> Iterator[str]:
        for one in table.get_symbols():
            if one.is_referenced() and (table.get_type() == "module" or one.is_global()):
                yield one.get_name()
        for child in table.get_children():
            yield from used(child)

    return {name for name in used(symtable.symtable(text, "block", "exec")) if not hasattr(builtins, name)}

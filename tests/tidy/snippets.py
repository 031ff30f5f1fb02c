"""The blocks of code in README and docs, each as a program that imports what earlier blocks of its page make."""

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
"""What a reader is taken to have already: a session, streaming DataFrames, a server of one's own."""

HEADER = (
    "# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, check-untyped-defs, implicit-reexport, "
    "allow-untyped-globals, no-warn-return-any, no-warn-unreachable, "
    'disable-error-code="import-not-found, import-untyped, misc, union-attr"'
)
LINES_BEFORE = 2
"""The lines of a program that come before those of its block: `HEADER`, and the imports."""

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: The file that it stands in.
        line: Of its first line of code.
        language: What stands behind its three back quotes; ``""`` is a shell's, or what a program prints.
        text: Its code.
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
    """All blocks of a page. One with marked changes is two: the lines without those of the other side."""
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
    """The block with imports of what it uses and does not make: from earlier blocks of its page, or what is given."""
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

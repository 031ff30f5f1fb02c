"""Checks the examples in README and docs: names exist, arguments are valid, and commands have the options shown."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sparkonce
from tidy.snippets import DOCSTRINGS, GIVEN, LINES_BEFORE, PAGES, Block, blocks, given_names, program, python_blocks
from tidy.sources import ROOT, nobody

BLOCKS = [block for page in (*PAGES, *DOCSTRINGS) for block in python_blocks(page)]
_EXTRA = re.compile(r"sparkonce\[([\w,]+)\]")


@pytest.mark.xdist_group("mypy")  # its cache is a single file
def test_names_and_arguments_are_the_real_ones(tmp_path):
    """One mypy process checks all blocks. It uses the same paths as the check of src/, so that its cache is reused."""
    assert len(BLOCKS) > 30
    (tmp_path / "given.py").write_text(GIVEN)
    made: dict[str, Block] = {}
    for block in BLOCKS:
        earlier = [one for one in made.values() if one.page == block.page]
        (tmp_path / f"{block.module}.py").write_text(program(block, earlier, given_names()))
        made[block.module] = block
    files = [str(path) for path in sorted(tmp_path.glob("*.py"))]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", *files]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": "src"}, capture_output=True, text=True)
    wrong = []
    for module, line, what in re.findall(r"(\w+)\.py:(\d+): error: (.*)", done.stdout):
        block = made[module]
        wrong.append(f"{block.page.relative_to(ROOT)}:{block.line + int(line) - LINES_BEFORE - 1}: {what}")
    nobody(sorted(wrong), "import what is used, and call it as it is defined")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_imported_is_there():
    """Mypy accepts any name from a lazy module."""

    def is_there(module: str, name: str) -> bool:
        try:
            found = import_module(module)
            return not name or hasattr(found, name) or import_module(f"{module}.{name}") is not None
        except ImportError:
            return False

    def imported(node: ast.AST) -> list[tuple[str, str]]:
        if isinstance(node, ast.Import):
            return [(alias.name, "") for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            return [(str(node.module), alias.name) for alias in node.names]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sparkonce":
            return [("sparkonce", node.attr)]
        return []

    for block in BLOCKS:
        missing = [one for node in ast.walk(block.tree) for one in imported(node) if not is_there(*one)]
        assert missing == [], block.where


def test_code_is_no_wider_than_its_column():
    """At 1280 px a page shows 88 columns. What programs print is ``text``, and Flink's jobs are as they were."""

    def wide_lines() -> Iterator[str]:
        for page in PAGES:
            for block in (one for one in blocks(page) if one.language not in ("text", "java")):
                for number, line in enumerate(block.text.splitlines(), block.line):
                    if len(line) > 88:
                        yield f"{page.relative_to(ROOT)}:{number}: {len(line)} columns"

    nobody(wide_lines(), "wrap them at 88")


# --- command lines --------------------------------------------------------------------------------------------------


def test_every_command_line_is_one_that_the_command_takes():
    def refused(line: str) -> str:
        """Returns the command's own error message for a line, or an empty string if it is valid."""
        import typer
        from typer.main import get_command

        from sparkonce.cli.main import app

        words = [word for word in shlex.split(line, comments=True) if word != "…"][1:]
        command: Any = get_command(app)
        context = command.make_context("sparkonce", list(words), resilient_parsing=True)
        try:
            while hasattr(command, "resolve_command"):
                if not words:
                    return ""
                if words[0].startswith("-"):
                    command.make_context("sparkonce", list(words))
                    return ""
                name, command, words = command.resolve_command(context, words)
                if command is None:
                    return f"no command of sparkonce: {line}"
                context = command.make_context(name, list(words), parent=context, resilient_parsing=True)
            if words:  # a single word is just the name of the command
                command.make_context(context.info_name, list(words), parent=context.parent)
        except (typer.Exit, SystemExit):
            return ""
        except typer.BadParameter as error:
            return "" if error.message.endswith("does not exist.") else error.message  # a file that the reader has
        except Exception as error:  # noqa: BLE001 - the errors come from typer's bundled click or from click itself
            return f"{type(error).__name__}: {getattr(error, 'message', error)}"
        return ""

    inline = re.compile(r"(?<!`)`(sparkonce [^`…]+)`")

    def command_lines() -> Iterator[tuple[str, str]]:
        """Yields each line that begins with ``sparkonce``, joined with its continuation lines, and inline commands."""
        for page in PAGES:
            for block in blocks(page):
                if block.language in ("", "bash", "console", "sh"):
                    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
                        for command in re.split(r" && | \| |; ", line.partition("  #")[0]):
                            if command.startswith(("sparkonce ", "$ sparkonce ")):
                                yield block.where, command.removeprefix("$ ")
            for found in inline.finditer(page.read_text()):
                yield f"{page.relative_to(ROOT)}", found[1]

    lines = sorted(set(command_lines()))
    assert len(lines) > 15
    nobody((f"{where}: {line}: {said}" for where, line in lines if (said := refused(line))), "see sparkonce --help")


def test_extras_that_are_named_are_there():
    from importlib.metadata import metadata

    known = set(metadata("sparkonce").get_all("Provides-Extra") or [])
    named = {extra for page in PAGES for found in _EXTRA.findall(page.read_text()) for extra in found.split(",")}
    assert named
    assert named <= known, sparkonce.__version__


# --- tables ---------------------------------------------------------------------------------------------------------


def test_rows_of_tables_have_the_cells_of_their_heads():
    def uneven_rows(page: Path) -> Iterator[str]:
        """Yields table rows with more or fewer cells than the header: a bar in code ends a cell, on GitHub too."""
        cells = 0
        fenced = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if fenced or not line.startswith("|"):
                cells = 0
                continue
            found = len(re.findall(r"(?<!\\)\|", line))
            cells = cells or found
            if found != cells:
                yield f"{page.relative_to(ROOT)}:{number}: {found - 1} cells under {cells - 1}"

    nobody((one for page in PAGES for one in uneven_rows(page)), r"write \| for a bar inside a cell")

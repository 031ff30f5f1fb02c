"""Finds out if a Python script could start another query after the place where it waits."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

_HARMLESS = {"awaitAnyTermination", "awaitTermination", "close", "debug", "error", "exit", "info", "print", "stop"}
_HARMLESS |= {"await_end", "shutdown", "warning"}
"""Names of calls that start no query; any other may."""


def may_follow(calls: Iterable[tuple[str, int]]) -> bool:
    """Tells if the rest of a script may start a query.

    Args:
        calls: File and line of each call that is under way, from the script's own to the one that waits.
    """
    return any(_after(Path(file), line) for file, line in calls)


def _after(file: Path, line: int) -> bool:
    try:
        tree = ast.parse(file.read_text())
    except (OSError, SyntaxError, ValueError):
        return True
    return any(
        isinstance(node, ast.Call) and _name(node.func) not in _HARMLESS
        for statement in _following(tree, line)
        for node in ast.walk(statement)
    )


def _following(block: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yields the statements that may run after the one at a line, in the function or module around it."""
    for _, value in ast.iter_fields(block):
        if not isinstance(value, list):
            continue
        places = [place for place, each in enumerate(value) if _holds(each, line)]
        for place in places:
            inner = value[place]
            if not _defines(inner):  # statements after a definition do not follow its call
                yield from (each for each in value[place + 1 :] if isinstance(each, ast.stmt) and not _defines(each))
            if isinstance(inner, ast.For | ast.While | ast.AsyncFor):
                yield inner
            elif isinstance(inner, ast.Try):
                yield from (*inner.handlers, *inner.orelse, *inner.finalbody)
            yield from _following(inner, line)


def _holds(node: object, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return any(_holds(each, line) for each in node.body)
    return isinstance(node, ast.stmt | ast.excepthandler) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _defines(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""

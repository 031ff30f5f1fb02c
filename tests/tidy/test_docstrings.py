"""How docstrings and lines of the log begin and end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tidy.sources import MODULES, Found, nobody, nodes, offenders, tree

CLAUSE = re.compile(
    r"(What|Whether|How|Which|Who|Whose|When|Where|Why|Of|By|That|If|As|It|Its|They|Them|Those|These|None|Nothing|Nobody"
    r"|Not|For|With|In|On|At|To|From|After|Before|Until|While|Once|Also|Only|Asked|Told|Called|Given|Must|May|Never|Is"
    r"|Are|Has|Have|There|Made|Kept|So|But|And|Or)\b"
)
"""A docstring begins with a verb in the third person, or names the thing: none of these does either."""
LOGS = {"info", "warning", "error", "exception"}
BEGINS = re.compile(r"[A-Z%]|[\w.]+=")
ENDS = (".", "%s", "%r", ":", "?", "…")


def docstrings(source: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields those of modules, classes and functions, and of the names that are assigned in them."""
    for node in nodes(source):
        has_one = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        if has_one and (found := ast.get_docstring(node)) is not None:
            yield getattr(node, "lineno", 1), found
        if isinstance(node, ast.Module | ast.ClassDef):
            for named, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(named, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    text = after.value.value if isinstance(after.value, ast.Constant) else None
                    if isinstance(text, str):
                        yield after.lineno, text


def clauses(source: ast.Module) -> Found:
    return [(line, text.splitlines()[0]) for line, text in docstrings(source) if CLAUSE.match(text)]


def loose_lines(source: ast.Module) -> Found:
    """Lines of the log that begin with a small letter, or end without a full stop."""
    calls = [node for node in nodes(source) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    texts = [
        (call.lineno, call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in LOGS and "logger" in ast.unparse(call.func.value)
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    ]
    return [(line, text) for line, text in texts if not BEGINS.match(text) or not text.endswith(ENDS)]


def test_docstrings_begin_with_a_verb_or_name_the_thing() -> None:
    nobody(offenders(MODULES, lambda path: clauses(tree(path))), 'say "Returns …", "Tells if …", or name the thing')


def test_lines_of_the_log_are_sentences() -> None:
    nobody(offenders(MODULES, lambda path: loose_lines(tree(path))), "begin with a capital, end with a full stop")


@pytest.mark.parametrize(
    "text",
    ["What it says.", "Whether it is open.", "How long a call may take.", "Of each sink, the facts."],
)
def test_a_clause_is_found(text: str) -> None:
    assert clauses(ast.parse(f'def f():\n    """{text}"""\n\nA = 1\n"""{text}"""')) == [(5, text), (1, text)]


@pytest.mark.parametrize("text", ["Returns what it says.", "The facts of each sink.", "Tells if it is open."])
def test_a_verb_and_a_name_are_let_through(text: str) -> None:
    assert clauses(ast.parse(f'def f():\n    """{text}"""')) == []


@pytest.mark.parametrize("text", ["could not be asked.", "Could not be asked"])
def test_a_loose_line_of_the_log_is_found(text: str) -> None:
    assert loose_lines(ast.parse(f"logger.warning({text!r})")) == [(1, text)]


def test_a_line_of_the_log_may_begin_with_what_it_is_about() -> None:
    assert loose_lines(ast.parse("logger.info('sink=%s slot=%d: %s', 1, 2, 3)")) == []

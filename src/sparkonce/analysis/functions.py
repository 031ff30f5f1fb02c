"""Looks into a Python function for names that read a clock or draw randomness."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import partial
from types import CodeType, ModuleType
from typing import Any

CLOCKS = frozenset({"now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter", "strftime", "ctime"})
CLOCKS |= {"current_timestamp", "current_date", "localtimestamp", "curdate"}
RANDOM = frozenset({"uuid1", "uuid4", "uuid7", "random", "randint", "randrange", "choice", "choices", "shuffle"})
RANDOM |= {"uniform", "gauss", "normalvariate", "rand", "randn", "default_rng", "urandom", "token_hex", "token_bytes"}
RANDOM |= {"token_urlsafe", "getrandbits", "uuid", "standard_normal", "randbytes", "monotonically_increasing_id"}

_DEEP = 3


def suspects(function: Any) -> tuple[str, ...]:
    """Returns names in the code of a function, and of those that it uses, that read a clock or draw randomness.

    A name may belong to something else, and the code of libraries is not searched.
    """
    return tuple(sorted(set(_names(function, _DEEP)) & (CLOCKS | RANDOM)))


def _names(function: Any, deep: int) -> Iterator[str]:
    if isinstance(function, partial):
        yield from _names(function.func, deep)
        return
    plain_function = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(plain_function, "__code__", None)
    if not isinstance(code, CodeType) or deep == 0:
        return
    held = getattr(plain_function, "__globals__", {})
    for each in _nested(code):
        for step in dis.get_instructions(each):
            attribute = step.opname in {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}
            plain = step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and not isinstance(held.get(step.argval), ModuleType)
            if attribute or plain:  # the module ``time`` is harmless, the function is not
                yield str(step.argval)
    for used in used_by(plain_function):
        if hasattr(used, "__code__"):
            yield from _names(used, deep - 1)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def used_by(function: Any) -> list[Any]:
    """Returns the objects a function uses: from its closure, a partial's arguments, and its globals by name."""
    if isinstance(function, partial):
        return [function.func, *function.args, *function.keywords.values(), *used_by(function.func)]
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    held = getattr(function, "__globals__", {})
    values = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
    return values + [held[name] for each in _nested(code) for name in each.co_names if name in held]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None

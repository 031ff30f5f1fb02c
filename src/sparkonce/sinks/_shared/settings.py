"""Checks of the settings that several sinks have: refused by each in the same words. See `sparkonce.arguments`."""

from __future__ import annotations

from typing import Any

from sparkonce.arguments import nonempty, number, one_of, texts
from sparkonce.errors import ConfigurationError

APPEND, UPSERT = "append", "upsert"
MODES = (APPEND, UPSERT)
STAGED, TWO_PHASE = "staged", "two_phase"
COMMITS = (STAGED, TWO_PHASE)
CONFLICTS = ("update", "nothing")

_PREFIX_EXAMPLE = "a text, such as 'sparkonce'"


class MergesStaged:
    """A sink whose staged rows are merged into its table once their batch is decided.

    Attributes:
        decided_conflicts: What an operator has chosen for rows that were to be appended, and whose keys are in the
            table by now: one of `CONFLICTS`. Empty to leave them staged.
    """

    decided_conflicts: str = ""


def commit(value: str) -> str:
    """Returns how a database sink commits: `STAGED` or `TWO_PHASE`."""
    return one_of("commit", value, COMMITS)


def seconds(setting: str, value: Any, *, least: float = 0.1) -> float:
    """Returns a time in seconds, of a day at most."""
    return number(setting, value, least=least, most=86_400)


def columns(setting: str, value: Any) -> tuple[str, ...]:
    """Returns the names of columns, of one as a text or of several as a list."""
    return texts(setting, (value,) if isinstance(value, str) else value, example="a list of columns' names: ['id']")


def mode(value: str, key_columns: Any) -> tuple[str, tuple[str, ...]]:
    """Returns whether a table sink appends or upserts, and its key columns: upserts need them, nothing else does."""
    keys = columns("key_columns", key_columns)
    if (one_of("mode", value, MODES) == UPSERT) != bool(keys):
        raise ConfigurationError(
            f"mode={value!r} with key_columns={list(keys)}: upserts need them, and nothing else does.",
            next_step="Name the columns of a unique key for mode='upsert', or leave them out.",
            setting="key_columns",
        )
    return value, keys


def name_prefix(prefix: Any, name: str, *, most_bytes: int) -> str:
    """Returns what begins the names of a sink's transactions: two sinks of one query never share it.

    Args:
        prefix: The user's.
        name: The sink's.
        most_bytes: Of both together.
    """
    given = nonempty("prefix", prefix, example=_PREFIX_EXAMPLE)
    whole = f"{given}.{name}"
    _refuse_unusable(f"prefix={prefix!r} with name={name!r}: together {whole!r}, which", whole, most_bytes, "")
    return whole


def own_prefix(prefix: Any, *, most_bytes: int, without: str = "") -> str:
    """Returns the prefix of a sink whose transactions' names do not hold the sink's name beside it.

    Args:
        prefix: The user's.
        most_bytes: The most bytes that it may have.
        without: Characters that it must not have.
    """
    given = nonempty("prefix", prefix, example=_PREFIX_EXAMPLE)
    _refuse_unusable(f"prefix={prefix!r}", given, most_bytes, without)
    return given


def _refuse_unusable(shown: str, text: str, most_bytes: int, without: str) -> None:
    size = len(text.encode())
    if size > most_bytes or not text.isprintable() or set(text) & set(without):
        barred = f" without any of {without}" if without else ""
        raise ConfigurationError(
            f"{shown} has {size} bytes, and cannot be used.",
            next_step=f"Choose {most_bytes} printable bytes or less{barred}: they are a part of the transactions' "
            "names on the server.",
            setting="prefix",
        )

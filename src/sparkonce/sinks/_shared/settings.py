"""Checks of the settings that several sinks have: refused by each in the same words. See `sparkonce.arguments`."""

from __future__ import annotations

from typing import Any

from sparkonce.arguments import nonempty, number, one_of, texts
from sparkonce.errors import ConfigurationError

APPEND, UPSERT = "append", "upsert"
MODES = (APPEND, UPSERT)
STAGED, TWO_PHASE = "staged", "two_phase"
COMMITS = (STAGED, TWO_PHASE)


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
    given = nonempty("prefix", prefix, example="a text, such as 'sparkonce'")
    whole = f"{given}.{name}"
    size = len(whole.encode())
    if size > most_bytes or not whole.isprintable():
        raise ConfigurationError(
            f"prefix={prefix!r} with name={name!r}: together {whole!r}, which has {size} bytes.",
            next_step=f"Choose shorter ones: {most_bytes} printable bytes or less together. They are a part of the "
            "transactions' names on the server.",
            setting="prefix",
        )
    return whole

"""Parts of the statements that merge staged rows. ``source`` is the batch's row, and ``target`` the table's row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkonce.sinks.sql.settings import Target, read_by, with_source

Quote = Callable[[str], str]
"""Quotes a name for a statement."""


def staged_columns(target: Target, columns: Sequence[str], *, fold: bool = False) -> list[str]:
    """Returns the written columns and those that only determine whether a row deletes."""
    read = sorted(read_by(target.rules.delete_when))
    return [*columns, *target.rules.staged_only(read, columns, fold=fold)]


def same_keys(target: Target, quote: Quote) -> str:
    """Returns the condition that both rows have the same key."""
    return " AND ".join(f"target.{quote(key)} = source.{quote(key)}" for key in target.keys)


def conditions(target: Target, quote: Quote, when: str, source: str = "source") -> list[str]:
    """Returns the conditions that the batch's row is not older than the table's row, and the one in `when`."""
    found, column = [], quote(target.rules.order_by)
    if target.rules.order_by:  # null is older than any value
        found = [f"(target.{column} IS NULL OR {source}.{column} >= target.{column})"]
    return [*found, *([condition(when if source == "source" else with_source(when, source))] if when else [])]


def condition(text: str) -> str:
    """Returns a user's condition, which may end with a comment, as an operand."""
    return f"(\n{text}\n)"

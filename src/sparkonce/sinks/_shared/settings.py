"""Checks of the settings that several sinks have, each refused in the same words. See `sparkonce.arguments`.

The conditions of an upsert are SQL over ``source``, a row of the batch, and ``target``, the table's row with its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sparkonce.arguments import nonempty, number, one_of, texts
from sparkonce.errors import ConfigurationError, SchemaError

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
        prefix: The user's prefix.
        name: The sink's name.
        most_bytes: The most bytes of both together.
    """
    given = nonempty("prefix", prefix, example=_PREFIX_EXAMPLE)
    whole = f"{given}.{name}"
    _refuse_unusable(f"prefix={prefix!r} with name={name!r}: together {whole!r}, which", whole, most_bytes, "")
    return whole


def own_prefix(prefix: Any, *, most_bytes: int, without: str = "") -> str:
    """Returns the prefix of a sink whose transactions' names do not hold the sink's name next to it.

    Args:
        prefix: The user's prefix.
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


_SKIPPED = r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
_NAME = r"""(?:"(?P<double>(?:[^"]|"")*)"|`(?P<back>(?:[^`]|``)*)`|(?P<plain>\w+))"""
_SIDE = re.compile(rf"(?<![\w.])(?P<side>source|target)\s*\.\s*{_NAME}|{_SKIPPED}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRules:
    """Says which row of a key counts; empty texts for what was not given.

    Attributes:
        order_by: The column whose greatest value wins, in the batch and in the table.
        update_when: The condition under which a row replaces the table's.
        delete_when: The condition, over the batch's row alone, under which it deletes the table's.
    """

    order_by: str = ""
    update_when: str = ""
    delete_when: str = ""

    SETTINGS: ClassVar = ("order_by", "update_when", "delete_when")

    @classmethod
    def of(cls, mode: str, on_conflict: str = "update", **given: Any) -> UpsertRules:
        """Returns the rules that were given, each of which may be None.

        Raises:
            ConfigurationError: if one contradicts another or the mode.
        """
        found = {setting: value for setting, value in given.items() if value is not None}
        for setting, value in found.items():
            example = "a column's name" if setting == "order_by" else "a condition in SQL, such as source.n > target.n"
            nonempty(setting, value, example=example)
            if mode != UPSERT or on_conflict == "nothing":
                other = f"mode={mode!r}" if mode != UPSERT else "on_conflict='nothing', which keeps the table's row"
                raise ConfigurationError(
                    f"{setting}={value!r} with {other}.",
                    next_step=f"Leave {setting} out, or set mode='upsert', which replaces rows.",
                    setting=setting,
                )
        rules = cls(**found)
        if any(side != "source" for side, _ in named(rules.delete_when)):
            raise ConfigurationError(
                f"delete_when={rules.delete_when!r} reads target.…, and a row says itself whether it deletes.",
                next_step="Write it over source.… alone, such as source.value IS NULL.",
                setting="delete_when",
            )
        return rules

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions in SQL, by their settings."""
        return {setting: text for setting, text in self.given().items() if setting != "order_by"}

    def given(self) -> dict[str, str]:
        """Returns what was given, by its setting."""
        values = {setting: str(getattr(self, setting)) for setting in self.SETTINGS}
        return {setting: value for setting, value in values.items() if value}

    def check_columns(self, columns: Iterable[str], *, fold: bool = False) -> None:
        """Sees that the rows have the columns that the rules read.

        Args:
            columns: The rows' columns.
            fold: True if the server takes names in either case.

        Raises:
            SchemaError: naming the one that is missing.
        """
        known = {name.lower() if fold else name for name in columns}
        read = [("order_by", self.order_by)] if self.order_by else []
        for setting, condition in self.conditions.items():
            read += [(setting, name) for side, name in named(condition) if side == "source"]
        for setting, name in read:
            if (name.lower() if fold else name) not in known:
                raise SchemaError(
                    f"{setting}={getattr(self, setting)!r} reads column {name!r}, and the rows have {sorted(columns)}.",
                    next_step="Add the column to the query, or correct the name.",
                    setting=setting,
                )


NO_RULES = UpsertRules()


def named(condition: str) -> list[tuple[str, str]]:
    """Returns the sides and columns that a condition reads; names without quotes in lower case."""
    found = []
    for match in _SIDE.finditer(condition):
        if match["side"]:
            quoted = match["double"] if match["double"] is not None else match["back"]
            name = match["plain"].lower() if quoted is None else quoted.replace('""', '"').replace("``", "`")
            found.append((match["side"].lower(), name))
    return found


def with_source(condition: str, name: str) -> str:
    """Returns a condition in which the batch's row has another name."""

    def renamed(match: re.Match[str]) -> str:
        text = match[0]
        return name + text[len("source") :] if (match["side"] or "").lower() == "source" else text

    return _SIDE.sub(renamed, condition)


def see_files(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Opens each file that a setting names.

    Raises:
        OSError: naming the setting and the file that cannot be read.
    """
    for name in names:
        if path := settings.get(name):
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise type(error)(error.errno, f"{name}={str(path)!r}: {error.strerror}") from None

"""The conditions of an upsert: SQL over ``source``, a row of the batch, and ``target``, the table's row of its key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from sparkonce.arguments import nonempty
from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.sinks._shared.settings import UPSERT

_SKIPPED = r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
_NAME = r"""(?:"(?P<double>(?:[^"]|"")*)"|`(?P<back>(?:[^`]|``)*)`|(?P<plain>\w+))"""
_SIDE = re.compile(rf"(?<![\w.])(?P<side>source|target)\s*\.\s*{_NAME}|{_SKIPPED}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRules:
    """Which row of a key counts; empty texts for what was not given.

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

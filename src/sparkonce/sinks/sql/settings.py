"""The user's settings for a table, its rows and time limits, as picklable values.

The conditions of an upsert are SQL over ``source``, a row of the batch, and ``target``, the table's row with that key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sparkonce.arguments import nonempty, one_of
from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.protocol.codec import read_json
from sparkonce.sinks._shared.settings import columns

APPEND, UPSERT = "append", "upsert"
STAGED, TWO_PHASE = "staged", "two_phase"
CONFLICTS = ("update", "nothing")

Mode = Literal["append", "upsert"]
Commit = Literal["staged", "two_phase"]
OnConflict = Literal["update", "nothing"]

_SKIPPED = r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
_NAME = r"""(?:"(?P<double>(?:[^"]|"")*)"|`(?P<back>(?:[^`]|``)*)`|(?P<plain>\w+))"""
_SIDE = re.compile(rf"(?<![\w.])(?P<side>source|target)\s*\.\s*{_NAME}|{_SKIPPED}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRules:
    """Defines which row wins among those with the same key. A setting that is not used is an empty string.

    Attributes:
        order_by: The column whose greatest value wins, in the batch and in the table.
        update_when: The condition under which a row replaces the table's row.
        delete_when: The condition, over the batch's row only, under which it deletes the table's row.
    """

    order_by: str = ""
    update_when: str = ""
    delete_when: str = ""

    SETTINGS: ClassVar = ("order_by", "update_when", "delete_when")

    @classmethod
    def of(cls, mode: str, on_conflict: str = "update", **settings: Any) -> UpsertRules:
        """Returns the rules. Each setting may be None, and is rejected if it contradicts another or the mode."""
        found = {setting: value for setting, value in settings.items() if value is not None}
        for setting, value in found.items():
            example = "a column's name" if setting == "order_by" else "a condition in SQL, such as source.n > target.n"
            nonempty(setting, value, example=example)
            if mode != UPSERT or on_conflict == "nothing":
                other = f"mode={mode!r}" if mode != UPSERT else "on_conflict='nothing', which keeps the table's row"
                step = f"Leave {setting} out, or set mode='upsert', which replaces rows."
                raise ConfigurationError(f"{setting}={value!r} with {other}.", next_step=step, setting=setting)
        rules = cls(**found)
        if any(side != "source" for side, _ in named(rules.delete_when)):
            what = f"delete_when={rules.delete_when!r} reads target.…, but a row itself determines whether it deletes."
            step = "Write it over source.… alone, such as source.value IS NULL."
            raise ConfigurationError(what, next_step=step, setting="delete_when")
        return rules

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions in SQL, by their settings."""
        return {setting: text for setting, text in self.to_dict().items() if setting != "order_by"}

    def to_dict(self) -> dict[str, str]:
        """Returns the settings that are used."""
        values = {setting: str(getattr(self, setting)) for setting in self.SETTINGS}
        return {setting: value for setting, value in values.items() if value}

    def staged_only(self, columns: Iterable[str], there: Iterable[str], *, fold: bool = False) -> list[str]:
        """Returns the columns that the table does not have, and that only determine whether a row deletes."""
        known = {name.lower() if fold else name for name in there}
        read = {name.lower() if fold else name for name in read_by(self.delete_when)} - known
        # Compare the folded names, so that two spellings count as one column.
        found = {name.lower() if fold else name: name for name in columns}
        return [name for key, name in found.items() if key in read]

    def check_columns(self, columns: Iterable[str], *, fold: bool = False) -> None:
        """Raises `SchemaError` if the rows lack a column that the rules read."""
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


def named(condition: str) -> list[tuple[str, str]]:
    """Returns the side (``source`` or ``target``) and name of each column in a condition. Folds unquoted names."""
    found = []
    for match in _SIDE.finditer(condition):
        if match["side"]:
            quoted = match["double"] if match["double"] is not None else match["back"]
            name = match["plain"].lower() if quoted is None else quoted.replace('""', '"').replace("``", "`")
            found.append((match["side"].lower(), name))
    return found


def read_by(condition: str) -> set[str]:
    """Returns the columns of the batch's row that a condition reads."""
    return {name for side, name in named(condition) if side == "source"}


def with_source(condition: str, name: str) -> str:
    """Returns a condition in which a different name replaces ``source``."""

    def renamed(match: re.Match[str]) -> str:
        text = match[0]
        return name + text[len("source") :] if (match["side"] or "").lower() == "source" else text

    return _SIDE.sub(renamed, condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that rows go to, and the rules for a row whose key already exists.

    `schema` is empty if the connection's database contains the table. Only upserts have `keys` (the columns of the
    unique index that determines conflicts), `on_conflict` (one of `CONFLICTS`) and `rules`.
    """

    schema: str = ""
    table: str
    mode: str = APPEND
    keys: tuple[str, ...] = ()
    on_conflict: str = "update"
    rules: UpsertRules = UpsertRules()

    def __str__(self) -> str:
        return quoted(self.schema, self.table) if self.schema else repr(self.table)

    @classmethod
    def of(
        cls, table: str, mode: str, key_columns: Any, *, schema: str = "", on_conflict: str = "update", **rules: Any
    ) -> Target:
        """Returns the target. Raises `ConfigurationError` if a setting is wrong or contradicts another."""
        keys = columns("key_columns", key_columns)
        if (one_of("mode", mode, (APPEND, UPSERT)) == UPSERT) != bool(keys):
            what = f"mode={mode!r} with key_columns={list(keys)}: upserts need them, and nothing else does."
            step = "Name the columns of a unique key for mode='upsert', or leave them out."
            raise ConfigurationError(what, next_step=step, setting="key_columns")
        upsert_rules = UpsertRules.of(mode, on_conflict, **rules)
        if one_of("on_conflict", on_conflict, CONFLICTS) != "update" and mode != UPSERT:
            what = f"mode={mode!r} with on_conflict={on_conflict!r}, which is for upserts."
            raise ConfigurationError(what, next_step="Leave it out, or set mode='upsert'.", setting="on_conflict")
        return cls(schema=schema, table=table, mode=mode, keys=keys, on_conflict=on_conflict, rules=upsert_rules)

    def to_text(self, columns: tuple[str, ...]) -> str:
        """Returns the target and the written columns as text, for the marker of staged rows."""
        return json.dumps(
            {
                "schema": self.schema,
                "table": self.table,
                "mode": self.mode,
                "keys": self.keys,
                "on_conflict": self.on_conflict,
                "order_by": self.rules.order_by,
                **self.rules.conditions,
                "columns": columns,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> tuple[Target, tuple[str, ...]]:
        """Reads the output of `to_text`. Raises `ValueError` for any other text."""
        try:
            fields = read_json(text.encode())
            columns = tuple(map(str, fields.pop("columns")))
            fields["keys"] = tuple(map(str, fields["keys"]))
            rules = UpsertRules(**{setting: fields.pop(setting, "") for setting in UpsertRules.SETTINGS})
            return cls(**fields, rules=rules), columns
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the description of a table: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The time limit of each kind of request, in seconds.

    Attributes:
        slot_s: One slot's transaction on the server, from its first row until it is prepared.
        commit_s: One commit of a whole batch with ``staged``, and one prepare.
        lock_s: Waiting for a lock of another session.
        answer_s: Any other answer of the server.
    """

    slot_s: float = 3600.0
    commit_s: float = 300.0
    lock_s: float = 10.0
    answer_s: float = 15.0


def quoted(*names: str) -> str:
    """Returns a quoted name, with its schema if that is given, too."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


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

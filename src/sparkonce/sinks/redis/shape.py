"""Tells which columns become which commands, and checks their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

import pyarrow as pa

from sparkonce.arguments import one_of
from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.sinks.redis.names import OWN

_Fits = Callable[[pa.DataType], bool]

_OPTIONAL: Mapping[str, frozenset[str]] = {
    "string": frozenset({"value"}),
    "hash": frozenset({"field", "value", "fields"}),
    "list": frozenset({"value"}),
    "set": frozenset({"member"}),
    "sorted_set": frozenset({"member", "score"}),
    "increment": frozenset({"amount", "field", "member"}),
}
"""The settings of each structure beside key and time to live."""

STRUCTURES = tuple(_OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The commands that are made of a row. `RedisSink` describes the settings; all but the template name columns.

    Raises:
        ConfigurationError: naming the setting that is unknown, missing, or without use for the structure.
    """

    structure: str = "string"
    key: str | None = None
    key_template: str | None = None
    value: str | None = None
    field: str | None = None
    fields: tuple[str, ...] | None = None
    member: str | None = None
    score: str | None = None
    amount: str | None = None
    ttl: str | None = None
    ttl_s: int | None = None

    def __post_init__(self) -> None:
        one_of("structure", self.structure, STRUCTURES)
        for name in ("value", "field", "fields", "member", "score", "amount"):
            if getattr(self, name) is not None and name not in _OPTIONAL[self.structure]:
                raise ConfigurationError(
                    f"{name}={getattr(self, name)!r} means nothing with structure={self.structure!r}.",
                    next_step=f"Leave {name} out: that structure has {', '.join(sorted(_OPTIONAL[self.structure]))}.",
                )
        self._check_pairs()
        if self.ttl_s is not None and self.ttl_s < 1:
            raise ConfigurationError(
                f"ttl_s={self.ttl_s!r} is no time to live.", next_step="Give whole seconds, from 1."
            )
        parts = self.template_parts()
        if parts and parts[0][0].startswith(OWN):
            raise ConfigurationError(
                f"key_template={self.key_template!r} begins with {OWN!r}, as the sink's own keys do.",
                next_step="Begin it with another text.",
            )

    def _check_pairs(self) -> None:
        pairs: tuple[tuple[str, str], ...] = (("key", "key_template"), ("ttl", "ttl_s"), ("field", "fields"))
        if self.structure == "increment":
            pairs = (*pairs, ("field", "member"))
        for one, other in pairs:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ConfigurationError(
                    f"{one}={getattr(self, one)!r} and {other}={getattr(self, other)!r} exclude each other.",
                    next_step="Keep one of them.",
                )
        if self.structure == "hash" and self.value is not None and self.field is None:
            raise ConfigurationError(
                f"value={self.value!r} of a hash needs a field to go to.",
                next_step="Name the column that holds the field's name in field, or leave value out: then each column "
                "is a field of its own.",
            )

    def template_parts(self) -> list[tuple[str, str | None]]:
        """Returns the key's template as texts, each with the column that follows it.

        Raises:
            ConfigurationError: if the template cannot be read.
        """
        if self.key_template is None:
            return []
        try:
            parts = [(text, column, spec, how) for text, column, spec, how in Formatter().parse(self.key_template)]
        except ValueError as error:
            parts = [("", "", str(error), None)]
        if not parts or any(column == "" or spec or how for _, column, spec, how in parts):
            raise ConfigurationError(
                f"key_template={self.key_template!r} cannot be read.",
                next_step="Name columns in braces, such as 'user:{id}', and double braces that stand for themselves, "
                "as in '{{user:{id}}}:name'.",
            )
        return [(text, column) for text, column, _, _ in parts]

    def key_columns(self) -> list[str]:
        """Returns the columns that make the key."""
        if self.key_template is not None:
            return [column for _, column in self.template_parts() if column is not None]
        return [self.key or "key"]

    def hash_fields(self, names: Sequence[str]) -> list[str]:
        """Returns the columns that are fields of a hash: the named ones, or else all others."""
        if self.fields is not None:
            return list(self.fields)
        taken = {*self.key_columns(), self.ttl}
        return [name for name in names if name not in taken]

    def columns(self, schema: pa.Schema) -> list[str]:
        """Returns the columns that are used, each once.

        Raises:
            SchemaError: naming the column that is missing or has a type that does not fit.
        """
        wanted: list[tuple[str, _Fits, str]] = [(name, _is_text, _TEXT) for name in self.key_columns()]
        wanted += self._value_columns(schema)
        if self.ttl is not None:
            wanted.append((self.ttl, pa.types.is_integer, "a whole number of seconds"))
        for name, fits, what in wanted:
            _check(schema, name, fits, what)
        if self.structure == "hash" and len(wanted) == len(self.key_columns()) + (self.ttl is not None):
            raise SchemaError(
                f"A hash needs fields, and the columns are {schema.names}.", next_step="Add a column for a field."
            )
        return list(dict.fromkeys(name for name, _, _ in wanted))

    def _value_columns(self, schema: pa.Schema) -> list[tuple[str, _Fits, str]]:
        match self.structure:
            case "string":
                return [(self.value or "value", _is_text, _TEXT)]
            case "hash" if self.field is None:
                return [(name, _is_text, _TEXT) for name in self.hash_fields(schema.names)]
            case "hash":
                return [(self.field or "", _is_text, _TEXT), (self.value or "value", _is_text, _TEXT)]
            case "list":
                return [(self.value or "value", _is_list, "an array of strings, binaries or numbers")]
            case "set":
                return [(self.member or "member", _is_text, _TEXT)]
            case "sorted_set":
                return [(self.member or "member", _is_text, _TEXT), (self.score or "score", _is_number, "a number")]
            case _:
                inside = self.field or self.member
                amount: tuple[str, _Fits, str] = (self.amount or "amount", _is_number, "a number")
                return [amount] if inside is None else [(inside, _is_text, _TEXT), amount]


_TEXT = "a string, binary, number, boolean or date"


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind) or types.is_date32(kind)
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(plain or binary or _is_number(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type)


def _check(schema: pa.Schema, name: str, fits: _Fits, what: str) -> None:
    if schema.names.count(name) != 1:
        raise SchemaError(
            f"Column {name!r} is needed once, and the columns are {schema.names}.",
            next_step="Add it, or name another column for it in RedisSink.",
            column=name,
        )
    kind = schema.field(name).type
    if not fits(kind):
        raise SchemaError(
            f"Column {name!r} is a {kind}, and {what} is needed.",
            next_step="Cast it (timestamps: date_format; structs and maps: to_json), or drop it.",
            column=name,
        )

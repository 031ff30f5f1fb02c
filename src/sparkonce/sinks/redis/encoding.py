"""Turns Arrow batches into chunks of commands, in the format that `sparkonce.sinks.redis.scripts` expects.

`Shape` maps columns to commands, and checks their types. Rows are not handled one by one in Python: Arrow's own code
joins the columns into MessagePack bytes, and a chunk is a slice of the joined column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.arguments import one_of
from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.sinks._shared.arrow import plain_text
from sparkonce.sinks.redis.names import OWN
from sparkonce.sinks.redis.scripts import COMMAND_WEIGHT

if TYPE_CHECKING:
    import numpy.typing as npt


CHUNK_VALUES = 2_000
"""The maximum number of values in a chunk, which keeps a server busy for one to two milliseconds."""
CHUNK_BYTES = 256 * 1024
"""The maximum size of a chunk in bytes, unless it is a single row."""

_MSET_VALUES = 1_000
_INT64_MAX = 2**63 - 1
_WHOLE_IN_DOUBLE, _DIGITS_IN_DOUBLE = 2**53, 15
"""The largest integer, and the largest number of decimal digits, that a double represents exactly."""
_INCREMENT_DIGITS = 17
"""INCRBYFLOAT and HINCRBYFLOAT write this many digits after the decimal point (``%.17Lf``)."""
_STR32 = 0xDB
_ARRAY32 = 0xDD


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The commands of a record batch.

    Attributes:
        keys: Each row's key.
        rows: Each row's values in MessagePack.
        verb: The common command of all rows; empty if each value is a whole command.
        arity: The number of values per command.
        values: The number of values of each row.
    """

    keys: pa.Array
    rows: pa.Array
    verb: str
    arity: int
    values: npt.NDArray[np.int64] | int

    def reordered(self, order: npt.NDArray[np.intp]) -> Encoded:
        indices = pa.array(order)
        values = self.values if isinstance(self.values, int) else self.values[order]
        return Encoded(
            keys=self.keys.take(indices), rows=self.rows.take(indices), verb=self.verb, arity=self.arity, values=values
        )

    def chunks(self, bounds: npt.NDArray[np.intp] | None = None) -> Iterator[tuple[int, bytes]]:
        """Yields the chunks of the rows between consecutive bounds, each with the index of its lower bound."""
        count = len(self.rows)
        limits = np.array([0, count]) if bounds is None else bounds
        if not count:
            return
        offsets = np.frombuffer(self.rows.buffers()[1], np.int32)[self.rows.offset : self.rows.offset + count + 1]
        data = memoryview(self.rows.buffers()[2] or b"")
        values = np.full(count, self.values) if isinstance(self.values, int) else self.values
        ends = np.concatenate(([0], np.cumsum(values)))
        most = CHUNK_VALUES if self.verb else CHUNK_VALUES // COMMAND_WEIGHT
        verb = bytes([0xA0 | len(self.verb)]) + self.verb.encode() + b"\xce" + self.arity.to_bytes(4, "big") + b"\xdd"
        for number, (start, stop) in enumerate(zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True)):
            while start < stop:
                end = _end(offsets, ends, start, stop, most)
                held = int(ends[end] - ends[start])
                head = b"00000000" + verb + held.to_bytes(4, "big")
                yield number, b"".join((head, data[offsets[start] : offsets[end]]))
                start = end


def _end(offsets: npt.NDArray[Any], ends: npt.NDArray[Any], start: int, stop: int, most: int) -> int:
    """Returns the end of the chunk that begins at ``start``: within both limits, but after at least one row."""
    if ends[stop] - ends[start] <= most and offsets[stop] - offsets[start] <= CHUNK_BYTES:
        return stop
    by_values = int(np.searchsorted(ends, ends[start] + most, side="right")) - 1
    by_bytes = int(np.searchsorted(offsets, int(offsets[start]) + CHUNK_BYTES, side="right")) - 1
    return max(start + 1, min(by_values, by_bytes, stop))


def encode(shape: Shape, rows: pa.RecordBatch) -> Encoded:
    """Returns the commands of a record batch, in row order.

    Raises:
        PrepareError: If the server would reject a value, such as a null key, or a key is reserved for the sink. The
            message names the column.
    """
    if shape.structure == "increment":
        rows = rows.filter(rows.column(shape.amount or "amount").is_valid())
    keys = _keys(shape, rows)
    _refuse_own(keys)
    plain = _plain(shape, rows, keys) if shape.ttl is None else None
    if plain is not None:
        return plain
    return _each(shape, rows, keys)


def _plain(shape: Shape, rows: pa.RecordBatch, keys: pa.Array) -> Encoded | None:
    """Returns one command for all rows; None if nulls or the structure require different commands."""
    parts = _parts(shape, rows)
    if parts is None or any(part.null_count for part in parts if isinstance(part, pa.Array)):
        return None
    if shape.structure == "string":
        if shape.ttl_s is None:
            return _flat("MSET", _MSET_VALUES, keys, keys, *parts)
        return _flat("SETEX", 3, keys, keys, pa.scalar(str(shape.ttl_s).encode()), *parts)
    if shape.ttl_s is not None:
        return None
    return _flat(_verb(shape, rows), 1 + len(parts), keys, keys, *parts)


def _flat(verb: str, arity: int, keys: pa.Array, *parts: pa.Array | pa.Scalar) -> Encoded:
    return Encoded(keys=keys, rows=_join(map(_packed, parts)), verb=verb, arity=arity, values=len(parts))


def _each(shape: Shape, rows: pa.RecordBatch, keys: pa.Array) -> Encoded:
    commands, counts = _commands(shape, rows, keys)
    if shape.structure != "string" and (shape.ttl is not None or shape.ttl_s is not None):
        lives = _ttl(shape, rows)
        expire = _command("EXPIRE", keys, lives)
        commands.append(pc.fill_null(expire, b""))
        counts = counts + pc.is_valid(lives).to_numpy(zero_copy_only=False)
    return Encoded(keys=keys, rows=_join(commands), verb="", arity=1, values=counts)


def _commands(shape: Shape, rows: pa.RecordBatch, keys: pa.Array) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    once = np.ones(rows.num_rows, np.int64)
    match shape.structure:
        case "string":
            return [_set_or_delete(shape, rows, keys)], once
        case "list":
            return _replaced_list(rows.column(shape.value or "value"), keys)
        case "hash" if shape.field is None:
            fields = shape.hash_fields(rows.schema.names)
            commands = [
                _or_else(("HSET", keys, pa.scalar(name.encode()), wire(rows.column(name))), ("HDEL", 2))
                for name in fields
            ]
            return commands, once * len(fields)
        case "hash":
            parts = _parts(shape, rows) or []
            return [_or_else(("HSET", keys, *parts), ("HDEL", 2))], once
        case "sorted_set":
            score, member = _parts(shape, rows) or []
            removed = _command("ZREM", keys, member)
            return [pc.coalesce(_command("ZADD", keys, score, member), removed)], once
        case _:
            return [_command(_verb(shape, rows), keys, *(_parts(shape, rows) or []))], once


def _set_or_delete(shape: Shape, rows: pa.RecordBatch, keys: pa.Array) -> pa.Array:
    value = wire(rows.column(shape.value or "value"))
    lives = _ttl(shape, rows)
    lasting = _or_else(("SET", keys, value), ("DEL", 1))
    if lives is None:
        return lasting
    return pc.coalesce(_command("SETEX", keys, lives, value), lasting)


def _replaced_list(column: pa.Array, keys: pa.Array) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    items = wire(column.flatten())
    if items.null_count:
        raise PrepareError("An array of the list's column contains a null.", next_step="Filter it out.")
    packed = _packed(items)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, packed), b"")
    head = _headers(_ARRAY32, lengths + 2)
    push = _join([head, pa.scalar(b"\xa5RPUSH"), _packed(keys), joined])
    there = lengths > 0
    push = pc.if_else(pa.array(there), push, pa.scalar(b"", pa.binary()))
    return [_command("DEL", keys), push], 1 + there


def _parts(shape: Shape, rows: pa.RecordBatch) -> list[pa.Array | pa.Scalar] | None:
    """Returns the arguments after the key, in order; None for a list, whose commands differ in length."""

    def column(name: str | None, usual: str) -> pa.Array:
        return rows.column(name or usual)

    match shape.structure:
        case "string":
            return [wire(column(shape.value, "value"))]
        case "hash" if shape.field is None:
            fields = shape.hash_fields(rows.schema.names)
            return [part for name in fields for part in (pa.scalar(name.encode()), wire(rows.column(name)))]
        case "hash":
            return [_needed(rows, shape.field or ""), wire(column(shape.value, "value"))]
        case "set":
            return [_needed(rows, shape.member or "member")]
        case "sorted_set":
            score = column(shape.score, "score")
            _refuse_nan(score, shape.score or "score")
            _refuse_rounding(score, shape.score or "score", "a score")
            return [wire(score), _needed(rows, shape.member or "member")]
        case "increment":
            amount = _amount(column(shape.amount, "amount"), shape.amount or "amount", in_score=bool(shape.member))
            if shape.field is not None:
                return [_needed(rows, shape.field), amount]
            return [amount] if shape.member is None else [amount, _needed(rows, shape.member)]
        case _:
            return None


def _verb(shape: Shape, rows: pa.RecordBatch) -> str:
    if shape.structure != "increment":
        return {"hash": "HSET", "set": "SADD", "sorted_set": "ZADD"}[shape.structure]
    if shape.member is not None:
        return "ZINCRBY"
    whole = pa.types.is_integer(rows.column(shape.amount or "amount").type)
    return ("INCRBY" if whole else "INCRBYFLOAT") if shape.field is None else ("HINCRBY" if whole else "HINCRBYFLOAT")


# --- columns --------------------------------------------------------------------------------------------------------


def wire(column: pa.Array) -> pa.Array:
    """Returns a column as the bytes that Redis stores: strings and binary unchanged, other types as text."""
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or _is_string(kind):
        return column.cast(pa.binary())
    return plain_text(column, "").cast(pa.large_binary()).cast(pa.binary())


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _needed(rows: pa.RecordBatch, name: str) -> pa.Array:
    column = wire(rows.column(name))
    if column.null_count:
        raise PrepareError(
            f"Column {name!r} contains {column.null_count} nulls, and every row needs a value there.",
            next_step="Filter them out, or give them a value (coalesce).",
        )
    return column


def _keys(shape: Shape, rows: pa.RecordBatch) -> pa.Array:
    if shape.key_template is None:
        return _needed(rows, shape.key or "key")
    parts: list[pa.Array | pa.Scalar] = []
    for text, name in shape.template_parts():
        parts.append(pa.scalar(text.encode(), pa.binary()))
        if name is not None:
            parts.append(_needed(rows, name))
    if all(isinstance(part, pa.Scalar) for part in parts):
        return pa.array([b"".join(part.as_py() for part in parts)] * rows.num_rows, pa.binary())
    return _join(parts)


def _refuse_own(keys: pa.Array) -> None:
    own = pc.starts_with(keys, pattern=OWN)
    if pc.any(own).as_py():
        found = keys.filter(own)
        raise PrepareError(
            f"{len(found)} keys begin with {OWN!r}, such as {found[0].as_py()!r}: such keys are the sink's own, for "
            "staged rows and the ledger.",
            next_step="Begin the keys with another text.",
        )


def _ttl(shape: Shape, rows: pa.RecordBatch) -> pa.Array | None:
    if shape.ttl is None:
        if shape.ttl_s is None:
            return None
        return pa.array([str(shape.ttl_s).encode()] * rows.num_rows, pa.binary())
    column = rows.column(shape.ttl)
    if pc.any(pc.less(column, 1)).as_py():
        raise PrepareError(
            f"Column {shape.ttl!r} contains {pc.min(column).as_py()}, which is not a valid time to live.",
            next_step="Give seconds, at least 1, or null for no expiry.",
        )
    return wire(column)


def _amount(column: pa.Array, name: str, *, in_score: bool) -> pa.Array:
    if pa.types.is_uint64(column.type) and pc.any(pc.greater(column, pa.scalar(_INT64_MAX, pa.uint64()))).as_py():
        raise PrepareError(
            f"Column {name!r} contains {pc.max(column).as_py()}, and Redis counts up to {_INT64_MAX}.",
            next_step="Give smaller amounts.",
        )
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        raise PrepareError(
            f"Column {name!r} contains an amount that is infinite or not a number.", next_step="Filter it out (isnan)."
        )
    if in_score:
        _refuse_rounding(column, name, "a score")
    elif not pa.types.is_integer(column.type):
        _refuse_rounding(column, name, "INCRBYFLOAT")
        _refuse_small(column, name)
    return wire(column)


def _refuse_nan(column: pa.Array, name: str) -> None:
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        raise PrepareError(
            f"Column {name!r} contains a score that is not a number.", next_step="Filter it out (isnan)."
        )


def _refuse_rounding(column: pa.Array, name: str, where: str) -> None:
    """Rejects integers and decimals that a double cannot represent exactly."""
    if pa.types.is_integer(column.type):
        beyond = pc.or_(pc.less(column, -_WHOLE_IN_DOUBLE), pc.greater(column, _WHOLE_IN_DOUBLE))
    elif pa.types.is_decimal(column.type):
        digits = pc.utf8_rtrim(pc.utf8_ltrim(pc.replace_substring(plain_text(column, name), ".", ""), "-0"), "0")
        beyond = pc.greater(pc.utf8_length(digits), _DIGITS_IN_DOUBLE)
    else:
        return
    if pc.any(beyond).as_py():
        raise PrepareError(
            f"Column {name!r} contains {plain_text(column.filter(beyond)[:1], name)[0]}, and {where} of Redis would "
            f"round it: it keeps whole numbers up to 2^53, and decimals of {_DIGITS_IN_DOUBLE} digits.",
            next_step=f"Cast {name} to double in the query if it may be rounded"
            + (", or give whole numbers, such as cents as bigint." if where == "INCRBYFLOAT" else "."),
            column=name,
        )


def _refuse_small(column: pa.Array, name: str) -> None:
    if pa.types.is_decimal(column.type):
        if column.type.scale <= _INCREMENT_DIGITS:
            return
        small = pc.match_substring_regex(plain_text(column, name), rf"\.[0-9]{{{_INCREMENT_DIGITS}}}0*[1-9]")
    else:
        small = pc.and_(pc.less(pc.abs(column), 10.0**-_INCREMENT_DIGITS), pc.not_equal(column, 0.0))
    if pc.any(small).as_py():
        raise PrepareError(
            f"Column {name!r} contains {wire(column.filter(small)[:1])[0].as_py().decode()}, and INCRBYFLOAT of Redis "
            f"keeps {_INCREMENT_DIGITS} digits after the decimal point.",
            next_step="Round it in the query, or give whole numbers of a smaller unit as bigint.",
            column=name,
        )


# --- MessagePack ----------------------------------------------------------------------------------------------------


def _headers(kind: int, lengths: npt.NDArray[Any]) -> pa.Array:
    """Returns MessagePack's five header bytes of a string or an array, for each of these lengths."""
    heads = np.empty((len(lengths), 5), np.uint8)
    heads[:, 0] = kind
    heads[:, 1:] = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(5), len(lengths), [None, pa.py_buffer(heads)])
    return fixed.cast(pa.binary())


def _packed(part: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Returns strings preceded by their lengths in MessagePack. A null remains null."""
    if isinstance(part, pa.Scalar):
        text = part.as_py()
        return pa.scalar(bytes([_STR32]) + len(text).to_bytes(4, "big") + text, pa.binary())
    lengths = pc.fill_null(pc.binary_length(part), 0).to_numpy(zero_copy_only=False)
    return _join([_headers(_STR32, lengths), part])


def _join(parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _command(verb: str, *parts: pa.Array | pa.Scalar) -> pa.Array:
    """Returns a whole command for each row; null if any part of it is null."""
    head = bytes([0x90 | (1 + len(parts)), 0xA0 | len(verb)]) + verb.encode()
    return _join([pa.scalar(head, pa.binary()), *map(_packed, parts)])


def _or_else(first: tuple[Any, ...], second: tuple[str, int]) -> pa.Array:
    """Returns the first command or, where a part of it is null, the second one.

    A command is its verb and its parts. The second command takes this many parts from the first.
    """
    verb, count = second
    return pc.coalesce(_command(*first), _command(verb, *first[1 : 1 + count]))


_Fits = Callable[[pa.DataType], bool]

_OPTIONAL: Mapping[str, frozenset[str]] = {
    "string": frozenset({"value"}),
    "hash": frozenset({"field", "value", "fields"}),
    "list": frozenset({"value"}),
    "set": frozenset({"member"}),
    "sorted_set": frozenset({"member", "score"}),
    "increment": frozenset({"amount", "field", "member"}),
}
"""The settings of each structure, other than the key and the time to live."""

STRUCTURES = tuple(_OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a row becomes commands. See `RedisSink` for the settings, which name columns (or a template).

    Raises:
        ConfigurationError: If a setting is unknown, missing, or unused by the structure. The message names it.
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
                    f"{name}={getattr(self, name)!r} has no effect with structure={self.structure!r}.",
                    next_step=f"Leave {name} out: that structure has {', '.join(sorted(_OPTIONAL[self.structure]))}.",
                )
        self._check_pairs()
        if self.ttl_s is not None and self.ttl_s < 1:
            raise ConfigurationError(
                f"ttl_s={self.ttl_s!r} is not a valid time to live.", next_step="Give whole seconds, at least 1."
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
                "becomes a field.",
            )

    def template_parts(self) -> list[tuple[str, str | None]]:
        """Returns the parts of the key's template, each with the column that follows it."""
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
        if self.key_template is not None:
            return [column for _, column in self.template_parts() if column is not None]
        return [self.key or "key"]

    def hash_fields(self, names: Sequence[str]) -> list[str]:
        """Returns the columns that are fields of a hash: the configured ones or, by default, all other columns."""
        if self.fields is not None:
            return list(self.fields)
        taken = {*self.key_columns(), self.ttl}
        return [name for name in names if name not in taken]

    def columns(self, schema: pa.Schema) -> list[str]:
        """Returns the columns that are used, each once.

        Raises:
            SchemaError: If a column is missing or has an unsuitable type. The message names it.
        """
        wanted: list[tuple[str, _Fits, str]] = [(name, _is_text, _TEXT) for name in self.key_columns()]
        wanted += self._value_columns(schema)
        if self.ttl is not None:
            wanted.append((self.ttl, pa.types.is_integer, "a whole number of seconds"))
        for name, fits, what in wanted:
            _check(schema, name, fits, what)
        if self.structure == "hash" and len(wanted) == len(self.key_columns()) + (self.ttl is not None):
            raise SchemaError(
                f"A hash needs fields, but the columns are {schema.names}.", next_step="Add a column for a field."
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
            f"Column {name!r} is {spark_type(kind)}, and {what} is needed.",
            next_step="Cast it (timestamps: date_format; structs and maps: to_json), or drop it.",
            column=name,
        )

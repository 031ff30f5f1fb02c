"""The Spark types that each format takes, and their types in its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import types

from sparkonce.errors import SchemaError
from sparkonce.sinks._shared.parquet import may_be_null

_NESTED = frozenset({"parquet", "json", "arrow"})
_PARTITION_TYPES = "string, boolean, byte, short, int, long, decimal and date"


def check_columns(schema: pa.Schema, format: str, partition_by: Sequence[str]) -> list[str]:  # noqa: A002
    """Returns all columns, once each is known to fit.

    Args:
        schema: The schema of the rows, as Spark hands them over.
        format: One of `sparkonce.sinks.files.formats.FORMATS`.
        partition_by: The columns that name folders.

    Raises:
        SchemaError: naming the column.
    """
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise SchemaError(f"The column {name!r} appears more than once.", next_step="Drop or rename all but one.")
    for name in partition_by:
        if name not in schema.names:
            raise SchemaError(
                f"partition_by={list(partition_by)!r} names {name!r}, which is not among the columns {schema.names}.",
                next_step="Add the column, or leave it out of partition_by.",
            )
        kind = schema.field(name).type
        if not _names_a_folder(kind):
            raise SchemaError(
                f"partition_by names the column {name!r}, which is {kind}; folders are named by {_PARTITION_TYPES}.",
                next_step="Cast it: a timestamp to date, for example.",
            )
    written = [field for field in schema if field.name not in partition_by]
    if not written:
        raise SchemaError(
            f"partition_by={list(partition_by)!r} leaves no column to write.", next_step="Leave one column out of it."
        )
    if format == "text":
        _check_text(written)
    for field in written:
        if reason := _refusal(field.type, format):
            raise SchemaError(
                f"The column {field.name!r} is {field.type}: {reason}.",
                next_step="Cast it, turn it into a string (to_json), or drop it.",
            )
    return list(schema.names)


def _check_text(written: list[pa.Field]) -> None:
    if len(written) == 1 and is_string(written[0].type):
        return
    found = ", ".join(f"{field.name}: {field.type}" for field in written)
    raise SchemaError(
        f"format='text' takes one column of strings beside those of partition_by, and is given {found}.",
        next_step="Select one string, for example to_json(struct('*')) AS value, or use another format.",
    )


def _refusal(kind: pa.DataType, format: str) -> str:  # noqa: A002
    if types.is_map(kind):
        return "no format here takes a map"
    if types.is_null(kind):
        return "a column of nothing but nulls has no type"
    if types.is_duration(kind) or types.is_interval(kind):
        return "" if format == "arrow" and types.is_duration(kind) else f"{format} files have no intervals"
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind):
        if format not in _NESTED:
            return f"{format} files have no nested values"
        children = [kind.field(number) for number in range(kind.num_fields)]
        if types.is_struct(kind) and not children:
            return "a struct without fields cannot be written"
        if any(b"variant" in (child.metadata or {}) for child in children):
            return "it is Spark's variant, which readers would take for two columns of bytes"
        return next((reason for child in children if (reason := _refusal(child.type, format))), "")
    return "" if _is_plain(kind) else "no format here takes it"


def _is_plain(kind: pa.DataType) -> bool:
    return (
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or is_string(kind)
        or is_binary(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
    )


def _names_a_folder(kind: pa.DataType) -> bool:
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind)
    return plain or is_string(kind) or types.is_date32(kind)


def is_string(kind: pa.DataType) -> bool:
    """Returns whether the type holds text."""
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether the type holds bytes."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of a file, with timestamps in UTC in every session, so that all files of a folder agree."""
    return pa.schema([field.with_type(may_be_null(in_utc(field.type))) for field in schema])


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Returns the type with all its timestamps in UTC. The stored values stay: they count from 1970 in UTC anyway."""
    if types.is_timestamp(kind):
        return kind if kind.tz in (None, "UTC") else pa.timestamp(kind.unit, "UTC")
    rebuild: Callable[[list[pa.Field]], pa.DataType]
    if types.is_struct(kind):
        rebuild = pa.struct
    elif types.is_large_list(kind):
        rebuild = lambda fields: pa.large_list(fields[0])  # noqa: E731
    elif types.is_list(kind):
        rebuild = lambda fields: pa.list_(fields[0])  # noqa: E731
    else:
        return kind
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return rebuild([field.with_type(in_utc(field.type)) for field in fields])

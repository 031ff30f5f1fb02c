"""Rows as lines of text: the buffer of one Arrow array holds all lines of a record batch, and is what the file gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkonce.errors import PrepareError
from sparkonce.sinks._shared.arrow_text import STRING, float_text, in_quotes, json_object, plain_text, utf8_text
from sparkonce.sinks._shared.pieces import bytes_of
from sparkonce.sinks.files.types import is_binary


def json_lines(rows: pa.RecordBatch) -> memoryview:
    """Returns each row as a JSON object in one line, its fields in the order of the columns."""
    return _joined([json_object(rows.columns, rows.schema.names), pa.scalar("\n", STRING)])


def csv_lines(rows: pa.RecordBatch, delimiter: str) -> memoryview:
    """Returns each row as a line of RFC 4180. Strings and bytes are quoted, also empty ones; a null is an empty field.

    Raises:
        PrepareError: for a null in the only column: it would be an empty line, which readers skip; for a string that
            is not UTF-8.
    """
    if rows.num_columns == 1 and rows.column(0).null_count:
        raise PrepareError(
            f"The only column, {rows.schema.names[0]!r}, holds a null, and CSV's readers skip an empty line.",
            next_step="Replace nulls (coalesce) or filter them out, write a second column, or use another format.",
        )
    parts: list[Any] = []
    for column, name in zip(rows.columns, rows.schema.names, strict=True):
        parts += [pc.fill_null(_csv_cells(column, name), ""), pa.scalar(delimiter, STRING)]
    return _joined([*parts[:-1], pa.scalar("\n", STRING)])


def csv_header(names: Sequence[str], delimiter: str) -> bytes:
    """Returns the line with the columns' names."""
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    return (delimiter.join(quoted) + "\n").encode()


def text_lines(rows: pa.RecordBatch) -> memoryview:
    """Returns each value as a line.

    Raises:
        PrepareError: for a null, for a value with a line's end inside, which a reader would take for two rows, and for
            one that is not UTF-8.
    """
    column, name = rows.column(0), rows.schema.names[0]
    if column.null_count:
        raise PrepareError(
            f"The column {name!r} holds a null, and a line of text cannot say so.",
            next_step="Replace nulls (coalesce), or filter them out.",
        )
    if pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py():
        raise PrepareError(
            f"The column {name!r} holds a value with a line's end inside, which readers would take for several rows.",
            next_step="Replace it, for example by to_json, or write another format.",
        )
    return _joined([utf8_text(column, name), pa.scalar("\n", STRING)])


def _joined(parts: list[Any]) -> memoryview:
    lines = pc.binary_join_element_wise(*parts, pa.scalar("", STRING))
    return bytes_of(lines)


def _csv_cells(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return in_quotes(pc.replace_substring(utf8_text(column, name), '"', '""'))
    if is_binary(kind):
        return in_quotes(plain_text(column, name))
    return float_text(column) if types.is_floating(kind) else plain_text(column, name)

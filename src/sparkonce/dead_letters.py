"""Dead letters: rows that one system rejects, written to another sink together with the reason, sink and batch.

This module handles rows one by one in Python, since rejected rows are few and their number is limited.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparkonce.errors import SchemaError
from sparkonce.sink import TwoPhaseCommitSink, WriterContext
from sparkonce.sinks._shared.arrow import python_value

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""The columns of a dead letter in a table or a file.

The column ``row`` has the rejected row as JSON, with binary values as base64.
"""

MESSAGE = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=False)])
"""The columns if the sink writes messages: the rejecting sink's name, and the five columns as JSON."""


def dead_letter_columns(sink: TwoPhaseCommitSink) -> tuple[str, ...]:
    """Returns the dead-letter columns that this sink accepts, from `DEAD_LETTER_SCHEMA` or else from `MESSAGE`."""
    try:
        return tuple(sink.columns(DEAD_LETTER_SCHEMA))
    except SchemaError as error:
        try:
            return tuple(sink.columns(MESSAGE))
        except SchemaError:
            raise error from None


def to_dead_letters(
    rows: pa.RecordBatch, reasons: Sequence[str], *, sink: str, context: WriterContext, columns: Sequence[str]
) -> pa.RecordBatch:
    """Converts rejected rows to dead letters, with the columns from `dead_letter_columns` and a reason for each row."""
    dead_letters = [
        {
            "sink": sink,
            "batch": context.batch,
            "slot": context.slot,
            "reason": reason,
            "row": {name: _plain(python_value(rows.column(name)[number])) for name in rows.schema.names},
        }
        for number, reason in enumerate(reasons)
    ]
    if set(columns) <= set(MESSAGE.names):
        messages = [{"key": sink, "value": _text(dead_letter)} for dead_letter in dead_letters]
        return pa.RecordBatch.from_pylist(messages, MESSAGE).select(list(columns))
    told = [{**dead_letter, "row": _text(dead_letter["row"])} for dead_letter in dead_letters]
    return pa.RecordBatch.from_pylist(told, DEAD_LETTER_SCHEMA).select(list(columns))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)

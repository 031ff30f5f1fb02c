"""Selects the columns that the Kafka sink writes, and converts Arrow columns to a producer's arguments.

The columns are the same as for Spark's own Kafka sink (``key``, ``value``, ``topic``, ``partition``, ``headers``; see
"Writing Data to Kafka" in Spark's guide), and ``timestamp``. Other columns are ignored, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.sink import Refused, spark_type

CHUNK_ROWS = 16_384
CHUNK_BYTES = 1 << 20
"""The maximum size of a chunk. A chunk with a column of `BY_ROW` is in memory twice: in Arrow, and as Python bytes."""

BY_ROW = frozenset({"headers", "timestamp"})
"""The columns that librdkafka only accepts with single rows."""

CHOSEN_PARTITION = -1
"""librdkafka's number for a partition chosen by its partitioner (``RD_KAFKA_PARTITION_UA``)."""

NOW_MS = 0
"""librdkafka's number for a row that has no timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """Requirements that a topic's settings impose on its rows.

    Attributes:
        most_bytes: ``max.message.bytes``.
        is_compacted: True if ``cleanup.policy`` includes ``compact``, so that each row needs a key.
        takes_far: True if the topic accepts timestamps that are arbitrarily far in the future.
    """

    most_bytes: int
    is_compacted: bool = False
    takes_far: bool = True


_FAR_MS = 7_258_118_400_000
"""2200-01-01, in milliseconds since the epoch.

Kafka compares timestamps with its clock. This limit is fixed, so that the same rows are rejected no matter when they
are written.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows for one topic, in order.

    Attributes:
        topic: The name of the topic.
        rows: The number of rows.
        columns: The rows.
        size_bytes: The total size of all keys, values and headers.
        largest_bytes: An upper bound for the size of the largest row.
    """

    topic: str
    rows: int
    columns: pa.RecordBatch
    size_bytes: int
    largest_bytes: int


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_text_or_binary(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return fields.keys() == {"key", "value"} and _is_text(fields["key"]) and _is_text_or_binary(fields["value"])


def _is_instant(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind)) and kind.tz is not None


_COLUMNS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_is_text_or_binary, "string or binary"),
    "value": (_is_text_or_binary, "string or binary"),
    "topic": (_is_text, "string"),
    "partition": (types.is_int32, "int"),
    "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    "timestamp": (_is_instant, "timestamp (with a time zone: timestamp_ntz names no instant)"),
}


def select_columns(schema: pa.Schema, topic: str | None) -> list[str]:
    """Returns the columns that are written, in a fixed order. The sink's own topic takes precedence over the column.

    Raises:
        SchemaError: If a column is missing, duplicated, or of a type that Kafka does not support. The message names it.
        ConfigurationError: If neither the sink nor a column provides a topic.
    """
    chosen = [name for name in _COLUMNS if name in schema.names and not (name == "topic" and topic is not None)]
    if "value" not in chosen:
        raise SchemaError(
            f"The column 'value' (string or binary) is missing among the columns {schema.names}.",
            next_step="Build it from the others, for example with to_json(struct('*')) AS value.",
        )
    for name in chosen:
        accepts, accepted = _COLUMNS[name]
        if schema.names.count(name) > 1:
            raise SchemaError(f"The column {name!r} appears more than once.", next_step="Drop or rename all but one.")
        kind = schema.field(name).type
        if not accepts(kind):
            what = f"The column {name!r} is {spark_type(kind)}; Kafka takes {accepted}."
            raise SchemaError(what, next_step="Cast it.")
    if topic is None and "topic" not in chosen:
        raise ConfigurationError(
            "No topic is set for the rows.", next_step="Give the sink topic='…', or the rows a column 'topic' (string)."
        )
    return chosen


def bounds(column: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.integer]], pa.Buffer | None]:
    """Returns the offsets of strings or bytes, including the end of the last one, and the buffer that contains them."""
    wide = types.is_large_string(column.type) or types.is_large_binary(column.type)
    kind = np.dtype(np.int64 if wide else np.int32)
    _, ends, data = column.buffers()
    return np.frombuffer(ends, kind, len(column) + 1, column.offset * kind.itemsize), data


def to_chunks(
    rows: pa.RecordBatch, topic: str | None, *, max_rows: int = CHUNK_ROWS, max_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Splits rows into chunks, so that a batch of any size needs little memory. Rows of one topic keep their order.

    A chunk exceeds ``max_bytes`` only if a single row does. Raises PrepareError if a row does not name a topic.
    """
    sizes = _sizes_bytes(rows)
    ends = np.cumsum(sizes)
    start = 0
    while start < rows.num_rows:
        full = int(np.searchsorted(ends, ends[start] - sizes[start] + max_bytes, side="right"))
        stop = min(max(full, start + 1), start + max_rows, rows.num_rows)
        piece, largest = rows.slice(start, stop - start), int(sizes[start:stop].max())
        start = stop
        for name, part in _by_topic(piece, topic):
            yield Chunk(
                topic=name,
                rows=part.num_rows,
                columns=part,
                size_bytes=int(_sizes_bytes(part).sum()),
                largest_bytes=largest,
            )


_AROUND_ROW_BYTES = 61 + 25
"""The size of a record batch's header plus the length fields of a record. Each header of a row adds two more fields."""
_AROUND_HEADER_BYTES = 10


def refused_rows(
    rows: pa.RecordBatch, topic: str | None, most_bytes: int, by_topic: Mapping[str, TopicRules] | None = None
) -> Refused:
    """Returns the rows that Kafka can never accept, regardless of its state.

    Args:
        rows: Rows with the columns of `select_columns`.
        topic: The sink's own topic.
        most_bytes: The size of the largest record batch that the topic accepts: its ``max.message.bytes``.
        by_topic: The rules of the sink's topic, or of the topics that rows name, where they are known.
    """
    whole = _sizes_bytes(rows.drop_columns("headers")) if "headers" in rows.schema.names else _sizes_bytes(rows)
    whole = whole + _AROUND_ROW_BYTES
    checks: list[tuple[Any, str]] = []
    if "headers" in rows.schema.names:
        sizes, keyless = _headers(rows.column("headers"))
        whole += sizes
        checks.append((keyless, f"Column 'headers' holds {_BAD_KEY}."))
    if topic is None:
        topics = rows.column("topic")
        checks.append((_mask(topics.is_null()), "Column 'topic' is null, and the sink has no topic."))
        checks.append((_mask(pc.fill_null(pc.equal(topics, ""), False)), "Column 'topic' is empty."))
    if "timestamp" in rows.schema.names:
        early = pc.less_equal(_instants_ms(rows.column("timestamp")), 0)
        text = "Column 'timestamp' is not after 1970-01-01 00:00:00 UTC, which Kafka cannot store."
        checks.append((_mask(pc.fill_null(early, False)), text))
    checks += _by_rules(rows, topic, by_topic or {})
    reasons: dict[int, str] = {}
    for mask, text in checks:
        reasons.update(dict.fromkeys(np.flatnonzero(mask).tolist(), text))
    most = _limits(rows, most_bytes, by_topic) if topic is None and by_topic else np.full(rows.num_rows, most_bytes)
    for row in np.flatnonzero(whole > most).tolist():
        reasons[row] = f"The row takes {whole[row]} bytes without compression, and max.message.bytes is {most[row]}."
    numbers = sorted(reasons)
    return Refused(rows=numbers, reasons=[reasons[row] for row in numbers])


def _by_rules(rows: pa.RecordBatch, topic: str | None, by_topic: Mapping[str, TopicRules]) -> Iterator[tuple[Any, str]]:
    def of(names: list[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        if topic is not None:
            return np.full(rows.num_rows, topic in names)
        return _mask(pc.fill_null(pc.is_in(rows.column("topic"), pa.array(names, rows.column("topic").type)), False))

    compacted = [name for name, rules in by_topic.items() if rules.is_compacted]
    near = [name for name, rules in by_topic.items() if not rules.takes_far]
    if compacted:
        keyless = _mask(rows.column("key").is_null()) if "key" in rows.schema.names else np.full(rows.num_rows, True)
        yield keyless & of(compacted), "Column 'key' is null, and the topic has cleanup.policy=compact."
    if near and "timestamp" in rows.schema.names:
        far = _mask(pc.fill_null(pc.greater(_instants_ms(rows.column("timestamp")), _FAR_MS), False))
        yield far & of(near), "Column 'timestamp' is after the year 2200, beyond message.timestamp.after.max.ms."


def _limits(
    rows: pa.RecordBatch, most_bytes: int, by_topic: Mapping[str, TopicRules]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns each row's limit, which is never higher than the common limit of all rows."""
    topics = rows.column("topic").dictionary_encode()
    known = (by_topic.get(name) for name in topics.dictionary.to_pylist())
    limits = [min(most_bytes, rules.most_bytes) if rules else most_bytes for rules in known]
    numbers = pc.fill_null(topics.indices, len(limits)).to_numpy(zero_copy_only=False)
    found: np.ndarray[Any, np.dtype[np.int64]] = np.array([*limits, most_bytes], np.int64)[numbers]
    return found


_BAD_KEY = "a header whose key is null, has the character NUL or is not UTF-8, which librdkafka cannot send"


def _headers(column: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Returns two values for each row: the size of its headers, and True if a header's key cannot be sent."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends, entries = np.cumsum(counts), column.flatten()
    keys, values = pc.struct_field(entries, "key"), pc.struct_field(entries, "value")
    sizes = sum(pc.fill_null(pc.binary_length(one), 0).to_numpy(zero_copy_only=False) for one in (keys, values))
    sums = np.concatenate(([0], np.cumsum(sizes + _AROUND_HEADER_BYTES))).astype(np.int64)
    lacking = np.concatenate(([0], np.cumsum(_bad_keys(keys))))
    return sums[ends] - sums[ends - counts], lacking[ends] > lacking[ends - counts]


def _bad_keys(keys: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    # librdkafka reads a key only up to its first NUL.
    bytes_of_keys = pc.fill_null(keys.cast(pa.large_binary()), b"\0")
    bad = _mask(pc.match_substring(bytes_of_keys, "\0"))
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        whole = (one == one.decode(errors="ignore").encode() for one in bytes_of_keys.to_pylist())
        bad |= ~np.fromiter(whole, bool, len(keys))
    return bad


def _mask(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask: np.ndarray[Any, np.dtype[np.bool_]] = column.to_numpy(zero_copy_only=False)
    return mask


def _sizes_bytes(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in rows.schema.names:
        column = rows.column(name)
        if name in ("key", "value"):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        elif name == "headers" and rows.num_rows:
            sizes += column.nbytes // rows.num_rows
    return sizes


def _by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, rows
        return
    column = rows.column("topic")
    if column.null_count:
        raise PrepareError(
            "A row's column 'topic' is null, and the sink has no topic to fall back on.",
            next_step="Filter such rows out, or give the sink topic='…'.",
        )
    topics = pc.unique(column).to_pylist()
    for name in topics:
        yield name, rows if len(topics) == 1 else rows.filter(pc.equal(column, name))


def to_arguments(rows: pa.RecordBatch) -> dict[str, list[Any]]:
    """Returns the arguments for confluent-kafka's ``produce``: for each argument's name, a list with a value per row.

    Omits columns that contain only nulls, because each additional argument takes time.

    Raises:
        PrepareError: If a field has a value that Kafka does not support. The message names the field.
    """
    return {
        name: _CONVERT[name](rows.column(name))
        for name in _CONVERT
        if name in rows.schema.names and rows.column(name).null_count < rows.num_rows
    }


def _to_bytes(column: pa.Array) -> list[Any]:
    wide = types.is_large_string(column.type) or types.is_large_binary(column.type)
    values: list[Any] = column.cast(pa.large_binary() if wide else pa.binary()).to_pylist()  # This cast copies nothing.
    return values


def _to_partitions(column: pa.Array) -> list[Any]:
    numbers: list[Any] = pc.fill_null(column, CHOSEN_PARTITION).to_pylist()
    return numbers


def _to_timestamps_ms(column: pa.Array) -> list[Any]:
    instants = _instants_ms(column)
    if pc.min(instants).as_py() <= 0:
        raise PrepareError(
            "A row's column 'timestamp' is not after 1970-01-01 00:00:00 UTC, which Kafka cannot store.",
            next_step="Write null there to have the time of writing.",
        )
    numbers: list[Any] = pc.fill_null(instants, NOW_MS).to_pylist()
    return numbers


def _instants_ms(column: pa.Array) -> pa.Array:
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())


def _to_headers(column: pa.Array) -> list[Any]:
    entries = column.flatten()
    keys, values = pc.struct_field(entries, "key"), pc.struct_field(entries, "value")
    if _bad_keys(keys).any():
        raise PrepareError(
            f"A row's column 'headers' holds {_BAD_KEY}.",
            next_step="Correct the key in the query, for example with replace or make_valid_utf8, or filter it out.",
        )
    pairs = iter(zip(keys.to_pylist(), _to_bytes(values), strict=True))
    counts = pc.list_value_length(column).to_pylist()
    return [None if count is None else list(islice(pairs, count)) for count in counts]


_CONVERT: dict[str, Callable[[pa.Array], list[Any]]] = {
    "value": _to_bytes,
    "key": _to_bytes,
    "partition": _to_partitions,
    "timestamp": _to_timestamps_ms,
    "headers": _to_headers,
}

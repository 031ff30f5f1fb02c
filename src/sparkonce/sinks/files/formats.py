"""The file formats: extensions, options, supported Spark types, and encoders.

Text formats encode a whole record batch into the buffer of one Arrow array, which is written to the file as is.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkonce.arguments import one_of
from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.sinks._shared.arrow import STRING, bytes_of, float_text, in_quotes, json_object, plain_text, utf8_text
from sparkonce.sinks._shared.parquet import ParquetOutput, may_be_null

NONE = "none"
_ENDINGS = {NONE: "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}
_TEXT_CODECS = tuple(_ENDINGS)
_NO_DELIMITERS = '"\r\n\0+-.:'
"""Characters that cannot be delimiters, because values without quotes, such as numbers and dates, may contain them."""

_MIB = 1 << 20
_SLICES, _SLICE_ROWS = 64, 256
"""A sample has 64 slices of 256 rows each. With so many slices, values repeat even if their cycle is long."""

_UNIQUE = 0.99
"""If at least this fraction of a sample's values is distinct, the column gets no dictionary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A file format.

    Attributes:
        codecs: The names of the format's compressions, with the default first.
        options: The format's options with their defaults.
        piece_bytes: The number of bytes of Arrow data to collect before encoding them.
        in_name: True if the compression is part of the file's name.
    """

    codecs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    piece_bytes: int = 4 * _MIB
    in_name: bool = True


FORMATS: Mapping[str, Format] = {
    "parquet": Format(
        codecs=("snappy", "zstd", "gzip", "lz4", "brotli", NONE),
        options={"row_group_bytes": 64 * _MIB, "compression_level": 0, "use_dictionary": True},
        in_name=False,
    ),
    "csv": Format(codecs=_TEXT_CODECS, options={"header": True, "delimiter": ","}),
    "json": Format(codecs=_TEXT_CODECS),
    "arrow": Format(codecs=(NONE, "zstd", "lz4"), piece_bytes=8 * _MIB, in_name=False),
    "text": Format(codecs=_TEXT_CODECS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A format with the user's validated options."""

    format: str
    compression: str
    options: tuple[tuple[str, Any], ...]

    @property
    def extension(self) -> str:
        """The extension of a file's name, such as ``.csv.gz``."""
        base = ".txt" if self.format == "text" else f".{self.format}"
        return base + (_ENDINGS[self.compression] if FORMATS[self.format].in_name else "")

    @property
    def piece_bytes(self) -> int:
        return int(dict(self.options).get("row_group_bytes", FORMATS[self.format].piece_bytes))

    def open(self, stream: BinaryIO) -> Encoder:
        return _ENCODERS[self.format](stream, self.compression, dict(self.options))


def choose(format: str, compression: str | None, options: Mapping[str, Any]) -> Encoding:  # noqa: A002
    """Validates the user's format and options."""
    known = FORMATS[one_of("format", format, tuple(FORMATS))]
    codec = known.codecs[0] if compression is None else compression
    if codec not in known.codecs:
        raise ConfigurationError(
            f"compression={compression!r} is not known for format={format!r}.",
            next_step=f"Use one of {', '.join(known.codecs)}.",
            setting="compression",
        )
    for name, value in options.items():
        _check_option(format, name, value, known.options)
    return Encoding(format=format, compression=codec, options=tuple(sorted({**known.options, **options}.items())))


def _check_option(format: str, name: str, value: Any, known: Mapping[str, Any]) -> None:  # noqa: A002
    if name not in known:
        raise ConfigurationError(
            f"options[{name!r}] is given, which format={format!r} does not know.",
            next_step=f"Use one of {', '.join(known)}." if known else "Leave it out: it has no options.",
            setting=name,
        )
    if type(value) is not type(known[name]):
        raise ConfigurationError(
            f"options[{name!r}]={value!r} must be of type {type(known[name]).__name__}.",
            next_step=f"Give a value such as the default, {known[name]!r}.",
            setting=name,
        )
    if name == "delimiter" and (len(value) != 1 or value in _NO_DELIMITERS or value.isalnum()):
        raise ConfigurationError(
            f"options['delimiter']={value!r} must be one character that does not occur in numbers, timestamps or "
            "quotes.",
            next_step="Use ',' or '\\t', for example.",
            setting=name,
        )
    if name == "row_group_bytes" and value < 1:
        raise ConfigurationError(f"options[{name!r}]={value!r} must be at least 1.", next_step="Give 1 or more.")


class Encoder(abc.ABC):
    """An encoder of rows into one file's bytes."""

    @abc.abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Encodes rows."""

    @abc.abstractmethod
    def close(self) -> None:
        """Writes the end of the file without closing the stream."""


class _ParquetEncoder(Encoder):
    def __init__(self, stream: BinaryIO, compression: str, options: Mapping[str, Any]) -> None:
        self._stream = stream
        self._compression = compression
        self._options = options
        self._writer: Any = None

    def write(self, rows: pa.Table) -> None:
        if self._writer is None:
            wanted = self._options["use_dictionary"]
            self._writer = ParquetOutput(
                self._stream,
                rows.schema,
                compression=self._compression,
                compression_level=self._options["compression_level"] or None,
                use_dictionary=_repeating(rows) if wanted else False,
            )
        self._writer.write(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _repeating(rows: pa.Table) -> list[str] | bool:
    """Returns the columns whose values repeat, according to a sample spread over all rows; True means all columns.

    pyarrow starts a dictionary for every column and abandons it at 1 MiB. For unique values, the dictionary took up to
    a quarter of the encoding time. If 1% of a sample's values repeat, the dictionary may still fit into 1 MiB.
    """
    import pyarrow.compute as pc

    # For a nested column, dictionary encoding is set per leaf path.
    nested = any(map(pa.types.is_nested, rows.schema.types))
    if nested or rows.num_rows < 2 * _SLICES * _SLICE_ROWS:
        return True
    starts = range(0, rows.num_rows, rows.num_rows // _SLICES)
    sample = pa.concat_tables([rows.slice(start, _SLICE_ROWS) for start in starts])
    most = _UNIQUE * sample.num_rows
    return [name for name in rows.column_names if len(pc.unique(sample[name])) <= most]


class _ArrowEncoder(Encoder):
    def __init__(self, stream: BinaryIO, compression: str, options: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._stream = stream
        self._options = pa.ipc.IpcWriteOptions(compression=None if compression == NONE else compression)
        self._writer: Any = None

    def write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._stream, rows.schema, options=self._options)
        self._writer.write_table(rows.combine_chunks())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class LinesEncoder(Encoder):
    """An encoder of rows into lines of text."""

    def __init__(self, stream: BinaryIO, compression: str, options: Mapping[str, Any]) -> None:
        self._options = options
        self._compressed = None if compression == NONE else pa.CompressedOutputStream(_Unclosed(stream), compression)
        self._stream: Any = self._compressed or stream

    def write(self, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            self._stream.write(self._lines(batch))

    def copy(self, lines: bytes | memoryview) -> None:
        """Writes lines that are already encoded."""
        self._stream.write(lines)

    def close(self) -> None:
        if self._compressed is not None:
            self._compressed.close()

    def _lines(self, rows: pa.RecordBatch) -> memoryview:
        raise NotImplementedError


class _JsonEncoder(LinesEncoder):
    def _lines(self, rows: pa.RecordBatch) -> memoryview:
        return json_lines(rows)


class _TextEncoder(LinesEncoder):
    def _lines(self, rows: pa.RecordBatch) -> memoryview:
        return text_lines(rows)


class _CsvEncoder(LinesEncoder):
    _begun = False

    def _lines(self, rows: pa.RecordBatch) -> memoryview:
        if not self._begun and self._options["header"]:
            self._stream.write(csv_header(rows.schema.names, self._options["delimiter"]))
        self._begun = True
        return csv_lines(rows, self._options["delimiter"])


class _Unclosed:
    """A stream that ignores `close`: pyarrow's compressed stream would otherwise close it before `seal`."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write
        self.tell = stream.tell

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def writable(self) -> bool:
        return True


_ENCODERS: Mapping[str, Callable[[BinaryIO, str, Mapping[str, Any]], Encoder]] = {
    "parquet": _ParquetEncoder,
    "csv": _CsvEncoder,
    "json": _JsonEncoder,
    "arrow": _ArrowEncoder,
    "text": _TextEncoder,
}

_NESTED = frozenset({"parquet", "json", "arrow"})
_PARTITION_TYPES = "string, boolean, tinyint, smallint, int, bigint, decimal and date"


def check_columns(schema: pa.Schema, format: str, partition_by: Sequence[str]) -> list[str]:  # noqa: A002
    """Returns all columns, after checking that the format supports each column's type.

    Raises:
        SchemaError: If a column is rejected. The message names it.
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
                f"partition_by names the column {name!r}, which is {spark_type(kind)}; folders are named by "
                f"{_PARTITION_TYPES}.",
                next_step="Cast it: a timestamp to date, for example.",
            )
    written = [field for field in schema if field.name not in partition_by]
    if not written:
        raise SchemaError(
            f"partition_by={list(partition_by)!r} leaves no column to write.", next_step="Leave one column out of it."
        )
    if format == "text":
        _check_text(written)
    for column in written:
        if reason := _refusal(column.type, format):
            raise SchemaError(
                f"The column {column.name!r} is {spark_type(column.type)}: {reason}.",
                next_step="Cast it, turn it into a string (to_json), or drop it.",
            )
    return list(schema.names)


def _check_text(written: list[pa.Field]) -> None:
    if len(written) == 1 and is_string(written[0].type):
        return
    found = ", ".join(f"{field.name}: {spark_type(field.type)}" for field in written)
    raise SchemaError(
        f"format='text' takes one column of strings besides those of partition_by, and got {found}.",
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
    """Returns True if the type holds text."""
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Returns True if the type holds bytes."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of a file, with all timestamps in UTC.

    The files of a folder therefore have the same types regardless of the session's time zone.
    """
    return pa.schema([field.with_type(may_be_null(in_utc(field.type))) for field in schema])


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Returns the type with all its timestamps in UTC. Stored values do not change: they count from 1970 in UTC."""
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


def json_lines(rows: pa.RecordBatch) -> memoryview:
    """Returns each row as a JSON object on one line, with its fields in column order."""
    return _joined([json_object(rows.columns, rows.schema.names), pa.scalar("\n", STRING)])


def csv_lines(rows: pa.RecordBatch, delimiter: str) -> memoryview:
    """Returns each row as a line of RFC 4180. Strings and bytes are quoted, even if empty; a null is an empty field.

    Raises:
        PrepareError: If the only column contains a null, which would be an empty line that readers skip, or if a string
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
    """Returns the header line with the column names."""
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    return (delimiter.join(quoted) + "\n").encode()


def text_lines(rows: pa.RecordBatch) -> memoryview:
    """Returns each value as one line.

    Raises:
        PrepareError: If a value is null, is not UTF-8, or contains a line break, which would make it two rows.
    """
    column, name = rows.column(0), rows.schema.names[0]
    if column.null_count:
        raise PrepareError(
            f"The column {name!r} holds a null, which a line of text cannot express.",
            next_step="Replace nulls (coalesce), or filter them out.",
        )
    if pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py():
        raise PrepareError(
            f"The column {name!r} holds a value with a line break, which readers would take for several rows.",
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

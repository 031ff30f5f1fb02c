"""The formats: a file's extension, its options, and the encoders that turn rows into its bytes."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from sparkonce.arguments import one_of
from sparkonce.errors import ConfigurationError
from sparkonce.sinks._shared.parquet import ParquetOutput
from sparkonce.sinks.files.cells import csv_header, csv_lines, json_lines, text_lines

NONE = "none"
_ENDINGS = {NONE: "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}
_TEXT_CODECS = tuple(_ENDINGS)
_NO_DELIMITERS = '"\r\n\0+-.:'
"""Refused beside letters and digits: numbers, ``true``, ``NaN``, dates and timestamps are written without quotes."""

_MIB = 1 << 20
_SLICES, _SLICE_ROWS = 64, 256
"""The number and rows of a sample's slices: so many that some overlap if the values come round in turn."""

_UNIQUE = 0.99
"""The part of a sample's values that are distinct in a column without a dictionary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format.

    Attributes:
        codecs: The names of its compressions, the default first.
        options: Its options with their defaults.
        piece_bytes: How much of Arrow's memory is gathered before it is encoded.
        in_name: Whether a compression is a part of the file's name.
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
    """A format with the user's choices, checked."""

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
        """The part of Arrow's memory that is gathered before it is encoded."""
        return int(dict(self.options).get("row_group_bytes", FORMATS[self.format].piece_bytes))

    def open(self, stream: BinaryIO) -> Encoder:
        """Begins a file."""
        return _ENCODERS[self.format](stream, self.compression, dict(self.options))


def choose(format: str, compression: str | None, options: Mapping[str, Any]) -> Encoding:  # noqa: A002
    """Checks the format that the user chose.

    Raises:
        ConfigurationError: naming the setting and its value.
    """
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
            f"options['delimiter']={value!r} must be one character that no number, instant or quote is written with.",
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
        """Writes the file's end, but does not close the stream."""


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
    """Returns the columns with values that repeat, by a sample from all over the rows; True for all.

    pyarrow begins a dictionary for every column, and gives one up that reaches 1 MiB. With unique values, this took up
    to a quarter of the time of encoding. Values of which 1 % repeat in the sample may still fit into 1 MiB.
    """
    import pyarrow.compute as pc

    nested = any(map(pa.types.is_nested, rows.schema.types))  # their dictionaries go by the paths of leaves
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
        """See `Encoder.write`."""
        for batch in rows.combine_chunks().to_batches():
            self._stream.write(self._lines(batch))

    def copy(self, lines: bytes | memoryview) -> None:
        """Writes lines that are encoded already."""
        self._stream.write(lines)

    def close(self) -> None:
        """See `Encoder.close`."""
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
    """A stream that a compressed stream of pyarrow, which closes the stream under it, leaves open for `seal`."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write
        self.tell = stream.tell

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def writable(self) -> bool:
        """Returns True."""
        return True


_ENCODERS: Mapping[str, Callable[[BinaryIO, str, Mapping[str, Any]], Encoder]] = {
    "parquet": _ParquetEncoder,
    "csv": _CsvEncoder,
    "json": _JsonEncoder,
    "arrow": _ArrowEncoder,
    "text": _TextEncoder,
}

"""Writes the rows of many small files into few large ones of the same format, schema and compression."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from sparkonce.errors import CorruptRecordError
from sparkonce.sinks.files.formats import NONE, Encoder, Encoding, LinesEncoder, choose
from sparkonce.sinks.files.manifests import CommittedFile
from sparkonce.sinks.files.names import extension_in, name_in
from sparkonce.sinks.files.store import StagedFile

FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".json": "json", ".txt": "text"}
_CODECS = {"": NONE, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_CHUNK_BYTES = 4 << 20
_OPEN = 4
"""The most schemas, of files of one folder, whose new files are open at once."""

_NEXT_STEP = "Restore the file from a backup. Nothing was changed: the folder is as it was."


@dataclass(slots=True)
class Rewritten:
    """A new file that is being written, and the files whose rows it has."""

    staged: StagedFile
    encoding: Encoding
    encoder: Encoder
    inputs: list[CommittedFile] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    gathered: int = 0

    @property
    def rows(self) -> int:
        """The rows of all its files, by their manifests, and each compared with what was read."""
        return sum(one.rows for one in self.inputs)

    def add(self, table: pa.Table) -> None:
        """Gathers rows, and encodes them in pieces large enough for the format."""
        self.tables.append(table)
        self.gathered += table.nbytes
        if self.gathered >= self.encoding.piece_bytes:
            self.flush()

    def flush(self) -> None:
        """Encodes what is gathered."""
        if self.tables:
            self.encoder.write(pa.concat_tables(self.tables))
            self.tables, self.gathered = [], 0


def rewrite(
    contents: Iterator[tuple[CommittedFile, bytes]],
    stage: Callable[[str], StagedFile],
    target_bytes: int,
) -> Iterator[Rewritten]:
    """Yields new files, written and not sealed, each once it has the rows of files of the wanted size together.

    Args:
        contents: The small files of one folder and extension, with their bytes.
        stage: Begins a file with an extension.
        target_bytes: The size.

    Raises:
        CorruptRecordError: for a file that has other bytes or rows than its manifest says.
    """
    open_: dict[object, Rewritten] = {}
    for file, content in contents:
        _check_bytes(file, content)
        extension = extension_in(file.path)
        first, codec = _split(extension)
        read = _read_table if FORMATS[first] in ("parquet", "arrow") else _read_lines
        key, encoding, pieces = read(file, content, FORMATS[first], codec)
        new = open_.pop(key, None)
        if new is None:
            if len(open_) >= _OPEN:
                yield _closed(open_.pop(next(iter(open_))))
            staged = stage(extension)
            new = Rewritten(staged, encoding, encoding.open(staged.stream))
        _append(new, pieces, first=not new.inputs)
        new.inputs.append(file)
        if sum(one.size_bytes for one in new.inputs) >= target_bytes:
            yield _closed(new)
        else:
            open_[key] = new
    for new in open_.values():
        yield _closed(new)


def _append(new: Rewritten, pieces: Any, *, first: bool) -> None:
    if isinstance(pieces, pa.Table):
        new.add(pieces)
        return
    header, lines = pieces
    encoder = cast("LinesEncoder", new.encoder)  # by the format
    if first:
        encoder.copy(header)
    for line in lines:
        encoder.copy(line)


def _closed(new: Rewritten) -> Rewritten:
    new.flush()
    new.encoder.close()
    return new


def _split(extension: str) -> tuple[str, str]:
    first, dot, codec = extension[1:].partition(".")
    return "." + first, _CODECS[dot + codec]


def _check_bytes(file: CommittedFile, content: bytes) -> None:
    crc = file.checksum.removeprefix("crc32:")
    same = crc == file.checksum or f"{zlib.crc32(content):08x}" == crc  # an ETag depends on the parts of its upload
    if len(content) != file.size_bytes or not same:
        raise CorruptRecordError(
            f"{file.path} has {len(content)} bytes and not those that its manifest says: {file.size_bytes}, "
            f"{file.checksum}.",
            next_step=_NEXT_STEP,
        )


def _check_rows(file: CommittedFile, rows: int) -> None:
    if rows != file.rows:
        raise CorruptRecordError(
            f"{file.path} has {rows} rows, and its manifest says {file.rows}.", next_step=_NEXT_STEP
        )


# --- Parquet and Arrow ------------------------------------------------------------------------------------------------


def _read_table(file: CommittedFile, content: bytes, format: str, _: str) -> tuple[object, Encoding, pa.Table]:  # noqa: A002
    buffer = pa.py_buffer(content)
    try:
        table, codec = (_read_parquet if format == "parquet" else _read_arrow)(buffer)
    except pa.ArrowException as error:
        raise CorruptRecordError(f"{file.path} cannot be read: {error}.", next_step=_NEXT_STEP) from error
    _check_rows(file, table.num_rows)
    return (table.schema.serialize().to_pybytes(), codec), choose(format, codec, {}), table


def _read_parquet(buffer: pa.Buffer) -> tuple[pa.Table, str]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(buffer))
    named = file.metadata.row_group(0).column(0).compression.lower() if file.metadata.num_row_groups else NONE
    return file.read(), NONE if named == "uncompressed" else named


def _read_arrow(buffer: pa.Buffer) -> tuple[pa.Table, str]:
    with pa.ipc.open_file(pa.BufferReader(buffer)) as reader:
        table = reader.read_all()
    # Rows that are not compressed are read where they are, without a copy.
    start, end = buffer.address, buffer.address + buffer.size
    copied = any(
        part is not None and part.size and not start <= part.address < end
        for column in table.columns
        for chunk in column.chunks
        for part in chunk.buffers()
    )
    return table, _arrow_codec(buffer) if copied else NONE


_ARROW_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of a compressed buffer."""


def _arrow_codec(buffer: pa.Buffer) -> str:
    content = buffer.to_pybytes()
    found = {content.find(magic): codec for magic, codec in _ARROW_CODECS.items() if magic in content}
    return found[min(found)] if found else NONE


# --- lines of text ----------------------------------------------------------------------------------------------------


def _read_lines(
    file: CommittedFile,
    content: bytes,
    format: str,  # noqa: A002
    codec: str,
) -> tuple[object, Encoding, tuple[bytes, Iterator[memoryview]]]:
    header, rows = _count(content, codec, quoted=format == "csv")
    if format != "csv" or rows == file.rows:
        header = b""  # a file without a header: its first line is a row
    _check_rows(file, rows - bool(header))
    # Without a header nothing tells the columns, which change from run to run only.
    run = name_in(file.path) if format == "csv" and not header else None
    key = (header, None if run is None else run.token)
    return key, choose(format, codec, {}), (header, _without(len(header), _chunks(content, codec)))


def _chunks(content: bytes, codec: str) -> Iterator[bytes]:
    stream: Any = pa.BufferReader(content)
    if codec != NONE:
        stream = pa.CompressedInputStream(stream, codec)
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def _count(content: bytes, codec: str, *, quoted: bool) -> tuple[bytes, int]:
    """Returns the first line with its end, and the number of lines. In quotes, a line's end is a part of a value."""
    count, inside, first, begun = 0, 0, b"", b""
    for chunk in _chunks(content, codec):
        data = np.frombuffer(chunk, np.uint8)
        ends = data == 10
        if quoted:
            parity = (np.cumsum(data == 34, dtype=np.uint8) + inside) & 1  # wraps at 256, which is even
            ends &= parity == 0
            inside = int(parity[-1])
        if not first:
            if ends.any():
                first = begun + chunk[: int(ends.argmax()) + 1]
            else:
                begun += chunk
        count += int(np.count_nonzero(ends))
    return first, count


def _without(skipped: int, chunks: Iterator[bytes]) -> Iterator[memoryview]:
    for chunk in chunks:
        yield memoryview(chunk)[min(skipped, len(chunk)) :]
        skipped -= min(skipped, len(chunk))


def mergeable(files: Sequence[CommittedFile]) -> bool:
    """Returns whether the format of these files, which share an extension, is known."""
    return "." + extension_in(files[0].path)[1:].partition(".")[0] in FORMATS

"""Compacts small files of old, whole batches into larger ones, from any process, while the query runs.

1. Write the rows of the small files to a few large hidden files with the same format, schema and compression, and
publish these under new names.
2. Write the manifest of the next generation (see `sparkonce.sinks.files.manifests`). From then on, readers of whole
batches use the new files.
3. Later, delete the replaced files. Until then, readers may still have the replaced files in an earlier listing.

If a compaction is killed before it has written its generation, the next compaction writes a generation that excludes
it, because each generation number can be taken only once. The next compaction then deletes the files of the killed one,
because no generation will ever list them.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from sparkonce.arguments import flag, mapping, number, whole_number
from sparkonce.errors import CorruptRecordError, FilesGoneError, SparkonceError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.formats import NONE, Encoder, Encoding, LinesEncoder, choose
from sparkonce.sinks.files.locations import as_text, open_store
from sparkonce.sinks.files.manifests import FOLDER, CommittedFile, Generation, Manifest
from sparkonce.sinks.files.names import extension_in, file_path, name_in
from sparkonce.sinks.files.reading import list_folders, refuse_gone
from sparkonce.sinks.files.store import Fields, FileStore, StagedFile

TARGET_BYTES = 128 << 20
KEEP_BATCHES = 10
DELETE_AFTER_S = 3_600.0

_OWN = "compact~"
"""The prefix, after ``part-``, of the names of files that compactions write.

Sink names cannot contain ``~``, so queries' sweeps ignore these files.
"""

_READ_AT_ONCE = 16
_READ_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of compacting the files of one sink and query, or of a dry run.

    Attributes:
        sink: The sink's name.
        query: The short form of the query's id.
        batches: The number of batches that were old enough to be compacted.
        rows: The number of rows in these batches, which compaction does not change.
        files_before: The number of files before.
        files_after: The number of files after.
        bytes_before: The total size before.
        bytes_after: The total size after; 0 if nothing has been written yet.
        deleted: The number of replaced files that this call deleted, including those replaced by earlier compactions.
        left: The number of replaced files that will be deleted later.
        done: True if the compaction was carried out. False for a dry run, or if another compaction finished first.
    """

    sink: str
    query: str
    batches: int
    rows: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    deleted: int
    left: int
    done: bool


def compact(
    path: str | Path,
    *,
    target_bytes: int = TARGET_BYTES,
    keep_batches: int = KEEP_BATCHES,
    delete_after_s: float = DELETE_AFTER_S,
    missing_ok: bool = False,
    dry_run: bool = False,
    store_options: Mapping[str, Any] | None = None,
) -> list[Compacted]:
    """Writes the rows of small files of old batches into larger files, for readers of `whole_batches`.

    Args:
        path: The path of the `FilesSink`.
        target_bytes: The approximate size of a new file. Compaction leaves files of at least half this size unchanged.
        keep_batches: How many of the newest batches of each query are left alone, at least 2.
        delete_after_s: How long replaced files are kept for readers that have already listed them. The first compaction
            after that time deletes them; with 0, this call does.
        missing_ok: True if files may be missing, for example because another program deletes old ones.
        dry_run: True to change nothing and only report what would be done.
        store_options: The options of the `FilesSink`.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it and its value.
        FilesGoneError: If files are missing and ``missing_ok`` is False.
        CorruptRecordError: If a file's bytes or rows do not match its manifest.
        UnknownOutcomeError: If the store is currently unavailable. Run the compaction again.
    """
    wanted = _Wanted(
        target_bytes=whole_number("target_bytes", target_bytes, least=1),
        keep_batches=whole_number("keep_batches", keep_batches, least=2),
        delete_after_s=number("delete_after_s", delete_after_s, least=0),
        missing_ok=flag("missing_ok", missing_ok),
        dry_run=flag("dry_run", dry_run),
    )
    options = mapping("store_options", store_options or {}, example="what FilesSink is given")
    with closing(open_store(as_text(path), options)) as store:
        batches, newest = manifests.read_everything(store)
        keys = sorted({(one.prefix, one.query) for one in batches} | set(newest))
        return [
            _Compactor(store, wanted, newest.get(key, Generation(prefix=key[0], query=key[1]))).run(
                [one for one in batches if (one.prefix, one.query) == key]
            )
            for key in keys
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    target_bytes: int
    keep_batches: int
    delete_after_s: float
    missing_ok: bool
    dry_run: bool


class _Compactor:
    """One compaction of the files of one prefix and query, which starts from one generation."""

    def __init__(self, store: FileStore, wanted: _Wanted, base: Generation) -> None:
        self._store = store
        self._wanted = wanted
        self._due_before_ms = _now_ms() - wanted.delete_after_s * 1_000
        """Determined once per run: a later run deletes files that become due while this run rewrites others."""
        self._base = base
        self._nonce = secrets.token_hex(4)
        self._copy = secrets.token_hex(6)
        self._count = 0

    def run(self, batches: Sequence[Manifest]) -> Compacted:
        """Carries out the compaction or the dry run."""
        base = self._base
        single = [one for one in batches if not base.covers(one.batch)]
        old = sorted(single, key=lambda one: one.batch)[: max(0, len(single) - self._wanted.keep_batches)]
        parts = [*((base.whole,) if base.whole is not None else ()), *old]
        files = [file for part in parts for file in part.files]
        listed = list_folders(self._store, [*(one.path for one in files), *base.named])
        dry, beaten = self._wanted.dry_run, False
        try:
            files = self._present(files, frozenset(listed))
        except FilesGoneError:
            if self._newest().number == base.number:
                raise
            files, beaten = [one for one in files if one.path in frozenset(listed)], True
        groups = _groups(files, self._wanted.target_bytes)
        deleted = 0 if dry else self._delete_due(base)
        due = any(self._is_due(at) for at, _ in base.replaced)
        killed = any(self._is_ours(name_in(path)) and path not in base.named for path in listed)
        killed = killed or any(self._is_ours(one.name) for one in self._store.list_staged())
        try:
            replaced, new = ([], []) if dry or beaten else self._rewrite(groups)
        except SparkonceError:
            if self._newest().number == base.number:
                raise
            replaced, new, beaten = [], [], True  # Another compaction finished first and deleted these files.
        after = base
        if not dry and (replaced or due or killed):
            after = self._put(parts, files, replaced, new)
            deleted += self._delete_due(after) if replaced else 0
            self._clear(after, listed)
        mine = after.nonce == self._nonce
        unchanged = [one for one in files if not mine or one not in frozenset(replaced)]
        return Compacted(
            sink=parts[0].sink if parts else base.prefix,
            query=base.query,
            batches=len(old) + sum(last - first + 1 for first, last in (base.whole.compacted if base.whole else ())),
            rows=sum(one.rows for one in files),
            files_before=len(files),
            files_after=self._expected(groups, len(files)) if dry else len(unchanged) + (len(new) if mine else 0),
            bytes_before=sum(one.size_bytes for one in files),
            bytes_after=0 if dry else sum(one.size_bytes for one in (*unchanged, *(new if mine else ()))),
            deleted=deleted,
            left=sum(len(paths) for at, paths in after.replaced if not self._is_due(at)),
            done=not dry and not beaten and (mine or not replaced),
        )

    # --- what to compact --------------------------------------------------------------------------------------------

    def _present(self, files: Sequence[CommittedFile], listed: frozenset[str]) -> list[CommittedFile]:
        if not self._wanted.missing_ok:
            refuse_gone(self._store, [one.path for one in files], listed)
        return [one for one in files if one.path in listed]

    def _expected(self, groups: Sequence[Sequence[CommittedFile]], files: int) -> int:
        """Estimates the number of files after compaction, assuming that all files of a group have the same schema."""
        target = self._wanted.target_bytes
        return files - sum(len(one) - -(-sum(file.size_bytes for file in one) // target) for one in groups)

    # --- new files --------------------------------------------------------------------------------------------------

    def _rewrite(self, groups: Sequence[Sequence[CommittedFile]]) -> tuple[list[CommittedFile], list[CommittedFile]]:
        """Writes and publishes new files. Returns the files that they replace, and the new files."""
        replaced: list[CommittedFile] = []
        new: list[CommittedFile] = []
        fields: list[Fields] = []
        staged: list[StagedFile] = []
        try:
            for group in groups:
                folder = group[0].path.rpartition("/")[0]

                def stage(extension: str, folder: str = folder) -> StagedFile:
                    staged.append(self._stage(folder, extension))
                    return staged[-1]

                for one in rewrite(self._contents(group), stage, self._wanted.target_bytes):
                    if len(one.inputs) == 1:  # No other file of the group has the same schema.
                        one.staged.discard()
                        continue
                    sealed = one.staged.seal()
                    fields.append(sealed)
                    replaced += one.inputs
                    new.append(
                        CommittedFile(
                            path=str(sealed["path"]),
                            rows=one.rows,
                            size_bytes=int(sealed["size"]),
                            checksum=str(sealed["checksum"]),
                        )
                    )
        except BaseException:
            for file in staged:
                file.discard()
            raise
        for answer in self._store.publish(fields):
            if answer.outcome not in COMMITTED:
                raise UnknownOutcomeError(
                    f"A new file could not be published: {answer.reason}", next_step="Run the compaction again."
                )
        return replaced, new

    def _stage(self, folder: str, extension: str) -> StagedFile:
        name = TransactionName(
            prefix=_OWN + self._base.prefix,
            query=self._base.query,
            token=Token(self._base.number + 1, self._nonce),
            batch=0,
            slot=0,
            copy=self._copy,
        )
        self._count += 1
        return self._store.stage(name, file_path(folder, name, self._count, extension))

    def _contents(self, files: Sequence[CommittedFile]) -> Iterator[tuple[CommittedFile, bytes]]:
        """Reads several files in parallel, within a memory limit."""
        some: list[CommittedFile] = []
        size = 0
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            for file in (*files, None):
                if file is None or len(some) == _READ_AT_ONCE or size + file.size_bytes > _READ_BYTES:
                    yield from zip(some, pool.map(self._get, some), strict=True)
                    some, size = [], 0
                if file is not None:
                    some.append(file)
                    size += file.size_bytes

    def _get(self, file: CommittedFile) -> bytes:
        content = self._store.get(file.path)
        if content is None:
            raise FilesGoneError(
                f"{self._store.location}/{file.path} has disappeared since it was listed.",
                next_step="Run the compaction again: another one may have replaced it.",
                gone=[file.path],
            )
        return content

    # --- the next generation ----------------------------------------------------------------------------------------

    def _put(
        self,
        parts: Sequence[Manifest],
        files: Sequence[CommittedFile],
        replaced: Sequence[CommittedFile],
        new: Sequence[CommittedFile],
    ) -> Generation:
        """Writes the next generation. Returns the newest generation, which may come from another compaction."""
        gone = frozenset(replaced)
        left = tuple((at, paths) for at, paths in self._base.replaced if not self._is_due(at))
        if replaced:
            left = (*left, (_now_ms(), tuple(one.path for one in replaced)))
        whole = self._base.whole
        if replaced:
            unchanged = [one for one in files if one not in gone]
            whole = replace(
                parts[-1],
                files=tuple(sorted((*unchanged, *new), key=lambda one: one.path)),
                transactions=(),
                compacted=_runs(parts),
            )
        after = replace(self._base, number=self._base.number + 1, nonce=self._nonce, whole=whole, replaced=left)
        self._store.put_new(after.path, after.encode())
        newest = self._newest()
        # Keep the previous generation for readers that have listed it.
        older = [replace(self._base, number=one).path for one in self._numbers() if one < newest.number - 1]
        self._store.delete(older)
        return newest

    def _numbers(self) -> list[int]:
        found = manifests.list_generations(self._store.list_names(FOLDER))
        return found.get((self._base.prefix, self._base.query), [])

    def _newest(self) -> Generation:
        while numbers := self._numbers():
            newest = manifests.read_generation(self._store, self._base.prefix, self._base.query, numbers[-1])
            if newest is not None:  # If there is none, a newer generation has just replaced this one.
                return newest
        return self._base

    def _delete_due(self, generation: Generation) -> int:
        due = [path for at, paths in generation.replaced if self._is_due(at) for path in paths]
        self._store.delete(due)
        return len(due)

    def _is_due(self, at_ms: int) -> bool:
        return self._wanted.delete_after_s == 0 or at_ms <= self._due_before_ms

    # --- files that killed and slower compactions left behind -------------------------------------------------------

    def _is_ours(self, name: TransactionName | None) -> bool:
        return name is not None and (name.prefix, name.query) == (_OWN + self._base.prefix, self._base.query)

    def _clear(self, newest: Generation, listed: Sequence[str]) -> None:
        """Deletes the files of all compactions that the newest generation excludes."""
        staged = [one for one in self._store.list_staged() if self._is_shut_out(one.name, newest)]
        # Discard staged files first, so that nobody can publish them anymore.
        self._store.discard([one.fields for one in staged])
        again = list_folders(self._store, [*listed, *newest.named])
        self._store.delete(
            [path for path in again if path not in newest.named and self._is_shut_out(name_in(path), newest)]
        )

    def _is_shut_out(self, name: TransactionName | None, newest: Generation) -> bool:
        return name is not None and self._is_ours(name) and name.token.position <= newest.number


def _groups(files: Sequence[CommittedFile], target_bytes: int) -> list[list[CommittedFile]]:
    """Groups the small files by folder and extension. Leaves out groups of a single file."""
    found: dict[tuple[str, str], list[CommittedFile]] = {}
    for one in files:
        if one.size_bytes * 2 < target_bytes:
            found.setdefault((one.path.rpartition("/")[0], extension_in(one.path)), []).append(one)
    return [some for _, some in sorted(found.items()) if len(some) > 1 and mergeable(some)]


def _runs(parts: Sequence[Manifest]) -> tuple[tuple[int, int], ...]:
    """Returns the first and last number of each contiguous range of batches."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted(run for part in parts for run in (part.compacted or ((part.batch, part.batch),))):
        if runs and first == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return tuple(runs)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".json": "json", ".txt": "text"}
_CODECS = {"": NONE, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_CHUNK_BYTES = 4 << 20
_OPEN = 4
"""The maximum number of new files that are open at the same time in one folder, one for each schema."""

_NEXT_STEP = "Restore the file from a backup. Nothing was changed: the folder is as it was."


@dataclass(slots=True)
class Rewritten:
    """A new file that is being written, and the files that it replaces."""

    staged: StagedFile
    encoding: Encoding
    encoder: Encoder
    inputs: list[CommittedFile] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    gathered: int = 0

    @property
    def rows(self) -> int:
        """The number of rows that the manifests record for the replaced files."""
        return sum(one.rows for one in self.inputs)

    def add(self, table: pa.Table) -> None:
        """Collects rows, and encodes them in chunks that are large enough for the format."""
        self.tables.append(table)
        self.gathered += table.nbytes
        if self.gathered >= self.encoding.piece_bytes:
            self.flush()

    def flush(self) -> None:
        if self.tables:
            self.encoder.write(pa.concat_tables(self.tables))
            self.tables, self.gathered = [], 0


def rewrite(
    contents: Iterator[tuple[CommittedFile, bytes]], stage: Callable[[str], StagedFile], target_bytes: int
) -> Iterator[Rewritten]:
    """Yields new, unsealed files, each as soon as it holds the rows of files that add up to the target size.

    The small files share one folder and extension. ``stage`` begins a staged file with this extension.

    Raises:
        CorruptRecordError: If a file's bytes or rows do not match its manifest.
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
    encoder = cast("LinesEncoder", new.encoder)  # This depends on the format.
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
    # Do not compare ETags: they depend on how the upload was split into parts, so they do not identify the content.
    same = crc == file.checksum or f"{zlib.crc32(content):08x}" == crc
    if len(content) != file.size_bytes or not same:
        raise CorruptRecordError(
            f"{file.path} has {len(content)} bytes, which are not those in its manifest: {file.size_bytes}, "
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
    # Uncompressed rows are read from the file's memory, without a copy.
    start, end = buffer.address, buffer.address + buffer.size
    copied = any(
        part is not None and part.size and not start <= part.address < end
        for column in table.columns
        for chunk in column.chunks
        for part in chunk.buffers()
    )
    return table, _arrow_codec(buffer) if copied else NONE


_ARROW_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of a compressed buffer, with pyarrow's name of the codec."""


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
        header = b""  # Without a header, the file's first line is a row.
    _check_rows(file, rows - bool(header))
    # Without a header, the columns of a file are unknown, but files of the same run have the same columns.
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
    """Returns the first line including its line break, and the number of lines.

    A line break in quotes belongs to the value.
    """
    count, inside, first, begun = 0, 0, b"", b""
    for chunk in _chunks(content, codec):
        data = np.frombuffer(chunk, np.uint8)
        ends = data == 10
        if quoted:
            parity = (np.cumsum(data == 34, dtype=np.uint8) + inside) & 1  # The sum wraps at 256, which is even.
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
    """Returns True if the format of these files, which share an extension, is known."""
    return "." + extension_in(files[0].path)[1:].partition(".")[0] in FORMATS

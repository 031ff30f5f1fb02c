"""The executor half of the files sink: encodes rows into staged files."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import SinkWriter, WriterContext
from sparkonce.sinks.files.formats import Encoder, Encoding, file_schema
from sparkonce.sinks.files.names import file_path, split
from sparkonce.sinks.files.store import Fields, FileStore, StagedFile, fields_of

OPEN_FILES = 32
"""The maximum number of files that a slot has open. Opening another one closes the least recently used."""

GATHERED_BYTES = 64 << 20
"""The size of the Arrow data that a slot collects over all partitions before it encodes them."""

SPLIT_BYTES = 8 << 20
"""The size of the Arrow data to collect before it is split into partitions. A split costs time for each partition."""

_SEALING_THREADS = 4


@dataclass(slots=True)
class _Pile:
    """The rows of one folder that have not been encoded yet."""

    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0

    def add(self, rows: pa.Table, size: int) -> None:
        self.tables.append(rows)
        self.size += size


@dataclass(slots=True)
class _OpenFile:
    staged: StagedFile
    encoder: Encoder
    rows: int = 0


class FilesWriter(SinkWriter):
    """The files of one task attempt. Closed files are made durable in the background while others are being written.

    Args:
        store: The store that the files go to.
        context: The task attempt.
        encoding: The format, and its options.
        partition_by: The columns that name folders.
        max_file_bytes: A file that has reached this size is closed, and a new one is started.
        hold_back: True to keep files staged until the decision (EXACTLY_ONCE). Otherwise, `prepare` publishes them.
    """

    def __init__(
        self,
        store: FileStore,
        context: WriterContext,
        *,
        encoding: Encoding,
        partition_by: Sequence[str],
        max_file_bytes: int,
        hold_back: bool,
    ) -> None:
        self._store = store
        self._name = TransactionName(
            prefix=context.owner.facts["prefix"],
            query=context.owner.query,
            token=context.owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )
        self._encoding = encoding
        self._partition_by = tuple(partition_by)
        self._max_file_bytes = max_file_bytes
        self._piece_bytes = min(encoding.piece_bytes, max_file_bytes)
        self._hold_back = hold_back
        self._folder = context.owner.facts["folder"]
        self._begun_ms = 0
        self._number = 0
        self._schema: pa.Schema | None = None
        self._unsplit = _Pile()
        self._piles: dict[str, _Pile] = {}
        self._open: dict[str, _OpenFile] = {}
        self._staged: list[StagedFile] = []
        self._sealed: list[tuple[int, Future[Fields]]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._list = ""

    def begin(self) -> None:
        """Without partitions, opens the file right away, since a store may be slow."""
        self._begun_ms = time.time_ns() // 1_000_000
        if not self._partition_by:
            self._open[""] = self._open_file("")

    def write(self, rows: pa.RecordBatch) -> None:
        """Gathers rows, and encodes them in pieces large enough for the format."""
        table = self._to_table(rows)
        if not self._partition_by:
            self._piles.setdefault("", _Pile()).add(table, rows.nbytes)
        else:
            self._unsplit.add(table, rows.nbytes)
            if self._unsplit.size >= SPLIT_BYTES:
                self._split()
        self._encode_full()

    def prepare(self) -> Mapping[str, str | int]:
        """Encodes the rest, and makes every file durable."""
        self._split()
        for folder in list(self._piles):
            self._encode(folder)
            if folder:  # Close each file before opening the next one, since there may be thousands of small partitions.
                self._close(folder)
        for folder in list(self._open):
            self._close(folder)
        files = [{**sealed.result(), "rows": rows} for rows, sealed in self._sealed]
        if doubt := self._store.doubt(self._folder):
            raise (OutageError if doubt.outcome is Outcome.RETRY else PrepareError)(
                f"The driver may not find the files here: {doubt.reason}",
                next_step="Let every host see the same folder at the sink's path; none of the batch became visible.",
            )
        if not self._hold_back:
            self._publish(files)
            return {}
        fields, content = fields_of(self._name, files, self._begun_ms, self._folder)
        if content is not None:
            self._list = str(fields["list"])
            self._store.put(self._list, content)
        return fields

    def _publish(self, files: Sequence[Fields]) -> None:
        published = (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
        for answer in self._store.publish(files):
            if answer.outcome not in published:
                kind = OutageError if answer.outcome is Outcome.RETRY else PrepareError
                raise kind(f"A file could not be published: {answer.reason}")

    def abort(self) -> None:
        """Discards the files. Files that cannot be reached are left to the driver's sweep."""
        for _, sealed in self._sealed:
            sealed.exception()  # Wait here, so that no file is deleted while it is being sealed.
        for staged in self._staged:
            staged.discard()
        if self._list:
            with suppress(Exception):
                self._store.delete([self._list])
        self.close()

    def close(self) -> None:
        self._piles.clear()
        if self._threads is not None:
            self._threads.shutdown()
        self._store.close()

    def _to_table(self, rows: pa.RecordBatch) -> pa.Table:
        if self._schema is None:
            self._schema = file_schema(rows.schema)
        table = pa.Table.from_batches([rows])
        return table if rows.schema.equals(self._schema) else table.cast(self._schema)

    def _split(self) -> None:
        if not self._unsplit.tables:
            return
        gathered, self._unsplit = self._unsplit, _Pile()
        for folder, rows in split(pa.concat_tables(gathered.tables), self._partition_by):
            self._piles.setdefault(folder, _Pile()).add(rows, rows.nbytes)

    def _encode_full(self) -> None:
        for folder in [folder for folder, pile in self._piles.items() if pile.size >= self._piece_bytes]:
            self._encode(folder)
        gathered = sum(pile.size for pile in self._piles.values())
        if gathered <= GATHERED_BYTES or not self._partition_by:
            return
        for folder in sorted(self._piles, key=lambda one: self._piles[one].size, reverse=True):
            if gathered <= GATHERED_BYTES // 2:
                return
            gathered -= self._piles[folder].size
            self._encode(folder)

    def _encode(self, folder: str) -> None:
        pile = self._piles.pop(folder)
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            file = self._open_file(folder)
        self._open[folder] = file  # Move the folder to the end, because it was written to last.
        rows = pa.concat_tables(pile.tables)
        file.encoder.write(rows)
        file.rows += rows.num_rows
        if file.staged.size() >= self._max_file_bytes:
            self._close(folder)

    def _open_file(self, folder: str) -> _OpenFile:
        staged = self._store.stage(self._name, file_path(folder, self._name, self._number, self._encoding.extension))
        self._number += 1
        self._staged.append(staged)
        return _OpenFile(staged, self._encoding.open(staged.stream))

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder, None)
        if file is None:
            return
        file.encoder.close()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_SEALING_THREADS, thread_name_prefix="seal")
        self._sealed.append((file.rows, self._threads.submit(file.staged.seal)))

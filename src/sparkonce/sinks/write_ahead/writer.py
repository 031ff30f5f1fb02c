"""The executor half: writes the rows of one task attempt to a file, or applies them immediately below EXACTLY_ONCE."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import SinkWriter, WriterContext
from sparkonce.sinks.write_ahead.application import Apply, ApplyToken, give
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Entry
from sparkonce.sinks.write_ahead.rows import RowsFile, check
from sparkonce.storage.files import may_pass

if TYPE_CHECKING:
    import pyarrow as pa


class WriteAheadWriter(SinkWriter):
    """Writes one task attempt's rows to a file, where they wait until the batch is decided.

    Below EXACTLY_ONCE, `prepare` passes the rows to the function ``apply_now``.
    """

    def __init__(
        self, folder: WriteAheadFolder, prefix: str, context: WriterContext, apply_now: Apply | None = None
    ) -> None:
        self._folder = folder
        self._identity = context.owner.facts["identity"]
        self._apply_now = apply_now
        self._file: RowsFile | None = None
        self._is_handed_over = False
        self._begun_ms = 0
        self._name = TransactionName(
            prefix=prefix,
            query=context.owner.query,
            token=context.owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )

    def begin(self) -> None:
        """Creates the file, after checking that the folder seen by this executor is the driver's folder."""
        self._begun_ms = time.time_ns() // 1_000_000
        with self._disk():
            found = self._folder.identity()
            if found != self._identity:
                raise PrepareError(
                    f"The folder {self._folder.location} has identity {found} here, and {self._identity} on the "
                    "driver.",
                    next_step="Use a folder on a disk that the driver and all executors see.",
                )
            self._file = RowsFile(self._folder.create(self._name))

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds rows to the file, which receives a row group at a time."""
        with self._disk():
            self._opened().write(rows)

    def prepare(self) -> Mapping[str, str | int]:
        """Makes the file durable, and hands it over to the driver."""
        if self._apply_now is not None:
            try:
                self._apply(self._apply_now)
            finally:
                self.close()
            return {}
        with self._disk():
            size, checksum = self._opened().seal()
            self._is_handed_over = True
            if not self._folder.keep(self._name, self._opened().file):
                raise PrepareError(f"The transaction {self._name} was aborted while it was written.")
            self.close()
        entry = Entry(
            name=self._name,
            size_bytes=size,
            checksum=checksum,
            identity=self._identity,
            begun_ms=self._begun_ms,
            parts=self.parts(),
        )
        return entry.fields()

    def parts(self) -> str:
        """Returns how many rows each part of the target gets, as text; empty if the target has no parts."""
        return ""

    def abort(self) -> None:
        """Leaves a file that cannot be deleted now to a sweep."""
        self.close()
        with suppress(OSError):
            self._folder.hide(self._name)
            if self._is_handed_over:
                self._folder.discard(self._name)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _apply(self, apply: Apply) -> None:
        with self._disk():
            self._folder.hide(self._name)
            written = self._opened()
            check(written.file, *written.seal())
            token = ApplyToken(
                id=str(self._name),
                query=self._name.query,
                batch=self._name.batch,
                slots=(self._name.slot,),
                rows=written.rows,
            )
            try:
                give(apply, [written.file], token)
            except OutageError:
                raise
            except Exception as error:
                raise PrepareError(
                    f"Slot {token.slot} of batch {token.batch} could not be applied: {type(error).__name__}: {error}"
                ) from error

    def _opened(self) -> RowsFile:
        if self._file is None:
            raise PrepareError(f"The transaction {self._name} has not begun, or was aborted.")
        return self._file

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise (OutageError if may_pass(error) else PrepareError)(
                f"The rows could not be kept in {self._folder.location}: {error}",
                next_step="Check that the disk is mounted, on this executor too, and has room for a batch's rows.",
            ) from error

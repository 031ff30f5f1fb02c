"""The driver side of the Pravega sink: one transaction for all rows of a batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from py4j.protocol import Py4JJavaError

from sparkonce.sink import Finished, Handle, TransactionName
from sparkonce.source import CheckpointFiles
from sparkonce.write_ahead import (
    Application,
    ApplyToken,
    CallSettings,
    RefusedError,
    RetryLaterError,
    Unit,
    WriteAheadCommitter,
    WriteAheadFolder,
    put_note,
)
from sparkonce_pravega.client import PravegaStream, reason
from sparkonce_pravega.segments import StatusUnknownError

logger = logging.getLogger("sparkonce")

COMMITTED = "COMMITTED"
OPEN = "OPEN"
ABORTED = "ABORTED"


class PravegaApplication(Application):
    """Writes files to a stream in a transaction, after recording the transaction's id."""

    def __init__(self, folder: WriteAheadFolder, sink: str, settings: CallSettings, stream: PravegaStream) -> None:
        super().__init__(folder, sink, settings)
        self._stream = stream
        self._notes = TransactionNotes(folder.ledger.files)

    def is_applied(self, unit: Unit, token: ApplyToken) -> bool:
        """Returns True if the last transaction started for the rows is committed. Aborts the transaction if it is open.

        Raises:
            RefusedError: If Pravega has forgotten the transaction, or if the stream is now a different one.
        """
        _, begun = self._notes.last(unit.name)
        return begun is not None and self._is_committed(begun, token)

    def _is_committed(self, begun: Begun, token: ApplyToken) -> bool:
        self._see_same_stream(begun, token)
        transaction = begun.id
        with self._stream.writer() as writer:
            status = self._stream.settled(writer, transaction)
            if status == OPEN:
                try:
                    self._stream.abort(writer, transaction)
                except Py4JJavaError as error:
                    raise StatusUnknownError(f"Transaction {transaction} cannot be aborted: {reason(error)}") from error
                status = self._stream.settled(writer, transaction)
        if status is None:
            raise RefusedError(
                f"Whether {token.id} was written is no longer known: Pravega has forgotten transaction {transaction}."
            )
        if status not in (COMMITTED, ABORTED):
            raise StatusUnknownError(f"Transaction {transaction} is {status}.")
        return status == COMMITTED

    def _see_same_stream(self, begun: Begun, token: ApplyToken) -> None:
        """Checks that the stream was not recreated, because a new stream may use the id for another transaction."""
        try:
            with self._stream.segments() as segments:
                found = segments.has(begun.birth)
        except Py4JJavaError as error:
            raise StatusUnknownError(f"Pravega does not report the stream's segments: {reason(error)}") from error
        if not found:
            raise RefusedError(
                f"Whether {token.id} was written is no longer known: transaction {begun.id} was begun when the stream "
                f"had segment {begun.birth}, which no longer exists. The stream was truncated or recreated, or "
                "belongs to another cluster."
            )

    def deliver(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> None:  # noqa: ARG002
        """Writes the rows in a transaction, and commits it. Readers see the rows when the method returns.

        Raises:
            RetryLaterError: If another driver is writing them, or the outcome is unknown.
            RefusedError: See `is_applied`.
        """
        count, last = self._notes.last(unit.name)
        # Another driver may have started a transaction since this driver checked.
        if last is not None and self._is_committed(last, token):
            return
        urls = [self._folder.url(entry.name) for entry in unit.entries]
        try:
            with self._stream.writer() as writer:
                with self._stream.segments() as segments:
                    birth = segments.birth()
                transaction = writer.beginTxn()
                noted = Begun(str(transaction.getTxnId().toString()), birth)
                if not self._notes.put(unit.name, count, noted):
                    transaction.abort()
                    raise RetryLaterError("Another driver is writing these rows now.")
                written = self._stream.write(transaction, urls)
                if written != token.rows:
                    transaction.abort()
                    raise RefusedError(f"{written} of {token.rows} rows of {token.id} could be read.")
                transaction.commit()
                if (status := self._stream.settled(writer, noted.id)) != COMMITTED:
                    raise RetryLaterError(f"Transaction {noted.id} should have been committed, but is {status}.")
        except Py4JJavaError as error:
            raise RetryLaterError(reason(error)) from error


class PravegaCommitter(WriteAheadCommitter):
    """Finishes transactions whose rows go to a stream; see `WriteAheadCommitter`."""

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Deletes old markers, and the notes about their transactions."""
        super().conclude(batch, handles)
        ledger = self._folder.ledger
        queries = {one.query for handle in handles if not isinstance(one := self.transaction_of(handle), Finished)}
        try:
            for query in queries:
                TransactionNotes(ledger.files).forget(query, ledger.forgotten_up_to(query))
        except OSError as error:
            logger.warning("Sink %s: old notes of transactions could not be deleted: %s", self._sink, error)


_FOLDER = "transactions"


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction that was started: Pravega's UUID, and what `StreamSegments.birth` returned for the stream."""

    id: str
    birth: str


class TransactionNotes:
    """One sink's notes of transactions, which are durable before any event is written.

    They are in the sink's ledger, as ``transactions/NAME.NUMBER``. NAME is the first file's name, and NUMBER counts
    from 0. A number is used only once the transaction of the previous number is known to be aborted, so only the last
    transaction matters. Every method raises OSError if the notes cannot be read or written.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def make(self) -> None:
        self._files.make(_FOLDER)

    def last(self, name: TransactionName) -> tuple[int, Begun | None]:
        """Returns the number of notes for these rows, and the last note (None if there is none)."""
        count = len([one for one in self._names() if one.rpartition(".")[0] == str(name)])
        if count == 0:
            return 0, None
        path = f"{_FOLDER}/{name}.{count - 1}"
        data = self._files.read(path)
        if data is None:
            raise FileNotFoundError(f"{self._files.location}/{path} cannot be read, and is listed.")
        transaction, _, birth = data.decode().partition(" ")
        return count, Begun(transaction, birth)

    def put(self, name: TransactionName, number: int, begun: Begun) -> bool:
        """Records a transaction. Returns False if another driver has recorded one under this number."""
        return put_note(self._files, f"{_FOLDER}/{name}.{number}", f"{begun.id} {begun.birth}".encode())

    def forget(self, query: str, up_to: int) -> None:
        """Deletes the notes for a query's batches up to this one."""
        parsed = {one: TransactionName.parse(one.rpartition(".")[0]) for one in self._names()}
        old = (one for one, name in parsed.items() if name and name.query == query and name.batch <= up_to)
        self._files.delete(f"{_FOLDER}/{one}" for one in old)
        self._files.tidy(_FOLDER)

    def _names(self) -> list[str]:
        names = list(self._files.names(_FOLDER))
        if not names:
            self._files.require(_FOLDER)
        return names

"""Records of the transactions started for a batch's rows. They are durable before any event is written.

They are in the sink's ledger, as ``transactions/NAME.NUMBER``. NAME is the first file's name, and NUMBER counts from 0.
A number is used only once the transaction of the previous number is known to be aborted, so only the last transaction
matters.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.sink import TransactionName
from sparkonce.source import CheckpointFiles
from sparkonce.write_ahead import put_note

_FOLDER = "transactions"


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction that was started: Pravega's UUID, and what `StreamSegments.birth` returned for the stream."""

    id: str
    birth: str


class TransactionNotes:
    """One sink's notes of transactions. Every method raises OSError if the notes cannot be read or written."""

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

"""The driver's half of a sink that writes tables: one write of the session's for all rows of a batch."""

from __future__ import annotations

import abc
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, BinaryIO

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Scalar, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks.write_ahead.application import Application, How, Unit
from sparkonce.sinks.write_ahead.apply import Applies, ApplyToken, RefusedError
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import Stand, WriteAheadFolder
from sparkonce.spark.tables.answers import is_final, what_it_says

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

WAIT_S = 120.0
_NAME = "sparkonce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a version of the table says about the rows that came with it.

    Attributes:
        first: The handle's fields of the first of the files.
        members: How many files they were.
        digest: Of the names of all of them.
    """

    first: tuple[tuple[str, Scalar], ...]
    members: int
    digest: str

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Label:
        """The label of files that are written together."""
        names = "\n".join(str(entry.name) for entry in entries)
        return cls(
            first=transaction_fields(entries[0].fields()),
            members=len(entries),
            digest=sha256(names.encode()).hexdigest()[:32],
        )

    @property
    def entry(self) -> Entry | None:
        """The first of the files."""
        return Entry.of_fields(dict(self.first))

    def to_text(self) -> str:
        """As a table keeps it."""
        told = {"first": dict(self.first), "members": self.members, "digest": self.digest}
        return json.dumps({_NAME: told}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str | None) -> Label | None:
        """The label, or None if the text is somebody else's."""
        try:
            told = json.loads(text or "")[_NAME]
            return cls(first=transaction_fields(told["first"]), members=told["members"], digest=told["digest"])
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a table asks of every row that is added, beyond the types.

    Attributes:
        fills: What columns get that are not given, by name, from those that are; all others get null.
        conditions: What must be true, by the name under which the table knows it.
    """

    fills: Mapping[str, Column]
    conditions: Mapping[str, Column]


class Table(abc.ABC):
    """What differs between tables. Every method runs on the driver."""

    @abc.abstractmethod
    def identity(self) -> str:
        """What tells this table from another under the same name."""

    @abc.abstractmethod
    def schema(self) -> StructType:
        """Its columns, with what the table says of each."""

    @abc.abstractmethod
    def rules(self, given: Collection[str]) -> Rules:
        """What it asks of every row, if these columns are given, in lower case."""

    @abc.abstractmethod
    def append(self, paths: Sequence[str], unit: Unit, label: Label) -> None:
        """Adds the rows of Parquet files in one version that carries the label, unless one does already."""

    @abc.abstractmethod
    def labels(self, newest: int | None = None) -> list[Label]:
        """Those of the versions that the table remembers, or of the newest few."""

    @abc.abstractmethod
    def remembers_since_ms(self, unit: Unit) -> int:
        """What of the unit's query was begun since then has a label if it was written; 0 if that holds for all.

        In milliseconds since the epoch.
        """

    def unfinished(self) -> Mapping[str, TransactionName]:
        """What attempts that ended before their version was made have left in the table, and whose they were."""
        return {}

    def discard(self, unfinished: str) -> None:  # noqa: B027 - for tables in which nothing is left
        """Removes one of these, if it is still there. An attempt that still goes on fails, and is made again."""


class TableApplication(Application):
    """Writes files to a table, and believes only what the table says afterwards.

    Args:
        folder: The sink's.
        sink: Its name.
        table: The table.
        identity: Which table it must be, as `Table.identity` has it; None if that was not asked yet.
    """

    def __init__(self, folder: WriteAheadFolder, sink: str, table: Table, identity: str | None) -> None:
        super().__init__(folder, sink, _how())
        self._table = table
        self._identity = identity

    def is_applied(self, unit: Unit, token: ApplyToken) -> bool:
        """Whether a version of the table carries the rows' label.

        Raises:
            RefusedError: if the table has forgotten too much to say so, or is gone.
        """
        with _told_apart():
            self._check_identity(f"whether {token.id} was written to it cannot be seen")
            if Label.of(unit.entries) in self._table.labels():
                return True
            since_ms = self._table.remembers_since_ms(unit)
        begun_ms = min(entry.begun_ms for entry in unit.entries)
        if since_ms > begun_ms:
            raise RefusedError(
                f"whether {token.id} was written is no longer known: the table remembers its versions since {since_ms} "
                f"ms, and the rows are from {begun_ms} ms"
            )
        return False

    def deliver(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> None:  # noqa: ARG002
        """Writes once, and looks whether the table has it: a table may skip a write without saying so.

        Raises:
            RefusedError: if the table does not take the rows, or says that it has them and does not; or if it is not
                the table any more that it was.
        """
        label = Label.of(unit.entries)
        paths = [str(self._folder.path(Stand.STARTED, entry.name)) for entry in unit.entries]
        with _told_apart():
            self._check_identity(f"{token.id} is not written to it")
            self._table.append(paths, unit, label)
            self._check_identity(f"{token.id} was written to it just when the other one went")
            found = label in self._table.labels(newest=_LOOK_BACK) or label in self._table.labels()
        if not found:
            raise RefusedError(
                f"the table took the rows of {token.id} without an error, and no version of it carries them: it takes "
                "them for rows that it has"
            )

    def _check_identity(self, so: str) -> None:
        """Spark makes a table that is gone anew when it is written to."""
        found = self._table.identity()
        if self._identity not in (None, found):
            raise RefusedError(
                f"the table was deleted or replaced while the query ran: it was {self._identity}, and what stands in "
                f"its place is {found}; {so}"
            )


@contextmanager
def _told_apart() -> Iterator[None]:
    """Errors that no repeat can mend are refusals; all others, such as a catalog that is away, may pass."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:  # whatever Spark raises
        if is_final(error):
            raise RefusedError(what_it_says(error, lines=3)) from error
        raise _FailedError(what_it_says(error)) from error


class _FailedError(Exception):
    """A write that failed, with what Java says and without where."""


class TableCommitter(WriteAheadCommitter):
    """Finishes transactions whose rows go to a table.

    Args:
        folder: The sink's.
        sink: Its name.
        prefix: Its name, as it stands in names of files.
        table: The table.
        identity: See `TableApplication`.
    """

    def __init__(
        self, folder: WriteAheadFolder, sink: str, prefix: str, table: Table, identity: str | None = None
    ) -> None:
        super().__init__(folder, sink, prefix, _how(), TableApplication(folder, sink, table, identity))
        self._table = table
        self._queries: frozenset[str] | None = None

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Files, and what attempts to write them have left in the table."""
        wanted = {(self._prefix, owner.query, owner.token) for owner in owners}
        try:
            unfinished = self._table.unfinished()
        except Exception as error:  # whatever Spark raises
            raise self._unreadable_table(error) from error
        return [
            *super().list_lingering(owners),
            *(
                Handle(sink=self._sink, slot=name.slot, transaction=transaction_fields({_UNFINISHED: left}))
                for left, name in unfinished.items()
                if (name.prefix, name.query, name.token) in wanted
            ),
        ]

    def _abort(self, handle: Handle) -> Finished:
        left = dict(handle.transaction).get(_UNFINISHED)
        if left is None:
            return super()._abort(handle)
        try:
            self._table.discard(str(left))
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            return Finished(
                outcome=Outcome.RETRY, reason=f"{left} could not be removed from the table: {what_it_says(error)}"
            )
        return Finished(outcome=Outcome.ABORTED)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002 - names say whose they are
        """See `SinkCommitter.list_traces`: reads them from the table's versions."""
        entries = self._entries()
        self._queries = self._queries_in(entries)
        return [
            Trace(token=entry.name.token, committed=label.first, batch=entry.name.batch)
            for label, entry in entries.items()
            if (entry.name.prefix, entry.name.query) == (self._prefix, query)
        ]

    def other_queries(self, query: str, facts: Facts) -> Sequence[str]:  # noqa: ARG002 - names say whose they are
        """See `SinkCommitter.other_queries`: reads them from the table's versions."""
        # At a start list_traces has just read the whole history, which takes seconds for a table of many versions.
        found, self._queries = self._queries, None
        return sorted((self._queries_in(self._entries()) if found is None else found) - {query})

    def _queries_in(self, entries: Mapping[Label, Entry]) -> frozenset[str]:
        return frozenset(entry.name.query for entry in entries.values() if entry.name.prefix == self._prefix)

    def _entries(self) -> Mapping[Label, Entry]:
        try:
            labels = self._table.labels()
        except Exception as error:  # whatever Spark raises
            raise self._unreadable_table(error) from error
        return {one: entry for one in labels if (entry := one.entry) is not None}

    def _unreadable_table(self, error: Exception) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"the versions of the table of sink {self._sink!r} cannot be read: {what_it_says(error)}",
            next_step="see that the table can be read, then start the query again.",
        )


def _how() -> How:
    """One write for all rows of a batch; the function is `TableApplication`'s."""
    return How(apply=_never, is_applied=None, applies=Applies.TRANSACTIONAL, per="batch", parallel=1, wait_s=WAIT_S)


def _never(*_: object) -> None:
    raise NotImplementedError


_LOOK_BACK = 20
_UNFINISHED = "unfinished"

"""The functions that differ between databases, and the values that they share. Each database's package provides a set.

A task attempt's transaction is a value, which a handle represents. Its name is enough to finish it in any process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkonce.protocol.handles import Finished, Handle, Outcome, Scalar, transaction_fields
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks._shared.committing import Claims
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, Limits, Target

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.errors import PrepareError
    from sparkonce.sinks.sql.writer import Copy

Session = Any
"""A connection of the database's client library, with a method ``execute``, or a value that holds one."""

KEPT_BATCHES = SINKS_KEEP_BATCHES
"""The number of batches whose markers are kept."""

OPEN = "open"
"""The kind of a transaction that is still being written. Only `list_lingering` creates handles of this kind."""

DIRECT = "direct"
"""The kind of a transaction that ends with its writer. Its rows become visible at prepare."""

GONE = Finished(outcome=Outcome.ABORTED, reason="It was already gone.")
MARKED = Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The database that holds a transaction, if the server reveals it.

    Attributes:
        server: The server's own id; empty if it has none or does not allow reading it.
        database: The database's name; empty if the connection alone determines it.
        schema: The schema of the markers and staging tables; empty if there are no schemas.
    """

    server: str
    database: str = ""
    schema: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Scalar] | Facts, names: Mapping[str, str]) -> Location:
        """Returns the location in these facts or handle fields, by `HandleFields.names`."""
        return cls(**{part: str(fields[names[part]]) for part in cls.__slots__ if part in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTransaction:
    """The transaction of a task attempt, as described by a handle.

    Attributes:
        kind: ``two_phase`` if it is prepared, ``staged`` if its rows are in a staging table, or `OPEN`.
        name: Its name, a `TransactionName`. For an `OPEN` transaction, it is the name of the session.
        location: The database that holds it.
        begun_ms: When it began, in milliseconds since the epoch by the server's clock; 0 if its handle does not record
            it.
    """

    kind: str
    name: Any
    location: Location
    begun_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleFields:
    """The fields of a dialect's handles.

    Attributes:
        names: The handle's field for each attribute of `SqlTransaction` and `Location` that is stored.
        session: Parses the name of an open session; None if a session shows its transaction's name.
    """

    names: Mapping[str, str]
    session: Callable[[str], Any] | None = None

    def read(self, fields: Mapping[str, Scalar]) -> SqlTransaction | None:
        """Returns the transaction in a handle's fields; None if the fields belong to another sink."""
        if set(fields) != set(self.names.values()):
            return None
        kind, text = str(fields[self.names["kind"]]), str(fields[self.names["name"]])
        begun_ms = fields[self.names["begun_ms"]] if "begun_ms" in self.names else 0
        kinds = (TWO_PHASE, STAGED, *([OPEN] if self.session else []))
        name = self.session(text) if self.session and kind == OPEN else TransactionName.parse(text)
        if kind not in kinds or name is None or not isinstance(begun_ms, int):
            return None
        return SqlTransaction(kind=kind, name=name, location=Location.of(fields, self.names), begun_ms=begun_ms)

    def write(self, one: SqlTransaction) -> dict[str, Scalar]:
        there = {**{part: getattr(one.location, part) for part in Location.__slots__}, "kind": one.kind}
        there |= {"name": str(one.name), "begun_ms": one.begun_ms}
        return {field: there[attribute] for attribute, field in self.names.items()}

    def handle(self, sink: str, one: SqlTransaction) -> Handle:
        """Returns a handle that an abort accepts."""
        return Handle(sink=sink, slot=0, opened_ms=one.begun_ms, transaction=transaction_fields(self.write(one)))


def absent_verdict(name: TransactionName, newest: int | None, lost: str) -> Finished:
    """Returns the outcome of a transaction that does not exist and, when checked after that, has no marker.

    `newest` is the latest batch of its query and prefix that has a marker. `lost` is the reason for LOST, which is
    returned if the marker cannot have been deleted.
    """
    if newest is not None and newest >= name.batch + KEPT_BATCHES:
        reason = f"Batch {newest} is committed: the marker of batch {name.batch} may have been tidied away."
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)
    return Finished(outcome=Outcome.LOST, reason=lost)


def previous_id(word: str, now: object, comment: object) -> str:
    """Returns the id that a server had before, if the comment on the markers is ``<word> <now> was <before>``.

    In a copy elsewhere, such a comment has no effect, because the copy has a different id.
    """
    moved = re.fullmatch(rf"{word} (\S+) was (\S+)", str(comment or "").strip())
    return moved[2] if moved is not None and moved[1] == str(now) else str(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCopy:
    """The staged rows of a task attempt."""

    table: str
    target: Target
    columns: tuple[str, ...]


Names = Sequence[TransactionName]
StagesFound = tuple[dict[TransactionName, "StagedCopy | None"], dict[TransactionName, Finished]]
"""The result of `Dialect.stages`."""

StagedTables = Mapping[TransactionName, tuple[str, int]]
"""Staging tables, each with the number of rows that were prepared."""


class Rows(Protocol):
    """Receives the rows of one task attempt, once their columns are known."""

    def write(self, rows: pa.RecordBatch, *, alone: bool = False) -> None:
        """Sends rows. With `alone`, returns once the server has accepted them, and raises if it rejects them."""

    def finish(self) -> None:
        """Sends the remaining rows, and checks that all rows have arrived and that the table has not changed."""

    def reset(self) -> None:
        """Discards unsent rows after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The functions of one database. Each takes a session, and raises one of `errors` if the server does not answer.

    After an error, the session is closed, so the server rolls back its open transaction.

    The driver uses the first half, up to `tidy`, and the writers use the rest. Their sessions may differ in type.

    Attributes:
        errors: The exceptions that the client library raises if there is no answer.
        fields: The fields of handles.
        connect: Opens a session for the driver. Its arguments are the address, the program's name and the time limits.
        is_idle: Returns True if a session is not in a transaction, and neither side has closed it.
        within: Returns a context in which calls on the session fail after this many seconds.
        refreshed: Returns the session with the current server's id, since a proxy may have switched servers.
        finished: Translates an error of a commit or an abort into an outcome.
        prepare_error: Translates a server's error while a task attempt writes, or during a trial merge.
        list_open: Lists the transactions and sessions that may belong to these runs.
        transactions_of: Lists what an `OPEN` session, which no longer exists, prepared or staged before it ended.
        end_writers: Ends the sessions that write these transactions. Returns False if one still exists at the deadline.
        settle: Waits until the writers of these transactions have ended, or until the deadline. None if commits need
            not wait.
        finish_prepared: Commits or aborts a prepared transaction, retrying until the deadline.
        begin: Begins the transaction of a merge, or of a trial. Only one session at a time may merge: returns False if
            another one does.
        stages: Returns the unfinished staged rows of these names, and the answers for all other names. For an abort,
            only the names matter, so None replaces the rows. Raises `PrepareError` for a damaged marker.
        merge: Moves the rows of staging tables that have the same target, in slot order, after checking that
            each table has as many rows as were prepared. Returns the problem, if any; then nothing may be committed.
            For a trial, it also checks all constraints.
        commit: Marks staged rows as committed, and ends the transaction.
        drop: Drops staged rows and ends the transaction, retrying until the deadline.
        roll_back: Rolls the transaction back.
        refusers: Returns True if a table may reject rows that these staging tables have accepted.
        settled: Applies an operator's choice for conflicting keys to staged rows that should have been appended.
        refers_to_unit: Returns True if an error is about a foreign key to rows that another sink of the batch may have.
        named: Describes the constraint that an error is about; empty if there is none.
        not_committed: Returns the names that are not committed here, unless their markers may have been tidied away.
        committed: Lists the committed transactions of a prefix and query, according to the markers.
        tidy: Deletes what finished transactions have left and, if it is due, what much older batches have left.
        has_transactional_ddl: False if a rollback does not undo the creation and dropping of tables. Staging tables
            then outlive their writers, and merged ones stay until `tidy` drops them.
        take: Opens a writer's session, or reuses an idle one of this process.
        give_back: Keeps a writer's session for the next task attempt, or closes it.
        open: Begins a task attempt's transaction. Returns the time by the server's clock, in milliseconds since the
            epoch; 0 if the database's handles do not record it.
        rows: Creates the `Rows` of a task attempt, and its marker or staging table if the kind of commit has one.
        prepare: Makes a task attempt's rows durable by preparing or committing the transaction.
        staging_table: Returns the name of a task attempt's staging table.
        row_refusal: Returns the server's message if it rejected a row because of its values; empty otherwise.
    """

    errors: tuple[type[Exception], ...]
    fields: HandleFields
    connect: Callable[[Any, str, Limits], Session]
    is_idle: Callable[[Session], bool]
    within: Callable[[Session, float], AbstractContextManager[None]]
    refreshed: Callable[[Session], Session] = lambda session: session
    finished: Callable[[Exception], Finished]
    prepare_error: Callable[..., PrepareError]
    list_open: Callable[[Session, Claims, Location], Iterable[SqlTransaction]]
    transactions_of: Callable[[Session, SqlTransaction], Sequence[SqlTransaction]] = lambda *_: ()
    end_writers: Callable[[Session, Sequence[SqlTransaction], float], bool]
    settle: Callable[[Session, Names, float], None] | None = None
    finish_prepared: Callable[[Session, SqlTransaction, bool, float], Finished]
    begin: Callable[[Session, Location, Names, Limits, bool], bool]
    stages: Callable[[Session, Location, Names, bool], StagesFound]
    merge: Callable[[Session, Location, StagedCopy, StagedTables, bool], str]
    commit: Callable[[Session, Location, Sequence[SqlTransaction]], None]
    drop: Callable[[Session, Location, Names, float], None]
    roll_back: Callable[[Session], None] = lambda session: session.execute("ROLLBACK")
    refusers: Callable[[Session, Location, StagedCopy, Sequence[str]], bool]
    settled: Callable[[Session, StagedCopy, str], StagedCopy | Finished]
    refers_to_unit: Callable[[Session, Exception, Names, Location], bool]
    named: Callable[[Session, Any, Target], str]
    not_committed: Callable[[Session, Names, Location], Names]
    committed: Callable[[Session, str, str, Location], Iterable[SqlTransaction]]
    tidy: Callable[[Session, Sequence[SqlTransaction], int, bool], None]
    has_transactional_ddl: bool
    take: Callable[[Copy], Session]
    give_back: Callable[[Any, Session], None] = lambda _, session: session.close()
    open: Callable[[Session, Copy], int]
    rows: Callable[[Session, Copy, int, pa.Schema], Rows]
    prepare: Callable[[Session, Copy], None]
    staging_table: Callable[[TransactionName], str]
    row_refusal: Callable[[Any], str]

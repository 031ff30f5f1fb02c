"""The functions that differ between databases. Each database's package provides a set of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkonce.protocol.handles import Finished
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.committing import Claims
from sparkonce.sinks.sql.settings import Limits, Target
from sparkonce.sinks.sql.transactions import HandleFields, Location, SqlTransaction

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.errors import PrepareError
    from sparkonce.sinks.sql.writer import Copy

Session = Any
"""A connection of the database's client library, or a value that holds one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCopy:
    """The staged rows of a task attempt."""

    table: str
    target: Target
    columns: tuple[str, ...]


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
        is_idle: Returns True if a session is open and not in a transaction.
        is_alive: Returns True if the server has kept an idle session open.
        within: Returns a context in which calls on the session fail after this many seconds.
        refreshed: Returns the session with the current server's id, since a proxy may have switched servers.
        finished: Translates an error of a commit or an abort into an outcome.
        prepare_error: Translates a server's error while a task attempt writes, or during a trial merge.
        list_open: Lists the transactions and sessions that may belong to these runs.
        left_by: Returns what an `OPEN` session, which no longer exists, prepared or staged before it ended.
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
        refusers: Returns True if a table may reject rows that their staging table has accepted.
        settled: Applies an operator's choice for conflicting keys to staged rows that should have been appended.
        refers_to_unit: Returns True if an error is about a foreign key to rows that another sink of the batch may have.
        named: Describes the constraint that an error is about; empty if there is none.
        fragile: Returns why rows are not safe in a table, for example because it is unlogged; empty if they are.
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
        execute: Runs a statement in a writer's session.
        prepare: Makes a task attempt's rows durable by preparing or committing the transaction.
        staging_table: Returns the name of a task attempt's staging table.
        is_about_row: Returns True if the server rejected a row because of its values.
        message: Returns the server's message without the values of rows.
    """

    errors: tuple[type[Exception], ...]
    fields: HandleFields
    connect: Callable[[Any, str, Limits], Session]
    is_idle: Callable[[Session], bool]
    is_alive: Callable[[Session], bool]
    within: Callable[[Session, float], AbstractContextManager[None]]
    refreshed: Callable[[Session], Session]
    finished: Callable[[Exception], Finished]
    prepare_error: Callable[..., PrepareError]
    list_open: Callable[[Session, Claims, Location], Iterable[SqlTransaction]]
    left_by: Callable[[Session, SqlTransaction], Sequence[SqlTransaction]]
    end_writers: Callable[[Session, Sequence[SqlTransaction], float], bool]
    settle: Callable[[Session, Sequence[TransactionName], float], None] | None
    finish_prepared: Callable[[Session, SqlTransaction, bool, float], Finished]
    begin: Callable[[Session, Location, Sequence[TransactionName], Limits, bool], bool]
    stages: Callable[
        [Session, Location, Sequence[TransactionName], bool],
        tuple[dict[TransactionName, StagedCopy | None], dict[TransactionName, Finished]],
    ]
    merge: Callable[[Session, Location, StagedCopy, Mapping[TransactionName, tuple[str, int]], bool], str]
    commit: Callable[[Session, Location, Sequence[SqlTransaction]], None]
    drop: Callable[[Session, Location, Sequence[TransactionName], float], None]
    roll_back: Callable[[Session], None]
    refusers: Callable[[Session, StagedCopy], bool]
    settled: Callable[[Session, StagedCopy, str], StagedCopy | Finished]
    refers_to_unit: Callable[[Session, Exception, Sequence[TransactionName], Location], bool]
    named: Callable[[Session, Any, Target], str]
    fragile: Callable[[Session, Target], str] | None
    not_committed: Callable[[Session, Sequence[TransactionName], Location], Sequence[TransactionName]]
    committed: Callable[[Session, str, str, Location], Iterable[SqlTransaction]]
    tidy: Callable[[Session, Sequence[SqlTransaction], int, bool], None]
    has_transactional_ddl: bool
    take: Callable[[Copy], Session]
    give_back: Callable[[Any, Session], None]
    open: Callable[[Session, Copy], int]
    rows: Callable[[Session, Copy, int, pa.Schema], Rows]
    execute: Callable[[Session, str], object]
    prepare: Callable[[Session, Copy], None]
    staging_table: Callable[[TransactionName], str]
    is_about_row: Callable[[Any], bool]
    message: Callable[[Any], str]

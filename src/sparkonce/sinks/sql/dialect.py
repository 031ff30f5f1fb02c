"""What differs between databases: a value of functions, which a package for each database fills in."""

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
    """The staged rows of a copy.

    Attributes:
        table: The staging table's name.
        target: Where the rows go, and the rules for it.
        columns: The columns of the target that they have.
    """

    table: str
    target: Target
    columns: tuple[str, ...]


class Rows(Protocol):
    """Takes the rows of one copy, once their columns are known."""

    def write(self, rows: pa.RecordBatch, *, alone: bool = False) -> None:
        """Sends rows. Alone, they have arrived on return, or an error says that they are refused."""

    def finish(self) -> None:
        """Sends the rest, and sees that all rows are there, in a table that is what it was."""

    def reset(self) -> None:
        """Drops what is not sent, after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The functions of one database. Each takes a session, and raises one of `errors` if the server does not answer.

    A session that raised is closed, by which the server rolls back what it had open.

    The first half is the driver's, the second the writers'. Their sessions may be of different types.

    Attributes:
        errors: The exceptions that the client library raises instead of an answer.
        fields: The fields of handles.
        connect: Opens a session of the driver: where to, and what for.
        is_idle: Returns True if a session is open and in no transaction.
        is_alive: Returns True if the server has kept an idle session.
        within: Makes what waits on a session fail after so many seconds.
        refreshed: Returns the session with the server's id as it is now: a proxy may have moved it.
        finished: Returns what an error says of a commit or an abort.
        prepare_error: Returns the error of a copy, or of a trial merge, from the server's error and what was done.
        list_open: Lists the transactions and sessions that may be of these runs.
        left_by: Returns what an `OPEN` session, which is gone by now, has prepared or staged just before.
        end_writers: Ends the sessions that write these, and returns False if one is still there at the deadline.
        settle: Waits, as far as commits have to, until the writers of these have ended. Returns at the deadline.
        finish_prepared: Commits, or aborts, a prepared transaction, until the deadline.
        begin: Begins the transaction of a merge, for which one session at a time is let in. False if another is in.
        stages: Returns the staged copies of these names that are not finished, and the answers for all others. For an
            abort, the stages are not read: only their names count.
        merge: Moves rows of staging tables with one target there, by table in the order of slots, after it has counted
            that each holds as many as were prepared. Returns what is wrong, in which case nothing may be committed.
            For a trial, it also checks all constraints.
        commit: Marks these staged copies as committed, and ends the transaction.
        drop: Drops these staged copies, and ends the transaction, until the deadline.
        roll_back: Rolls the transaction back.
        refusers: Returns True if a table may refuse a row that its staging table has taken.
        settled: Returns the rules for rows that were to be appended, where an operator has said what a conflict does.
        refers_to_unit: Returns True if an error is of a foreign key whose rows another sink of the batch may hold.
        named: Returns, in words, the constraint that an error is about; empty if it is about none.
        fragile: Returns why rows of a table are not safe there; empty for no reason.
        not_committed: Returns those of these that are not committed here, and whose markers cannot be deleted.
        committed: Lists what the markers of a prefix and query show as committed.
        tidy: Deletes what finished batches have left: of these transactions, and, if that is due, of all that are older
            than a batch.
        has_transactional_ddl: False if tables are made and dropped whatever becomes of the transaction: then staging
            tables outlive their writers, and merged ones stay for `tidy`.
        take: Opens a writer's session, or takes an idle one of this process.
        give_back: Keeps a writer's session for the next copy, or closes it.
        open: Begins a copy's transaction, and returns when, milliseconds since the epoch by the server's clock; 0 for
            a database whose handles do not say.
        rows: Makes what takes a copy's rows, with a marker or a staging table where the kind of commit has one.
        execute: Runs a statement of a writer.
        prepare: Makes a copy durable: prepares its transaction, or commits it.
        staging_table: Returns the name of a copy's staging table.
        is_about_row: Returns True if the server refused a row for its values.
        message: Returns the server's own words, without the values of rows.
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
    begin: Callable[[Session, Sequence[TransactionName], Limits], bool]
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

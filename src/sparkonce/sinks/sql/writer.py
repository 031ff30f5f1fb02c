"""The executor half: writes the rows of one task attempt, and makes them durable but not yet visible."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts, Refused, SinkWriter, WriterContext
from sparkonce.sinks._shared.arrow import offered
from sparkonce.sinks.sql.committer import SqlCommitter
from sparkonce.sinks.sql.dialect import DIRECT, Location, SqlTransaction
from sparkonce.sinks.sql.settings import Limits, Target

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.dialect import Dialect, Rows, Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The work of one task attempt. `commit` is ``staged``, ``two_phase`` or `DIRECT`."""

    conninfo: Any = field(repr=False)
    target: Target
    commit: str
    limits: Limits
    facts: Facts
    name: TransactionName


class SqlWriter(SinkWriter):
    """Writes the rows of one task attempt in one transaction."""

    def __init__(
        self, dialect: Dialect, conninfo: Any, target: Target, commit: str, limits: Limits, context: WriterContext
    ) -> None:
        owner = context.owner
        name = TransactionName(
            prefix=owner.facts.get("prefix", "direct"),
            query=owner.query,
            token=owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )
        self._copy = Copy(conninfo=conninfo, target=target, commit=commit, limits=limits, facts=owner.facts, name=name)
        self._dialect = dialect
        self._session: Session = None
        self._rows: Rows | None = None
        self._begun_ms = 0
        self._prepared = False

    def begin(self) -> None:
        """Connects, and begins the transaction. From then on, the server lists it under its name."""
        with self._explained():
            self._session = self._dialect.take(self._copy)
            with self._dialect.within(self._session, self._copy.limits.answer_s + self._copy.limits.lock_s):
                self._begun_ms = self._dialect.open(self._session, self._copy)

    def write(self, rows: pa.RecordBatch) -> None:
        with self._explained():
            self._to_rows(rows.schema).write(rows)

    def offer(self, rows: pa.RecordBatch) -> Refused:
        with self._explained():
            to = self._to_rows(rows.schema)
            with self._dialect.within(self._open(), self._copy.limits.slot_s):
                return offered(rows, lambda part: self._attempt(to, part))

    def _attempt(self, to: Rows, rows: pa.RecordBatch) -> str:
        """Writes these rows and returns an empty string, or writes none of them and returns the reason."""
        session, reason = self._open(), ""
        session.execute("SAVEPOINT sparkonce_rows")
        try:
            to.write(rows, alone=True)
        except OutageError:
            raise
        except PrepareError as error:
            reason = error.message
        except self._dialect.errors as error:
            reason = self._dialect.row_refusal(error)
            if not reason:
                raise
        if reason:
            to.reset()
            session.execute("ROLLBACK TO SAVEPOINT sparkonce_rows")
        session.execute("RELEASE SAVEPOINT sparkonce_rows")
        return reason

    def prepare(self) -> Mapping[str, str | int]:
        session, limits = self._open(), self._copy.limits
        with self._explained(), self._dialect.within(session, limits.commit_s + limits.answer_s):
            if self._rows is None:
                raise PrepareError(f"Slot {self._copy.name.slot} prepares without rows.")
            self._rows.finish()
            self._prepared = True
            self._dialect.prepare(session, self._copy)
        self.close()
        return {} if self._copy.commit == DIRECT else self._dialect.fields.write(self._transaction())

    def abort(self) -> None:
        """Ends the session, and aborts what outlives it. A sweep aborts what cannot be aborted now."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        if session is None and not self._prepared:
            return
        if self._rows is not None:
            self._rows.reset()
        if self._copy.commit != DIRECT and (self._prepared or not self._dialect.has_transactional_ddl):
            self._prepared = False
            copy = self._copy
            committer = SqlCommitter(self._dialect, copy.conninfo, "", server="The server", limits=copy.limits)
            try:
                (done,) = committer.abort([self._dialect.fields.handle("", self._transaction())])
            finally:
                committer.close()
            if done.outcome is not Outcome.ABORTED:
                log.warning("%s is left to the driver: %s", self._copy.name, done.reason)

    def close(self) -> None:
        """Gives the session back. A prepared transaction remains."""
        session, self._session = self._session, None
        if session is not None:
            self._dialect.give_back(self._copy.conninfo, session)

    def _to_rows(self, schema: pa.Schema) -> Rows:
        """Returns the object that receives the rows. The first rows determine its columns."""
        if self._rows is None:
            self._rows = self._dialect.rows(self._open(), self._copy, self._begun_ms, schema)
        return self._rows

    def _transaction(self) -> SqlTransaction:
        location = Location.of(self._copy.facts, self._dialect.fields.names)
        return SqlTransaction(kind=self._copy.commit, name=self._copy.name, location=location, begun_ms=self._begun_ms)

    def _open(self) -> Session:
        if self._session is None:
            raise PrepareError(f"Slot {self._copy.name.slot} has no open transaction.")
        return self._session

    @contextmanager
    def _explained(self) -> Iterator[None]:
        name, target = self._copy.name, self._copy.target
        try:
            yield
        except self._dialect.errors as error:
            what = f"Batch {name.batch}, slot {name.slot}, table {target}"
            raise self._dialect.prepare_error(error, what, self._dialect.staging_table(name), target.table) from None

"""A PostgreSQL server: sessions, prepared transactions, markers, staging tables, and locks on markers.

- A prepared transaction outlives its session and the server. Its marker becomes visible together with its rows. -
COMMIT PREPARED and ROLLBACK PREPARED return 42704 for a name that does not exist, no matter what happened to it.
- Staged rows are a marker and a table, committed by their own session. To publish them, a driver locks the marker, and
  one message moves the rows and ends the transaction.
- A lock is released with its session. A session that is idle in its transaction for too long is ended.
- A restart ends all sessions, including unfinished writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from simulation.engine import Words
from simulation.systems import System, Writer
from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.committer import SqlCommitter
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.postgres import finishing as product
from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT
from sparkonce.sinks.sql.postgres.finishing import MarkerState
from sparkonce.sinks.sql.postgres.settings import BackendName
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, Limits, Target

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key
    from sparkonce.protocol.handles import Scalar

PLACE = Location(server="1", database="d", schema="public")
TARGET = Target(schema="public", table="t").to_text(("number",))
LIMITS = Limits()


class Session:
    """A writer's session, with an open transaction."""

    __slots__ = ("name", "parts", "writer")

    def __init__(self, name: TransactionName, writer: Writer) -> None:
        self.name, self.writer = name, writer
        self.parts = 0


class Postgres(System):
    """A server.

    Args:
        simulation: The schedule.
        name: ``postgres`` for two phases, or ``postgres-staged``.
    """

    facts: Mapping[str, str] = {"prefix": "p", "system": "1", "database": "d", "commits": "public"}
    refusals = (psycopg.Error,)

    def no_answer(self) -> Exception:
        return psycopg.OperationalError("the connection is lost")

    def refused(self) -> Exception:
        return _error(psycopg.errors.InsufficientPrivilege)

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.copies = _Writer
        self.kind = STAGED if name.endswith("staged") else TWO_PHASE
        self.sessions: dict[TransactionName, Session] = {}
        self.prepared: dict[TransactionName, Session] = {}
        self.markers: dict[TransactionName, str] = {}
        self.staging: dict[TransactionName, Session] = {}
        self.locks: dict[TransactionName, Connection] = {}

    def committer(self) -> SqlCommitter:
        return SqlCommitter(DIALECT, self, self.name, server=self.name, limits=LIMITS)

    def lingering(self) -> list[Key]:
        staged = [name for name in self.staging if self.markers[name] == "staged"]
        return [(self.name, str(name)) for name in (*self.sessions, *self.prepared, *staged)]

    def restart(self) -> Callable[[], None] | None:
        if not self.sessions and not self.locks:
            return None

        def restart() -> None:
            self.simulation.say(f"{self.name}: is killed and started again")
            self.sessions.clear()
            self.locks.clear()

        return restart

    def hang_up(self) -> Callable[[], None] | None:
        sessions = [one for one in self.sessions.values() if one.writer.is_gone]
        holders = [one for one in self.locks.values() if one.is_gone]
        if not sessions and not holders:
            return None

        def end() -> None:
            if sessions:
                self.simulation.say(self.called, "notices that a writer is gone:", sessions[0].name)
                del self.sessions[sessions[0].name]
            else:
                self.simulation.say(self.called, "notices that a driver is gone")
                self.free(holders[0])

        return end

    def show(self, name: TransactionName, rows: Session) -> None:
        self.markers[name] = "committed"
        self.simulation.oracle.shown((self.name, str(name)), (name.batch, name.slot, self.name, rows.parts))

    # --- requests -----------------------------------------------------------------------------------------------------

    def finish(self, name: TransactionName, commit: bool) -> bool:
        """Returns True if the name existed."""
        found = self.prepared.pop(name, None)
        if found is None:
            return False
        if commit:
            self.show(name, found)
        else:
            self.simulation.oracle.aborted((self.name, str(name)))
        return True

    def terminate(self, texts: Sequence[str]) -> list[int]:
        """pg_terminate_backend, for sessions by name, including those of dead writers."""
        ended = [name for name in self.sessions if str(BackendName.of(name)) in texts]
        for name in ended:
            del self.sessions[name]
        return [1 for _ in ended]

    def lock(self, connection: Connection, names: Sequence[TransactionName]) -> None:
        self.free(connection)
        found = [name for name in names if name in self.markers]
        for name in found:
            holder = self.locks.get(name)
            if holder is not None and holder is not connection:
                # The holder of the locks has been idle for longer than allowed, so the server ends the session.
                self.locks = {one: other for one, other in self.locks.items() if other is not holder}
                raise _error(psycopg.errors.LockNotAvailable)
        for name in found:
            self.locks[name] = connection
        connection.held = found

    def finish_staged(self, connection: Connection, names: Sequence[TransactionName], commit: bool) -> None:
        if any(self.locks.get(name) is not connection for name in names):
            raise _error(psycopg.errors.IdleInTransactionSessionTimeout)
        for name in names:
            rows = self.staging.pop(name)
            if commit:
                self.show(name, rows)
            else:
                del self.markers[name]
                self.simulation.oracle.aborted((self.name, str(name)))
        self.free(connection)

    def free(self, connection: Connection) -> None:
        for name in connection.held:
            if self.locks.get(name) is connection:
                del self.locks[name]
        connection.held = []

    def marker_state(self, name: TransactionName) -> MarkerState:
        newest = max((one.batch for one, state in self.markers.items() if state == "committed"), default=-1)
        return MarkerState(
            state=self.markers.get(name),
            is_prepared=name in self.prepared,
            location=PLACE,
            newest=newest,
            row_security=False,
        )


def _error(kind: type[psycopg.Error]) -> psycopg.Error:
    return kind("the server says no")


class Connection:
    """A driver's connection: what `sparkonce.sinks.sql.postgres` executes on it."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.held: list[TransactionName] = []
        self.adrift = False
        self._party = server.simulation.current

    @property
    def is_gone(self) -> bool:
        """True if nobody is left at the driver's end."""
        return self.adrift or (self._party is not None and self._party.dead)

    def ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        try:
            return self.server.ask(what, apply)
        except psycopg.OperationalError as error:
            # The server does not know that the client is gone, so it keeps the session and its locks.
            self.adrift |= error.sqlstate is None
            raise

    def execute(self, query: Any, params: Any = None) -> Any:
        server = self.server
        if query is product._TERMINATE:
            return _Rows(self.ask(("ends sessions",), lambda: server.terminate(params[0])))
        head, text = list(query)[:2]
        if head._obj not in ("COMMIT PREPARED ", "ROLLBACK PREPARED "):
            raise NotImplementedError(repr(query))
        name = TransactionName.parse(text._obj)
        commit = head._obj.startswith("COMMIT")
        if name is None or not self.ask((head._obj.strip(), name), lambda: server.finish(name, commit)):
            raise _error(psycopg.errors.UndefinedObject)
        return _Rows([])

    def finish_staged(self, names: Sequence[TransactionName], commit: bool) -> None:
        """The effect of one message from a driver on staged copies. Without copies, it ends the transaction."""
        if not names:
            self.server.free(self)
            return
        what = f"{'commits' if commit else 'drops'} staged {', '.join(map(str, names))}"
        self.ask((what,), lambda: self.server.finish_staged(self, names, commit))

    def close(self) -> None:
        if not self.adrift:
            self.server.free(self)


class _Rows:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchall(self) -> list[Any]:
        return self._rows


# --- instead of the product's statements ------------------------------------------------------------------------------


def _names_if_staged(server: Postgres) -> list[TransactionName]:
    return [name for name, state in server.markers.items() if state == "staged"]


def _committed(server: Postgres) -> list[SqlTransaction]:
    return [_transaction(server.kind, name) for name, state in server.markers.items() if state == "committed"]


def _not_committed(link: Connection, names: Sequence[TransactionName], _: Location) -> list[TransactionName]:
    return [one for one in names if link.server.markers.get(one) != "committed"]


def _transaction(kind: str, name: TransactionName) -> SqlTransaction:
    return SqlTransaction(kind=kind, name=name, location=PLACE)


def _asked(words: str, read: Callable[[Postgres], Any]) -> Callable[..., Any]:
    return lambda link, *_: link.ask((words,), lambda: read(link.server))


def _marker_state(link: Connection, name: TransactionName, _: Location) -> Any:
    return link.ask(("looks for", name), lambda: link.server.marker_state(name))


def _begin(link: Connection, _: Location, names: Sequence[TransactionName], *__: object) -> bool:
    link.ask(("locks markers",), lambda: link.server.lock(link, names))
    return True


def _markers(link: Connection, _: Location, names: Sequence[TransactionName]) -> Any:
    found = link.server.markers
    return link.ask(("reads markers",), lambda: {str(one): (found[one], TARGET) for one in names if one in found})


DIALECT = replace(
    POSTGRES_DIALECT,
    connect=lambda server, *_: Connection(server),
    is_idle=lambda _: False,
    within=lambda *_: nullcontext(),
    begin=_begin,
    merge=lambda *_: "",
    commit=lambda link, _, merged: link.finish_staged([one.name for one in merged], True),
    drop=lambda link, _, names, __: link.finish_staged(names, False),
    roll_back=lambda link: link.server.free(link),
    refusers=lambda *_: False,  # no table of the model can reject a row, so there are no trial merges
    not_committed=_not_committed,
    committed=_asked("reads markers", _committed),
    tidy=lambda *_: None,
)
"""The product's dialect, without the SQL of staged copies."""

REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("finishing", "read_marker", _marker_state),
    ("finishing", "_markers", _markers),
    ("finishing", "list_sessions", _asked("lists sessions", lambda server: [*map(BackendName.of, server.sessions)])),
    ("finishing", "list_prepared", _asked("lists prepared", lambda server: list(server.prepared))),
    ("finishing", "list_staged", _asked("lists staged", _names_if_staged)),
)
"""The product's functions that generate SQL, by module: this server does not understand any."""


class _Writer(Writer):
    system: Postgres

    def __init__(self, system: Postgres, name: TransactionName) -> None:
        super().__init__(system)
        self._name = name
        self._prepared = False

    def begin(self) -> None:
        name = self._name

        def begin() -> None:
            self.system.sessions[name] = Session(name, self)

        self.ask(("begins", name), begin)

    def write(self, parts: int) -> None:
        def write() -> bool:
            session = self.system.sessions.get(self._name)
            if session is None:
                return False
            session.parts += parts
            return True

        if not self.ask(("writes", self._name), write):
            raise PrepareError("the session was ended")

    def prepare(self) -> Mapping[str, Scalar]:
        def prepare() -> bool:
            session = self.system.sessions.pop(self._name, None)
            if session is None:
                return False
            if self.system.kind == TWO_PHASE:
                self.system.prepared[self._name] = session
            else:
                self.system.markers[self._name] = "staged"
                self.system.staging[self._name] = session
            return True

        self._prepared = True
        if not self.ask(("prepares", self._name), prepare):
            raise PrepareError("the session was ended")
        return POSTGRES_DIALECT.fields.write(_transaction(self.system.kind, self._name))

    def abort(self) -> None:
        self.left = True
        self.system.sessions.pop(self._name, None)
        if self._prepared:
            self.system.committer().abort(
                [POSTGRES_DIALECT.fields.handle("", _transaction(self.system.kind, self._name))]
            )

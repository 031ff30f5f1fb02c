"""A MariaDB server: XA branches, the connections that hold them, and markers, which a dirty read shows early.

- A prepared branch outlives its connection and the server. While its connection exists, XA COMMIT and XA ROLLBACK from
  other connections return 1397, as for a branch that has been finished.
- The connection is identified by a lock that it holds. It ends when its process dies, when it is killed, and in a
  restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pymysql

from simulation.engine import Words
from simulation.spark import BATCHES_APART_MS
from simulation.systems import System, Writer
from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.committer import SqlCommitter
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.mysql.connection import MARIADB
from sparkonce.sinks.sql.mysql.dialect import MYSQL_DIALECT
from sparkonce.sinks.sql.mysql.outcomes import NO_SUCH_THREAD, XAER_NOTA
from sparkonce.sinks.sql.mysql.settings import Xid
from sparkonce.sinks.sql.settings import TWO_PHASE, Limits

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key
    from sparkonce.protocol.handles import Scalar

SPECIFIC_ACCESS_DENIED = 1227


class Branch:
    """An XA transaction: open or prepared, and the connection that holds it; 0 if none does anymore."""

    __slots__ = ("holder", "name", "parts", "prepared", "writer")

    def __init__(self, name: TransactionName, holder: int, writer: Writer) -> None:
        self.name, self.holder, self.writer = name, holder, writer
        self.parts, self.prepared = 0, False


class MariaDB(System):
    """A server."""

    facts: Mapping[str, str] = {"prefix": "p", "server": "s"}
    key_field = "transaction"

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.copies = _Writer
        self.branches: dict[str, Branch] = {}
        self.committed: dict[str, TransactionName] = {}
        self.connections = 0
        self.closing: list[Branch] = []
        simulation.events.append(self.notice)

    def committer(self) -> SqlCommitter:
        return SqlCommitter(DIALECT, self, self.name, server=self.name, limits=Limits(answer_s=10.0))

    def no_answer(self) -> Exception:
        return pymysql.err.OperationalError(2013, "Lost connection")

    def refused(self) -> Exception:
        return pymysql.err.OperationalError(SPECIFIC_ACCESS_DENIED, "Access denied")

    def lingering(self) -> list[Key]:
        return [(self.name, str(one.name)) for one in self.branches.values()]

    def restart(self) -> Callable[[], None] | None:
        if not any(branch.holder for branch in self.branches.values()):
            return None

        def restart() -> None:
            self.simulation.say(f"{self.name}: is killed and started again")
            for branch in list(self.branches.values()):
                self.end_connection(branch)

        return restart

    def hang_up(self) -> Callable[[], None] | None:
        gone = [branch for branch in self.branches.values() if branch.holder and branch.writer.is_gone]
        if not gone:
            return None

        def end() -> None:
            self.simulation.say(self.called, "notices that a writer is gone:", gone[0].name)
            self.end_connection(gone[0])

        return end

    def end_connection(self, branch: Branch) -> None:
        """Branches that were not prepared are rolled back, and no connection holds the others anymore."""
        branch.holder = 0
        if not branch.prepared:
            self.branches.pop(branch.name.copy, None)

    def notice(self) -> Callable[[], None] | None:
        """The server notices that a connection was closed; None if there is nothing to notice."""
        if not self.closing:
            return None
        return lambda: self.end_connection(self.closing.pop(0))

    # --- requests -----------------------------------------------------------------------------------------------------

    def finish(self, copy: str, commit: bool) -> bool:
        branch = self.branches.get(copy)
        if branch is None or not branch.prepared or branch.holder:
            return False
        del self.branches[copy]
        key = (self.name, str(branch.name))
        if commit:
            self.committed[copy] = branch.name
            self.simulation.oracle.shown(key, (branch.name.batch, branch.name.slot, self.name, branch.parts))
        else:
            self.simulation.oracle.aborted(key)
        return True

    def kill(self, connection: int) -> bool:
        for branch in list(self.branches.values()):
            if branch.holder == connection:
                self.end_connection(branch)
                return True
        return False


class Link:
    """A driver's connection: what `sparkonce.sinks.sql.mysql` executes on it."""

    open = True
    flavour, server = MARIADB, "s"

    def __init__(self, system: MariaDB) -> None:
        self.system = system

    def ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        try:
            return self.system.ask(what, apply)
        except pymysql.err.OperationalError as error:
            self.open = error.args[0] == SPECIFIC_ACCESS_DENIED
            raise

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        server = self.system
        verb, _, rest = statement.partition(" ")
        if verb == "XA":
            what, _, xid = rest.partition(" ")
            copy = bytes.fromhex(xid[2 : xid.index("'", 2)]).decode()[-12:]
            if not self.ask(("XA", what, copy), lambda: server.finish(copy, what == "COMMIT")):
                raise pymysql.err.OperationalError(XAER_NOTA, "XAER_NOTA")
        elif verb == "KILL":
            number = int(rest.rpartition(" ")[2])
            if not self.ask((statement,), lambda: server.kill(number)):
                raise pymysql.err.OperationalError(NO_SUCH_THREAD, "Unknown thread id")
        else:
            raise NotImplementedError(statement)

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        if "IS_USED_LOCK" in statement:
            copies = [str(value).rpartition(":")[2] for value in values]
            branches = self.system.branches
            return self.ask(
                ("asks who holds locks",),
                lambda: tuple(branches[one].holder or None if one in branches else None for one in copies),
            )
        if "MAX(batch)" in statement:
            return (max((name.batch for name in self.system.committed.values()), default=None),)
        raise NotImplementedError(statement)

    def thread_id(self) -> int:
        return -1

    def close(self) -> None:
        self.open = False


DIALECT = replace(
    MYSQL_DIALECT,
    connect=lambda server, *_: Link(server),
    is_idle=lambda _: False,
    within=lambda *_: nullcontext(),
)


# --- instead of the product's statements ------------------------------------------------------------------------------


def _marker(name: TransactionName) -> SqlTransaction:
    begun_ms = name.batch * BATCHES_APART_MS
    return SqlTransaction(kind=TWO_PHASE, name=name, location=Location(server="s"), begun_ms=begun_ms)


def _asked(words: str, read: Callable[..., Any]) -> Callable[..., Any]:
    return lambda link, *given: link.ask((words,), lambda: read(link.system, *given))


def _prepared(server: MariaDB) -> set[Xid]:
    return {Xid.of(one.name) for one in server.branches.values() if one.prepared}


def _committed(server: MariaDB, names: Iterable[TransactionName]) -> set[TransactionName]:
    return {one for one in names if one.copy in server.committed}


def _is_seen(server: MariaDB, name: TransactionName) -> bool:
    return name.copy in server.branches or name.copy in server.committed


def _not_committed(server: MariaDB, *_: object) -> list[SqlTransaction]:
    return [_marker(one.name) for one in server.branches.values()]


REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("finishing", "recovered", _asked("XA RECOVER", _prepared)),
    ("finishing", "marked", lambda link, names: _asked("looks for markers", _committed)(link, list(names))),
    ("finishing", "is_seen", _asked("looks for a marker, dirty", _is_seen)),
    ("finishing", "unsettled", _asked("lists open", _not_committed)),
    (
        "finishing",
        "markers_of",
        _asked("reads markers", lambda server, *_: list(map(_marker, server.committed.values()))),
    ),
    ("finishing", "list_staging_tables", lambda _: []),
    ("finishing", "identity", lambda *_: "s"),
)
"""The product's functions that generate SQL, by module: this server does not understand any."""


class _Writer(Writer):
    system: MariaDB

    def __init__(self, system: MariaDB, name: TransactionName) -> None:
        super().__init__(system)
        self._name = name

    def begin(self) -> None:
        self.system.connections += 1
        holder = self.system.connections

        def begin() -> None:
            self.system.branches[self._name.copy] = Branch(self._name, holder, self)

        self.ask(("XA START", self._name), begin)

    def write(self, parts: int) -> None:
        def write() -> bool:
            branch = self._branch()
            if branch is None or branch.prepared:
                return False
            branch.parts += parts
            return True

        if not self.ask(("writes", self._name), write):
            raise PrepareError("the connection was ended")

    def prepare(self) -> Mapping[str, Scalar]:
        def prepare() -> bool:
            branch = self._branch()
            if branch is not None:
                branch.prepared = True
            return branch is not None

        if not self.ask(("XA PREPARE", self._name), prepare):
            raise PrepareError("the connection was ended")
        self.system.simulation.stop_here()
        self._end()
        return MYSQL_DIALECT.fields.write(_marker(self._name))

    def _branch(self) -> Branch | None:
        """Returns the branch, as long as this connection exists."""
        branch = self.system.branches.get(self._name.copy)
        return branch if branch is not None and branch.holder else None

    def _end(self) -> None:
        if (branch := self._branch()) is None:
            return
        if self.system.simulation.chance("request late"):
            self.system.closing.append(branch)
        else:
            self.system.end_connection(branch)

    def abort(self) -> None:
        """The product's writer rolls back what it may have prepared through the committer."""
        self.left = True
        self._end()
        if self._name.copy in self.system.branches:
            self.system.committer().abort([MYSQL_DIALECT.fields.handle("", _marker(self._name))])

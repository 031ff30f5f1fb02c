"""A Delta table: a log of versions. The history shows their labels; a version's application has its own version.

- A writer whose snapshot is no longer the newest version is rejected.
- A version of an application id that the table already has, or an older one, is skipped silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.staged import SparkError
from simulation.tables import Content, Rows, Session, Table, schema
from sparkonce.sinks.tables.delta import _DELTA, _DeltaTable
from sparkonce.sinks.tables.table import Label

if TYPE_CHECKING:
    from simulation.engine import Simulation


class Delta(Table):
    """The table's log: each version's label, and the application with its own version."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.versions: list[tuple[str | None, str, int]] = [(None, "", 0)]

    def table(self) -> Any:
        java = SimpleNamespace(HashMap=dict)
        tables = SimpleNamespace(forPath=lambda *_: _DeltaHandle(self, session))
        session = Session(
            self,
            SimpleNamespace(
                io=SimpleNamespace(delta=SimpleNamespace(tables=SimpleNamespace(DeltaTable=tables))),
                java=SimpleNamespace(util=java),
                scala=SimpleNamespace(Option=SimpleNamespace(empty=lambda: None)),
            ),
        )
        return _Delta(session, "/table", None)

    def others(self, content: Content) -> None:
        self.versions.append((None, "", 0))

    def has(self, application: str, version: int) -> bool:
        """Returns True if the table has this version of an application."""
        return any((one, other >= version) == (application, True) for _, one, other in self.versions if one)

    def commit(self, read: int, entry: tuple[str, str, int], rows: Sequence[int], content: Content) -> None:
        """Adds a version.

        Raises:
            SparkError: If the newest one is not the one that was read.
        """
        if read != len(self.versions):
            raise SparkError("ConcurrentAppendException")
        self.versions.append(entry)
        self.publish(rows, content)


class _Delta(_DeltaTable):
    def schema(self) -> Any:
        return schema()

    def _newest_label(self) -> Label | None:
        """Reads the newest entry of the table's log, as a file."""
        server: Any = self.spark.server
        return Label.of_text(server.ask(("reads the newest entry",), lambda: server.versions[-1][0]))

    def _frame(self, java: Any) -> Any:
        return java


class _DeltaHandle:
    """``io.delta.tables.DeltaTable``, which also serves as merge builder, history, and log."""

    def __init__(self, server: Delta, session: Session) -> None:
        self._server, self._session = server, session
        self._rows: Rows | None = None
        self._kinds: list[str] = []

    def alias(self, _: str) -> _DeltaHandle:
        return self

    def merge(self, rows: Rows, _: str) -> _DeltaHandle:
        self._rows = rows
        return self

    def whenMatched(self, *_: str) -> _DeltaHandle:
        return self

    whenNotMatched = whenMatched  # noqa: N815

    def updateExpr(self, _: object) -> _DeltaHandle:
        return self._with("update")

    def insertExpr(self, _: object) -> _DeltaHandle:
        return self._with("insert")

    def delete(self) -> _DeltaHandle:
        return self._with("delete")

    def _with(self, kind: str) -> _DeltaHandle:
        self._kinds.append(kind)
        return self

    def execute(self) -> None:
        server, said = self._server, self._session.settings
        entry = (
            said[f"{_DELTA}.commitInfo.userMetadata"],
            said.get(f"{_DELTA}.write.txnAppId", ""),
            int(said.get(f"{_DELTA}.write.txnVersion", 0)),
        )
        read, content, has = server.ask(
            ("reads the table",), lambda: (len(server.versions), server.content, server.has(*entry[1:]))
        )
        if has or self._rows is None:
            return
        rows = self._rows.numbers
        clauses = SimpleNamespace(clauses=[SimpleNamespace(kind=kind) for kind in self._kinds])
        made = server.merged(content, rows, clauses)
        server.ask(("commits version", read), lambda: server.commit(read, entry, rows, made))

    def history(self, newest: int = 1_000) -> _History:
        return _History(self._server.ask(("reads the history",), lambda: self._server.versions[-newest:]))

    def deltaLog(self) -> Any:
        metadata = SimpleNamespace(id=lambda: "table")
        self._server.ask(("reads the log",), lambda: None)
        return SimpleNamespace(
            update=lambda *_: SimpleNamespace(metadata=lambda: metadata),
            dataPath=lambda: SimpleNamespace(toUri=lambda: "s3a://table"),
        )


class _History:
    def __init__(self, versions: Sequence[tuple[str | None, str, int]]) -> None:
        self._versions = versions

    def where(self, _: str) -> _History:
        return _History([one for one in self._versions if one[0] is not None])

    def select(self, _: str) -> _History:
        return self

    def collect(self) -> Sequence[tuple[str | None, str, int]]:
        return self._versions

    def selectExpr(self, _: str) -> _History:
        return self

    def first(self) -> tuple[tuple[int, int]]:
        return ((0, 0),)

"""An Iceberg table: snapshots, branches and properties, which one commit changes together.

- The changes of a transaction are validated again when it is committed, against the newest state.
- A branch is fast-forwarded only to a descendant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.engine import UNDER_WAY
from simulation.staged import SparkError
from simulation.tables import Content, Session, Table, schema
from sparkonce.sinks.tables.iceberg import _MAIN, _IcebergTable

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key


class Snapshot:
    """A snapshot, and the table's content in it."""

    __slots__ = ("content", "number", "parent", "rows", "summary_of")

    def __init__(
        self, number: int, parent: Snapshot | None, content: Content, rows: Sequence[int], summary: Mapping[str, str]
    ) -> None:
        self.number, self.parent, self.content, self.rows, self.summary_of = number, parent, content, rows, summary

    def summary(self) -> Mapping[str, str]:
        return self.summary_of

    def snapshotId(self) -> int:
        return self.number

    def line(self) -> Iterator[Snapshot]:
        """This snapshot and all of its ancestors."""
        found: Snapshot | None = self
        while found is not None:
            yield found
            found = found.parent


class Iceberg(Table):
    """The table's snapshots, branches and properties."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.snapshots: list[Snapshot] = []
        self.branches: dict[str, Snapshot] = {_MAIN: self.add(None, {}, (), {})}
        self.properties: dict[str, str] = {}

    def table(self) -> Any:
        util = SimpleNamespace(SnapshotUtil=SimpleNamespace(currentAncestorIds=lambda loaded: loaded.ancestors()))
        iceberg = SimpleNamespace(util=util)
        jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg)))
        return _Iceberg(Session(self, jvm), "t")

    def lingering(self) -> list[Key]:
        return super().lingering() + [(self.name, branch) for branch in self.branches if branch != _MAIN]

    def add(
        self, parent: Snapshot | None, content: Content, rows: Sequence[int], summary: Mapping[str, str]
    ) -> Snapshot:
        """A snapshot that is not on a branch yet."""
        self.snapshots.append(Snapshot(len(self.snapshots), parent, content, rows, summary))
        return self.snapshots[-1]

    def others(self, content: Content) -> None:
        self.branches[_MAIN] = self.add(self.branches[_MAIN], content, (), {})

    def merge(self, branch: str, rows: Sequence[int], summary: Mapping[str, str]) -> None:
        """Merges into a branch.

        Raises:
            SparkError: If there is no such branch.
        """
        head = self.branches.get(branch)
        if head is None:
            raise SparkError(f"no branch {branch}")
        self.branches[branch] = self.add(head, self.merged(head.content, rows, None), rows, summary)

    def move(self, branch: str, *, forward: bool) -> None:
        """Makes a branch's newest snapshot the table's current one.

        Raises:
            SparkError: If it is not a descendant of the table's although that is required, or there is no such branch.
        """
        head, main = self.branches.get(branch), self.branches[_MAIN]
        if head is None or (forward and main not in head.line()):
            raise SparkError(f"cannot fast-forward to {branch}")
        self.branches[_MAIN] = head
        if head is not main:
            self.publish(head.rows, head.content)


class _Iceberg(_IcebergTable):
    def schema(self) -> Any:
        return schema()

    def _load(self) -> Any:
        server: Any = self.spark.server
        return server.ask(("loads the table",), lambda: _Loaded(server))

    def _forgotten(self, _: object) -> None:
        """A model's session has no catalog with cached tables."""


class _Loaded:
    """``org.apache.iceberg.Table``, as it was when it was loaded. Changes are validated again at the commit."""

    def __init__(self, server: Iceberg) -> None:
        self._server = server
        self._branches, self._properties = dict(server.branches), dict(server.properties)

    def __str__(self) -> str:
        return f"snapshot {self._branches[_MAIN].number}"

    def uuid(self) -> str:
        return "table"

    def location(self) -> str:
        return "s3a://bucket/table"

    def properties(self) -> Mapping[str, str]:
        return self._properties

    def refs(self) -> Mapping[str, Snapshot]:
        return self._branches

    def snapshot(self, which: str | int) -> Snapshot | None:
        return self._branches.get(which) if isinstance(which, str) else self._server.snapshots[which]

    def ancestors(self) -> list[int]:
        return [one.number for one in self._branches[_MAIN].line()]

    def manageSnapshots(self) -> _Change:
        return _Change(self._server)

    def newTransaction(self) -> _Change:
        return _Change(self._server, is_part=True)


class _Change:
    """A change of the table, or several in one commit."""

    def __init__(self, server: Iceberg, *, is_part: bool = False) -> None:
        self._server, self._is_part = server, is_part
        self._steps: list[Callable[[], Any]] = []
        self._words: list[str] = []

    def manageSnapshots(self) -> _Change:
        return self

    updateProperties = manageSnapshots  # noqa: N815

    def createBranch(self, name: str) -> _Change:
        server = self._server
        return self._with("a branch", lambda: server.branches.setdefault(name, server.branches[_MAIN]))

    def removeBranch(self, name: str) -> _Change:
        return self._with("no branch", lambda: self._server.branches.pop(name, None))

    def fastForwardBranch(self, _: str, branch: str) -> _Change:
        return self._with("fast-forward", lambda: self._server.move(branch, forward=True))

    def replaceBranch(self, _: str, branch: str) -> _Change:
        return self._with("replace", lambda: self._server.move(branch, forward=False))

    def set(self, key: str, value: str) -> _Change:
        return self._with("a note", lambda: self._server.properties.update({key: value}))

    def remove(self, key: str) -> _Change:
        return self._with("no note", lambda: self._server.properties.pop(key, None))

    def _with(self, words: str, step: Callable[[], Any]) -> _Change:
        self._steps.append(step)
        self._words.append(words)
        return self

    def commit(self) -> None:
        if not self._is_part:
            self.commitTransaction()

    def commitTransaction(self) -> None:
        self._server.ask(("commits", *self._words), self._apply)

    def _apply(self) -> None:
        for step in self._steps:
            step()


def _run_labelled(session: Session, statement: str, summary: Mapping[str, str]) -> None:
    server: Any = session.server
    found = re.match(r"MERGE INTO t\.`branch_([^`]+)`", statement)
    if found is None or session.view is None:
        raise NotImplementedError(statement)
    rows = session.view.numbers
    server.ask(("merges into", found[1]), lambda: server.merge(found[1], rows, summary))


REPLACED: tuple[tuple[str, Any], ...] = (
    ("_run_labelled", _run_labelled),
    ("secrets", SimpleNamespace(token_hex=lambda _: f"{UNDER_WAY[0].nonce():08x}")),
)
"""The functions of `sparkonce.sinks.tables.iceberg`."""

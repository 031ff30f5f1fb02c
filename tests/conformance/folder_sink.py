"""A sink of somebody's own, as small as one can be that other processes can finish: a transaction is a file.

The folder a file is in is its transaction's state, and a rename from one to another is atomic.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from sparkonce.sink import (
    Facts,
    Finished,
    Guarantee,
    Handle,
    Outcome,
    Owner,
    PrepareError,
    SinkCommitter,
    SinkWriter,
    Token,
    Trace,
    TwoPhaseCommitSink,
    WriterContext,
    transaction_fields,
)

STATES = ("open", "prepared", "committed", "aborted")


class FolderSink(TwoPhaseCommitSink):
    def __init__(
        self, root: Path, *, name: str = "folder", prefix: str = "p", guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    ) -> None:
        super().__init__(name, guarantee)
        self.root = root
        self.prefix = prefix

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return [column for column in schema.names if column == "number"]

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        for state in STATES:
            (self.root / state).mkdir(parents=True, exist_ok=True)
        return recorded or {"prefix": self.prefix}

    def writer(self, context: WriterContext) -> SinkWriter:
        return FolderWriter(self, f"{_owner(self.name, context.owner)},{uuid.uuid4().hex}")

    def committer(self) -> SinkCommitter:
        return FolderCommitter(self.root, self.name)


class FolderWriter(SinkWriter):
    def __init__(self, sink: FolderSink, transaction: str) -> None:
        self._root = sink.root
        self._transactional = sink.guarantee is Guarantee.EXACTLY_ONCE
        self._transaction = transaction
        self._path = self._root / ("open" if self._transactional else "committed") / transaction

    def begin(self) -> None:
        self._path.write_text("")

    def write(self, rows: pa.RecordBatch) -> None:
        try:
            with self._path.open("r+") as file:  # does not make it again
                file.seek(0, 2)
                file.writelines(f"{json.dumps(number)}\n" for number in rows.column("number").to_pylist())
        except FileNotFoundError:
            raise PrepareError(f"transaction {self._transaction} is no longer open") from None

    def prepare(self) -> Mapping[str, str | int]:
        if not self._transactional:
            return {}
        if not _move(self._root, self._transaction, "open", "prepared"):
            raise PrepareError(f"transaction {self._transaction} is no longer open")
        return {"transaction": self._transaction}

    def abort(self) -> None:
        for state in ("open", "prepared"):
            _move(self._root, self._transaction, state, "aborted")


class FolderCommitter(SinkCommitter):
    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [Finished(outcome=self._commit(str(handle["transaction"]))) for handle in handles]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [Finished(outcome=self._abort(str(handle["transaction"]))) for handle in handles]

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        wanted = {_owner(self._name, owner) for owner in owners}
        names = [path.name for state in ("open", "prepared") for path in (self._root / state).iterdir()]
        return [
            Handle(sink=self._name, slot=0, transaction=transaction_fields({"transaction": name}))
            for name in names
            if name.rpartition(",")[0] in wanted
        ]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        traces = []
        for path in (self._root / "committed").iterdir():
            owner = path.name.rpartition(",")[0]
            prefix, name, whose, token = owner.split(",") if owner else ("", "", "", "")
            if (prefix, name, whose) == (facts["prefix"], self._name, query):
                position, nonce = token.split("-")
                fields = transaction_fields({"transaction": path.name})
                traces.append(Trace(token=Token(int(position), nonce), committed=fields))
        return traces

    def _commit(self, transaction: str) -> Outcome:
        if _move(self._root, transaction, "prepared", "committed"):
            return Outcome.COMMITTED
        if (self._root / "committed" / transaction).exists():
            return Outcome.ALREADY_COMMITTED
        return Outcome.LOST if (self._root / "aborted" / transaction).exists() else Outcome.UNKNOWN

    def _abort(self, transaction: str) -> Outcome:
        for state in ("open", "prepared"):
            _move(self._root, transaction, state, "aborted")
        committed = (self._root / "committed" / transaction).exists()
        return Outcome.ALREADY_COMMITTED if committed else Outcome.ABORTED


def _owner(name: str, owner: Owner) -> str:
    return f"{owner.facts['prefix']},{name},{owner.query},{owner.token.position}-{owner.token.nonce}"


def _move(root: Path, transaction: str, before: str, after: str) -> bool:
    try:
        (root / before / transaction).rename(root / after / transaction)
    except FileNotFoundError:
        return False
    return True

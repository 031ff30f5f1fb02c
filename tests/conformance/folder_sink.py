"""A sink for the minimal system in `folder.py`.

Broken sinks replace parts of it. Any process can finish a transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from conformance.folder import Folder
from sparkonce.protocol.ownership import TransactionName
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
    Trace,
    TwoPhaseCommitSink,
    UnknownOutcomeError,
    WriterContext,
    transaction_fields,
)

OUTCOMES = {
    "committed": Outcome.COMMITTED,
    "already": Outcome.ALREADY_COMMITTED,
    "aborted": Outcome.ABORTED,
    "lost": Outcome.LOST,
}


class FolderSink(TwoPhaseCommitSink):
    remembers = True
    """Whether the system remembers which transactions it has committed."""

    def __init__(
        self, root: Path, *, name: str = "folder", prefix: str = "p", guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    ) -> None:
        super().__init__(name, guarantee)
        self.root = root
        self.prefix = prefix
        self.halves: tuple[type[FolderWriter], type[FolderCommitter]] = FolderWriter, FolderCommitter

    def connect(self) -> Any:
        return Folder(self.root)

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return [column for column in schema.names if column == "number"]

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        self.connect().ask("make")
        return recorded or {"prefix": f"{self.prefix}-{self.name}"}

    def writer(self, context: WriterContext) -> SinkWriter:
        return self.halves[0](self, context)

    def committer(self) -> SinkCommitter:
        return self.halves[1](self)


class FolderWriter(SinkWriter):
    def __init__(self, sink: FolderSink, context: WriterContext) -> None:
        self.connection = sink.connect()
        self.transactional = sink.guarantee is Guarantee.EXACTLY_ONCE
        self.name = str(
            TransactionName(
                prefix=str(context.owner.facts["prefix"]),
                query=context.owner.query,
                token=context.owner.token,
                batch=context.batch,
                slot=context.slot,
                copy=secrets.token_hex(6),
            )
        )

    def begin(self) -> None:
        self.write_numbers()

    def write(self, rows: pa.RecordBatch) -> None:
        self.write_numbers(*map(str, rows.column("number").to_pylist()))

    def write_numbers(self, *numbers: str) -> None:
        if self.transactional:
            self.ask("write", "open", *numbers)
        else:
            self.ask("write_directly", "committed", *numbers)

    def prepare(self) -> Mapping[str, str | int]:
        if not self.transactional:
            return {}
        self.ask("prepare", "prepared")
        return {"name": self.name}

    def abort(self) -> None:
        with suppress(OSError):  # a sweep finds it later
            self.connection.ask("abort", self.name)
        self.close()

    def close(self) -> None:
        self.connection.close()

    def ask(self, verb: str, wanted: str, *words: str) -> None:
        try:
            answer = self.connection.ask(verb, self.name, *words)
        except OSError as error:
            raise PrepareError(f"{verb} was not answered: {error}") from error
        if answer != wanted:
            raise PrepareError(f"transaction {self.name} is {answer or 'unknown'}")


class FolderCommitter(SinkCommitter):
    def __init__(self, sink: FolderSink) -> None:
        self.sink = sink
        self.connection = sink.connect()

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [self.finish("commit", str(handle["name"])) for handle in handles]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [self.finish("abort", str(handle["name"])) for handle in handles]

    def finish(self, verb: str, name: str) -> Finished:
        try:
            return Finished(outcome=OUTCOMES.get(self.connection.ask(verb, name), Outcome.UNKNOWN))
        except OSError as error:
            return self.unanswered(verb, str(error))

    def unanswered(self, verb: str, reason: str) -> Finished:
        return Finished(outcome=Outcome.RETRY, reason=reason)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        wanted = {(owner.facts["prefix"], owner.query, owner.token) for owner in owners}
        return [
            Handle(sink=self.sink.name, slot=0, transaction=transaction_fields({"name": str(name)}))
            for name in self.names("open", "prepared")
            if (name.prefix, name.query, name.token) in wanted
        ]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        return [
            Trace(token=name.token, batch=name.batch, committed=transaction_fields({"name": str(name)}))
            for name in (self.names("committed") if self.sink.remembers else ())
            if (name.prefix, name.query) == (facts["prefix"], query)
        ]

    def names(self, *states: str) -> list[TransactionName]:
        try:
            found = self.connection.ask("names", *states).split()
        except OSError as error:
            raise UnknownOutcomeError(f"there was no answer: {error}") from error
        return [name for name in map(TransactionName.parse, found) if name is not None]

    def close(self) -> None:
        self.connection.close()

"""The smallest sink on top of a store for files: one file of numbers a transaction, and nothing around it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import pyarrow as pa

from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.base import Facts, Owner, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.files.store import FileStore, HeldFile, file_path


class StoreSink(TwoPhaseCommitSink):
    def __init__(self, store: FileStore, *, name: str = "files", guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        super().__init__(name, guarantee)
        self.store = store

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return ["number"]

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return {"prefix": self.name, **(recorded or {}), **self.store.check()}

    def writer(self, context: WriterContext) -> SinkWriter:
        owner = context.owner
        name = TransactionName(
            prefix=owner.facts["prefix"],
            query=owner.query,
            token=owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )
        return StoreWriter(self.store, name, self.guarantee)

    def committer(self) -> SinkCommitter:
        return StoreCommitter(self.store, self.name)


class StoreWriter(SinkWriter):
    def __init__(self, store: FileStore, name: TransactionName, guarantee: Guarantee) -> None:
        self._store = store
        self._name = name
        self._guarantee = guarantee
        self._file: HeldFile | None = None

    def begin(self) -> None:
        self._file = self._store.hold(self._name, file_path("a=1", self._name, 0, ".txt"))

    def write(self, rows: pa.RecordBatch) -> None:
        assert self._file is not None
        self._file.stream.write("".join(f"{number}\n" for number in rows.column("number").to_pylist()).encode())

    def prepare(self) -> Mapping[str, str | int]:
        assert self._file is not None
        fields = self._file.seal()
        if self._guarantee is Guarantee.EXACTLY_ONCE:
            return fields
        self._store.publish([fields])
        return {}

    def abort(self) -> None:
        if self._file is not None:
            self._file.discard()


class StoreCommitter(SinkCommitter):
    def __init__(self, store: FileStore, name: str) -> None:
        self._store = store
        self._name = name

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return self._store.publish([dict(handle.transaction) for handle in handles])

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return self._store.discard([dict(handle.transaction) for handle in handles])

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return [
            Handle(sink=self._name, slot=held.name.slot, transaction=transaction_fields(held.fields))
            for held in self._store.list_held()
            if any(
                held.name.belongs_to(owner.facts["prefix"], owner.query, frozenset({owner.token})) for owner in owners
            )
        ]

    def close(self) -> None:
        self._store.close()

"""The sink that writes to a `MemoryServer`. The sink cannot leave the process, so Spark's workers cannot use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from sparkonce.errors import PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, Refused, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.memory.server import MemoryServer, TransactionState


class MemorySink(TwoPhaseCommitSink):
    """Writes whole rows to a `MemoryServer`. `SinkWriter.offer` rejects rows that contain a null.

    Args:
        server: The server.
        name: See `TwoPhaseCommitSink`.
        guarantee: See `TwoPhaseCommitSink`.
        timeout_s: The value that `transaction_timeout_s` returns.
    """

    def __init__(
        self,
        server: MemoryServer,
        *,
        name: str = "memory",
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(name, guarantee)
        self.server = server
        self._timeout_s = timeout_s

    @property
    def tells_refused(self) -> bool:
        return True

    def transaction_timeout_s(self, facts: Facts) -> float | None:  # noqa: ARG002 - the same for every run
        return self._timeout_s

    def writer(self, context: WriterContext) -> SinkWriter:
        return _Writer(self.server, _owner(self.name, context.owner), self.guarantee, context.batch)

    def committer(self) -> SinkCommitter:
        return _Committer(self.server, self.name)


class _Writer(SinkWriter):
    def __init__(self, server: MemoryServer, owner: str, guarantee: Guarantee, batch: int | None = None) -> None:
        self._server = server
        self._owner = owner
        self._batch = batch
        self._transactional = guarantee is Guarantee.EXACTLY_ONCE
        self._number: int | None = None

    def begin(self) -> None:
        if self._transactional:
            self._number = self._server.begin(self._owner, self._batch)

    def write(self, rows: pa.RecordBatch) -> None:
        try:
            self._server.write(self._number, rows)
        except ValueError as error:
            raise PrepareError(str(error)) from error

    def offer(self, rows: pa.RecordBatch) -> Refused:
        refused = [number for number, row in enumerate(rows.to_pylist()) if None in row.values()]
        self.write(rows.take(pa.array(sorted({*range(rows.num_rows)} - {*refused}), pa.int64())))
        return Refused(rows=refused, reasons=["A value is null."] * len(refused))

    def prepare(self) -> Mapping[str, str | int]:
        if self._number is None:
            return {}
        try:
            self._server.prepare(self._number)
        except ValueError as error:
            raise PrepareError(str(error)) from error
        return {"number": self._number}

    def abort(self) -> None:
        if self._number is not None:
            self._server.abort(self._number)


class _Committer(SinkCommitter):
    def __init__(self, server: MemoryServer, name: str) -> None:
        self._server = server
        self._name = name

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [self._server.commit(int(handle["number"])) for handle in handles]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [self._server.abort(int(handle["number"])) for handle in handles]

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        wanted = {_owner(self._name, owner) for owner in owners}
        return [
            Handle(sink=self._name, slot=0, transaction=transaction_fields({"number": number}))
            for number, owner in self._server.unfinished()
            if owner in wanted
        ]

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        states = self._server.transactions()
        return [handle for handle in handles if states.get(int(handle["number"])) is not TransactionState.COMMITTED]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002
        return [
            Trace(token=_token(owner), committed=transaction_fields({"number": number}), batch=batch)
            for number, owner, batch in self._server.committed()
            if owner.rpartition(".")[0] == f"{self._name}.{query}"
        ]


def _owner(name: str, owner: Owner) -> str:
    return f"{name}.{owner.query}.{owner.token.position}-{owner.token.nonce}"


def _token(owner: str) -> Token:
    position, nonce = owner.rpartition(".")[2].split("-")
    return Token(int(position), nonce)

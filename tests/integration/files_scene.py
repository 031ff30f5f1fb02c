from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

import one_run
from one_run import QUERY
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.writer import FilesWriter


def _pieces(tables: Sequence[pa.Table]) -> list[pa.RecordBatch]:
    return [piece for table in tables for piece in table.to_batches(max_chunksize=10_000)]


class Life:
    def __init__(self, sink: FilesSink) -> None:
        self.sink = sink
        self.owner = Owner(query=QUERY, token=Token(7, "deadbeef"), facts=sink.preflight(QUERY, None))
        committer = sink.committer()
        assert isinstance(committer, FilesCommitter)
        self.committer = committer

    def open(self, *tables: pa.Table, batch: int = 0, slot: int = 0) -> FilesWriter:
        return one_run.open_writer(self.sink, *_pieces(tables), run=self.owner, batch=batch, slot=slot)

    def prepare(self, *tables: pa.Table, batch: int = 0, slot: int = 0) -> Handle:
        return one_run.prepare(self.sink, *_pieces(tables), run=self.owner, batch=batch, slot=slot)

    def commit(self, *handles: Handle) -> list[Outcome]:
        return [one.outcome for one in self.committer.commit(handles)]

    def run_batch(self, *slots: pa.Table, batch: int = 0) -> Sequence[Handle]:
        handles = [self.prepare(table, batch=batch, slot=slot) for slot, table in enumerate(slots)]
        assert set(self.commit(*handles)) == {Outcome.COMMITTED}
        self.committer.conclude(batch, handles)
        return handles

"""A files sink without Spark: write slots, commit, conclude, and read the result."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.writer import FilesWriter

QUERY = "0123456789ab"


class Life:
    def __init__(self, sink: FilesSink) -> None:
        self.sink = sink
        self.owner = Owner(query=QUERY, token=Token(7, "deadbeef"), facts=sink.preflight(QUERY, None))
        committer = sink.committer()
        assert isinstance(committer, FilesCommitter)
        self.committer = committer

    def open(self, *tables: pa.Table, batch: int = 0, slot: int = 0, rows_at_once: int = 10_000) -> FilesWriter:
        context = WriterContext(owner=self.owner, batch=batch, slot=slot, copy="1.1.0")
        writer = self.sink.writer(context)
        assert isinstance(writer, FilesWriter)
        writer.begin()
        for table in tables:
            columns = list(self.sink.columns(table.schema))
            for piece in table.select(columns).to_batches(max_chunksize=rows_at_once):
                writer.write(piece)
        return writer

    def prepare(self, *tables: pa.Table, batch: int = 0, slot: int = 0, rows_at_once: int = 10_000) -> Handle:
        writer = self.open(*tables, batch=batch, slot=slot, rows_at_once=rows_at_once)
        fields = writer.prepare()
        writer.close()
        rows = sum(table.num_rows for table in tables)
        return Handle(sink=self.sink.name, slot=slot, rows=rows, transaction=transaction_fields(fields))

    def commit(self, *handles: Handle) -> list[Outcome]:
        return [one.outcome for one in self.committer.commit(handles)]

    def run_batch(self, *slots: pa.Table, batch: int = 0) -> Sequence[Handle]:
        handles = [self.prepare(table, batch=batch, slot=slot) for slot, table in enumerate(slots)]
        assert set(self.commit(*handles)) == {Outcome.COMMITTED}
        self.committer.conclude(batch, handles)
        return handles

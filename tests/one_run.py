"""One run of a sink without a driver: writers that prepare, and committers that finish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Facts, Owner, SinkWriter, TwoPhaseCommitSink, WriterContext

QUERY = "0123456789ab"
RUN = Token(3, "0badcafe")


def owner(sink: TwoPhaseCommitSink, *, token: Token = RUN, recorded: Facts | None = None) -> Owner:
    """A run of the sink, after its preflight."""
    return Owner(query=QUERY, token=token, facts=sink.preflight(QUERY, recorded))


@contextmanager
def _aborted_if_it_fails(writer: SinkWriter) -> Iterator[None]:
    try:
        yield
    except BaseException:
        writer.abort()
        raise


def open_writer(
    sink: TwoPhaseCommitSink, *rows: pa.RecordBatch, run: Owner | None = None, batch: int = 0, slot: int = 0
) -> Any:
    """A writer that has begun and written. If it fails, it is aborted, as in a task."""
    writer = sink.writer(WriterContext(owner=run or owner(sink), batch=batch, slot=slot, copy="1.1.0"))
    with _aborted_if_it_fails(writer):
        writer.begin()
        for some in rows:
            writer.write(some.select(list(sink.columns(some.schema))))
    return writer


def prepare(
    sink: TwoPhaseCommitSink, *rows: pa.RecordBatch, run: Owner | None = None, batch: int = 0, slot: int = 0
) -> Handle:
    """Writes a slot, closes its writer, and returns the handle."""
    writer = open_writer(sink, *rows, run=run, batch=batch, slot=slot)
    with _aborted_if_it_fails(writer):
        fields = transaction_fields(writer.prepare())
    writer.close()
    return Handle(sink=sink.name, slot=slot, rows=sum(some.num_rows for some in rows), transaction=fields)


def finish(sink: TwoPhaseCommitSink, *handles: Handle, commit: bool = True) -> list[Finished]:
    """Commits or aborts the handles once, with a new committer."""
    with closing(sink.committer()) as committer:
        return list(committer.commit(handles) if commit else committer.abort(handles))


def outcomes(found: list[Finished]) -> list[Outcome]:
    return [one.outcome for one in found]

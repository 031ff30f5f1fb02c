"""Chooses the partition of a super stream for each row, by the row's key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import PrepareError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.write_ahead import RefusedError

ROUTE = "route"
"""The staged column with the number of a message's partition."""

_SEED = 104729
"""The seed of RabbitMQ's stream clients for Java, Go and .NET, which hash the key's UTF-8 with 32-bit murmur3."""


def check_key(schema: pa.Schema, route_by: str) -> None:
    """Checks that the column with the keys exists; raises SchemaError if it does not, or is not of type string."""
    kind = schema.field(route_by).type if route_by in schema.names else None
    if kind is None or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise SchemaError(
            f"route_by={route_by!r} is {'no column' if kind is None else f'a column of {spark_type(kind)}'}.",
            next_step="Name a column of strings.",
        )


def routes(keys: pa.Array, partitions: int) -> pa.Array:
    """Returns the number of the partition for each key; raises PrepareError if a key is null."""
    import mmh3

    if keys.null_count:
        raise PrepareError(
            f"{keys.null_count} of {len(keys)} rows that arrived together have no key to route by.",
            next_step="Filter such rows out, or give them a key.",
        )
    hashed = keys.cast(pa.large_binary()).to_pylist()  # A string may contain any bytes.
    return pa.array([mmh3.hash(key, _SEED, signed=False) % partitions for key in hashed], pa.int32())


def counts_text(streams: Sequence[str], counts: Iterable[int]) -> str:
    """Serializes the number of rows per stream, in partition order, for a handle."""
    return json.dumps([(stream, int(count)) for stream, count in zip(streams, counts, strict=True)])


def total(texts: Iterable[str]) -> dict[str, int]:
    """Adds up the counts of several handles per stream, in partition order. Empty strings are skipped."""
    found: dict[str, int] = {}
    for stream, count in (pair for text in texts if text for pair in json.loads(text)):
        found[stream] = found.get(stream, 0) + count
    return found


def by_stream(rows: pa.RecordBatch, streams: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields each stream's share of staged rows, in order.

    Raises:
        RefusedError: If a row has the number of a partition that is not among the streams.
    """
    if ROUTE not in rows.schema.names:
        yield streams[0], rows
        return
    greatest = pc.max(rows.column(ROUTE)).as_py()
    if greatest is not None and greatest >= len(streams):
        raise RefusedError(f"a row goes to partition {greatest}, and there are {len(streams)}: {', '.join(streams)}")
    for number, stream in enumerate(streams):
        yield stream, rows.filter(pc.equal(rows.column(ROUTE), number))

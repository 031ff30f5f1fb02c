"""Builds `sparkonce_lab.history.OBSERVED` from the rows that readers found."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from sparkonce_lab.history import OBSERVED

COLUMNS = tuple(OBSERVED.names[:6])
"""The columns that a query writes."""

_WRITTEN = pa.schema([OBSERVED.field(name) for name in COLUMNS])
# The name of this kind cannot change, because recorded histories contain it.
_UNREADABLE = ("strange", -1, -1, -1, -1, -1)


def of_columns(written: pa.Table) -> pa.Table:
    """Returns the rows of a system that doesn't preserve order."""
    table = written.select(list(COLUMNS)).cast(_WRITTEN)
    unknown = pa.repeat(pa.scalar(-1, pa.int32()), len(table))
    table = table.append_column("partition", unknown)
    return table.append_column("offset", unknown.cast(pa.int64())).cast(OBSERVED)


def of_texts(
    texts: Sequence[bytes | None], partitions: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> pa.Table:
    """Returns rows that are written as ``kind,key,number,amount,rows,batch``. Other texts become unreadable rows.

    Partitions and offsets are None if the system preserves no order.
    """
    count = len(texts)
    written = _parse(texts)
    if written is None:
        unreadable = pa.table([[value] for value in _UNREADABLE], schema=_WRITTEN)
        written = pa.concat_tables([_parse([text]) or unreadable for text in texts])
    table = written.append_column("partition", pa.array(partitions or [-1] * count, pa.int32()))
    return table.append_column("offset", pa.array(offsets or [-1] * count, pa.int64()))


def of_csv(pieces: Iterable[bytes]) -> pa.Table:
    """Parses CSV, with its columns in `COLUMNS` order, from a system that doesn't preserve order.

    An empty field is null.
    """
    text = b"".join(pieces)
    if not text:
        return OBSERVED.empty_table()
    found = csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(column_names=list(COLUMNS)),
        convert_options=csv.ConvertOptions(column_types=_WRITTEN, null_values=[""], strings_can_be_null=True),
    )
    return of_columns(found)


def of_parquet(file: Path | io.BytesIO) -> pa.Table:
    """Returns the rows of a file; one unreadable row if it is not Parquet, or has different columns."""
    import pyarrow.parquet as pq

    try:
        return of_columns(pq.read_table(file))
    except (pa.ArrowInvalid, KeyError):
        return of_texts([None])


def newest_in(file: Path | io.BytesIO) -> int:
    """Returns the newest batch in a Parquet file; -1 if it has none."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    newest = pc.max(pq.read_table(file, columns=["batch"])["batch"]).as_py()
    return -1 if newest is None else int(newest)


def _parse(texts: Sequence[bytes | None]) -> pa.Table | None:
    """Parses all texts together. Returns None if any of them is not a row."""
    if not texts or any(text is None or b"\n" in text or b"\r" in text for text in texts):
        return None if texts else _WRITTEN.empty_table()
    try:
        found = csv.read_csv(
            io.BytesIO(b"\n".join(text or b"" for text in texts)),
            read_options=csv.ReadOptions(column_names=list(COLUMNS), use_threads=False),
            parse_options=csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(column_types=_WRITTEN, null_values=[], strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        return None
    return found if len(found) == len(texts) else None

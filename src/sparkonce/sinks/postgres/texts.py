"""Values that the server reads from text, for columns of types that none of Spark's are like: inet, time, ranges.

One statement turns all texts of a column into the type's binary form, which goes into the same COPY as other values.
"""

from __future__ import annotations

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

from sparkonce.errors import PrepareError
from sparkonce.sinks.postgres.connection import Connection
from sparkonce.sinks.postgres.encode import Part, array, binaries, join, ragged, row_bytes
from sparkonce.sinks.postgres.outcomes import code_of, prepare_error
from sparkonce.sinks.postgres.types import ServerType

_TEXT, _TEXTS = 25, 1009
"""The numbers of text and text[]."""

_LENGTH_BYTES = 4
_SHOWN = 80
_ABOUT_VALUES = ("22", "42", "XX")
"""Errors of a cast. Types of extensions use their own."""

_MORE_DIGITS = r"t ~ '\.\d{6}\d*[1-9]'"
_LOSSY = {
    "name": "CAST(v AS text) <> t",
    "char": "CAST(v AS text) <> t",
    "money": "CAST(v AS numeric) <> CAST(t AS numeric)",
    **dict.fromkeys(("time", "timetz", "tsrange", "tstzrange", "tsmultirange", "tstzmultirange"), _MORE_DIGITS),
}
"""The types that silently keep a part of a text, and the condition under which they do. All lengths are compared."""

_READ = """
SELECT coalesce(string_agg(pg_catalog.int4send(coalesce(octet_length(b), -1)), '' ORDER BY n), ''),
       coalesce(string_agg(b, '' ORDER BY n), ''),
       min(n) FILTER (WHERE is_changed)
FROM (
    SELECT n, {send}(v) AS b, CAST(CAST(v AS {shown}) AS text) <> CAST(v AS text) OR {lossy} AS is_changed
    FROM (SELECT n, t, {cast} AS v FROM unnest(%s) WITH ORDINALITY AS texts (t, n)) AS read
) AS sent
"""


class _Texts:
    """All texts of a column, as one array of PostgreSQL's in binary."""

    def __init__(self, values: pa.Array) -> None:
        whole = pa.ListArray.from_arrays([0, len(values)], values.cast(pa.binary()))
        self.data = bytes(row_bytes(join(array(whole, ragged, _TEXT), 1))[0])[_LENGTH_BYTES:]


class _Dump(Dumper):
    format = Format.BINARY
    oid = _TEXTS

    def dump(self, obj: _Texts) -> Buffer:
        return obj.data


def read_texts(connection: Connection, column: str, wanted: ServerType, values: pa.Array) -> list[Part]:
    """Returns the lengths and the bytes of a column's values in binary, see `ReadText`.

    Raises:
        PrepareError: naming the column whose text the server cannot read, or would not keep as it is.
        psycopg.Error: if the server does not say.
    """
    # money reads digits as the locale writes them.
    text = "CAST(t AS numeric)" if wanted.name == "money" else "t"
    query = sql.SQL(_READ).format(
        send=sql.SQL(wanted.send),
        shown=sql.SQL(wanted.shown),
        lossy=sql.SQL(_LOSSY.get(wanted.name, "false")),
        cast=sql.SQL(f"CAST({text} AS {wanted.base})"),
    )
    what = f"Column {column!r} ({wanted.shown})"
    cursor = connection.cursor(binary=True)
    cursor.adapters.register_dumper(_Texts, _Dump)
    try:
        lengths, data, changed = cursor.execute(query, [_Texts(values)]).fetchall()[0]
    except psycopg.Error as error:
        if not code_of(error).startswith(_ABOUT_VALUES):
            raise
        raise prepare_error(error, f"{what} has a text that the server does not take") from None
    if changed is not None:
        raise PrepareError(
            f"{what} has {values[changed - 1].as_py()[:_SHOWN]!r}, of which the server would keep only a part.",
            next_step="Correct such rows in the query, or widen the column.",
        )
    sizes = np.frombuffer(lengths, ">i4")
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=ends[1:])
    return [sizes, binaries(ends, memoryview(data))]

from __future__ import annotations

import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.errors import SchemaError
from sparkonce.sinks.sql.postgres import encoding as encode_module
from sparkonce.sinks.sql.postgres.encoding import ServerType, encode_rows, encoder

_EXACT = Context(prec=100)


def rows_of(data: bytes) -> list[list[bytes | None]]:
    rows, place = [], 0
    while place < len(data):
        (count,) = struct.unpack_from(">h", data, place)
        place += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, place)
            place += 4
            row.append(None if length < 0 else data[place : place + length])
            place += max(length, 0)
        rows.append(row)
    return rows


def written(arrays: list[pa.Array], types: list[str]) -> list[list[bytes | None]]:
    names = [f"c{number}" for number in range(len(arrays))]
    batch = pa.record_batch(arrays, names)
    encoders = [
        encoder(name, array.type, ServerType(shown=kind, name=kind))
        for name, array, kind in zip(names, arrays, types, strict=True)
    ]
    return rows_of(b"".join(map(bytes, encode_rows(batch, encoders))))


@st.composite
def decimals(draw: Any) -> tuple[pa.Array, list[Decimal | None]]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    limit = 10**precision - 1
    edges = st.sampled_from([0, 1, -1, limit, -limit, 2**63, -(2**64), 2**96, 10**18, -(10**19)])
    numbers = st.integers(-limit, limit) | edges.filter(lambda one: abs(one) <= limit)
    values = draw(st.lists(st.none() | numbers.map(lambda one: Decimal(one).scaleb(-scale, _EXACT)), max_size=6))
    return pa.array(values, pa.decimal128(precision, scale)), values


@given(decimals())
def test_decimals_keep_every_digit(given_):
    def decimal_of(value: bytes) -> Decimal:
        """Parses it like the server's ``numeric_recv``."""
        count, weight, sign, scale = struct.unpack_from(">hhHh", value)
        groups = struct.unpack_from(f">{count}h", value, 8)
        assert all(0 <= group < 10_000 for group in groups)
        units = sum(group * 10_000 ** (count - 1 - place) for place, group in enumerate(groups))
        whole = _EXACT.scaleb(Decimal(-units if sign else units), 4 * (weight - count + 1))
        return _EXACT.quantize(whole, Decimal(1).scaleb(-scale))

    array, values = given_
    found = [row[0] for row in written([array], ["numeric"])]
    assert [None if one is None else decimal_of(one) for one in found] == values


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=5), st.none() | st.booleans()
        ),
        max_size=20,
    ),
    st.integers(0, 5),
    st.sampled_from([10, 10**9]),
)
def test_nulls_texts_and_slices_stand_where_they_belong(rows, cut, piece_bytes):
    before = encode_module.LARGEST_PIECE_BYTES
    encode_module.LARGEST_PIECE_BYTES = piece_bytes
    try:
        kinds = [pa.int64(), pa.string(), pa.bool_()]
        columns = [pa.array([row[place] for row in rows], kind).slice(cut) for place, kind in enumerate(kinds)]
        found = written([*columns, columns[1]], ["int8", "text", "bool", "jsonb"])
    finally:
        encode_module.LARGEST_PIECE_BYTES = before
    wanted = [
        [
            None if number is None else struct.pack(">q", number),
            None if text is None else text.encode(),
            None if flag is None else bytes([flag]),
            None if text is None else b"\x01" + text.encode(),
        ]
        for number, text, flag in rows[cut:]
    ]
    assert found == wanted


def test_types_that_nobody_has_heard_of_are_refused():
    with pytest.raises(SchemaError, match="Column 'x' is uint8, and in the table int4"):
        encoder("x", pa.uint8(), ServerType(shown="int4", name="int4"))

    assert written([pa.array([1, 2], pa.int32())], ["int4"]) == [[b"\0\0\0\1"], [b"\0\0\0\2"]]

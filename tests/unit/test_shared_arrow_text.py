from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from sparkonce.errors import PrepareError
from sparkonce.sinks._shared.arrow import all_finite, json_text, plain_text
from sparkonce.sinks.files.formats import csv_lines, json_lines, text_lines
from sparkonce.sinks.sql.mysql.encoding import nested_text

ROWS: list[tuple[pa.Array, list[str]]] = [
    (pa.array([1, None, -128], pa.int8()), ["1", "null", "-128"]),
    (pa.array([2**63 - 1, -(2**63)], pa.int64()), ["9223372036854775807", "-9223372036854775808"]),
    (pa.array([True, None, False]), ["true", "null", "false"]),
    (pa.array([1.0, -0.0, 0.1, 1e300, 5e-324]), ["1.0", "-0.0", "0.1", "1e+300", "5e-324"]),
    (pa.array([Decimal("0.0000000001"), Decimal("-12.5")], pa.decimal128(38, 10)), ["0.0000000001", "-12.5000000000"]),
    (pa.array([dt.date(2020, 2, 29), None]), ['"2020-02-29"', "null"]),
    (pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")), ['"2023-11-14T22:13:20.123456Z"']),
    (pa.array([0], pa.timestamp("us")), ['"1970-01-01T00:00:00.000000"']),
    (pa.array(['a"b', "back\\slash", "tab\tline\nend\r", "\x00\x1f", "é😀\u2028", "", None]),
     ['"a\\"b"', '"back\\\\slash"', '"tab\\tline\\nend\\r"', '"\\u0000\\u001f"', '"é😀\u2028"', '""', "null"]),
    (pa.array([[1, None], [], None], pa.list_(pa.int32())), ["[1,null]", "[]", "null"]),
    (pa.array([[["x"], None], [[]]], pa.list_(pa.list_(pa.string()))), ['[["x"],null]', "[[]]"]),
    (pa.array([{"a": 1.5, 'q"': ["y"]}, None], pa.struct({"a": "double", 'q"': pa.list_(pa.string())})),
     ['{"a":1.5,"q\\"":["y"]}', "null"]),
]  # fmt: skip


def of_files(values: pa.Array) -> list[str]:
    lines = bytes(json_lines(pa.record_batch({"x": values}))).decode().split("\n")[:-1]
    return [line.removeprefix('{"x":').removesuffix("}") for line in lines]


def of_frame(values: pa.Array) -> list[str]:
    return [text or "null" for text in json_text(values, "x").to_pylist()]


def of_mysql(values: pa.Array) -> list[str]:
    rows = pa.StructArray.from_arrays([values], names=["x"])
    return [text.removeprefix('{"x":').removesuffix("}") for text in nested_text(rows, "x").to_pylist()]


@pytest.mark.parametrize("encode", [of_frame, of_files, of_mysql])
@pytest.mark.parametrize(("values", "wanted"), ROWS)
def test_every_sink_writes_these_rows_so(encode, values, wanted):
    assert encode(values) == wanted
    assert encode(values.slice(1)) == wanted[1:]


def test_odd_values():
    values = pa.array([math.nan, math.inf, None, 1.0])
    assert of_frame(values) == ['"NaN"', '"Infinity"', "null", "1.0"]
    nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 4], values)], names=["x"])
    assert [all_finite(one) for one in (values, values.slice(2), nested, nested.slice(0, 0))] == [
        False,
        True,
        False,
        True,
    ]
    assert all_finite(pa.array(["NaN"]))

    assert plain_text(pa.array([b"", b"a", b"ab", None]), "x").to_pylist() == ["", "YQ==", "YWI=", None]
    assert plain_text(pa.array(['a"']), "x").to_pylist() == ['a"']

    kind = pa.list_(pa.struct([]))
    assert json_text(pa.array([[{}, None], []], kind), "x").to_pylist() == ["[{},null]", "[]"]

    # If all outer lists are empty, the inner list may have no offsets at all, not even the first one.
    inner = pa.ListArray.from_buffers(pa.list_(pa.int32()), 0, [None, pa.py_buffer(b"")], children=[pa.array([], "i4")])
    outer = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), inner)
    assert json_text(outer, "x").to_pylist() == ["[]", "[]"]


DAYS = np.array([-(2**31), -719_893, -719_528, -1, 2_932_896, 2_932_897, 12_019_723, 2**31 - 1])


def test_dates_and_instants_of_all_years_have_their_iso_text():
    """From the year 32768 on, Arrow's own cast writes "<value out of range: …>"."""

    def signed(text: str) -> str:
        """As in NumPy, but with at least four digits for the year, and a plus sign if there are more."""
        year, rest = text[1:].split("-", 1)
        sign, year = ("-", year) if text[0] == "-" else ("", text[0] + year)
        return f"{'+' if not sign and len(year) > 4 else sign}{year:0>4}-{rest}"

    microseconds = np.array(
        [-(2**63) + 1, -62_167_219_200_000_001, -1, 253_402_300_800_000_000, 1_700_000_000_000_000_000, 2**63 - 1]
    )
    days = pa.array(DAYS.astype(np.int32)).cast(pa.date32())
    assert plain_text(days, "x").to_pylist() == [signed(str(one)) for one in DAYS.astype("datetime64[D]")]
    assert plain_text(pa.array([4_000_000, None], pa.int32()).cast(pa.date32()), "x").to_pylist()[1] is None
    wanted = [signed(str(one)) for one in microseconds.astype("datetime64[us]")]
    for zone, end in ((None, ""), ("UTC", "Z"), ("Asia/Tokyo", "Z")):
        instants = pa.array(microseconds).cast(pa.timestamp("us", zone))
        assert plain_text(instants, "x").to_pylist() == [f"{one}{end}" for one in wanted]
    assert plain_text(pa.array([2**40, None]).cast(pa.timestamp("s", "UTC")), "x").to_pylist() == [
        "+36812-02-20T00:36:16Z",
        None,
    ]
    assert json_text(pa.array([[12_019_723]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())), "x").to_pylist() == [
        '["+34878-11-19"]'
    ]


def test_a_string_that_is_not_utf8_is_refused_by_its_column_at_any_depth():
    text = pa.array([b"fine", None, b"a\xffb"]).view(pa.string())
    inside = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 3], text)], ["tags"])
    for encode, column in ((json_text, text), (plain_text, text.cast(pa.large_string())), (json_text, inside)):
        with pytest.raises(
            PrepareError, match=r"not UTF-8: it has the byte 0xff at position 1.*make_valid_utf8"
        ) as refused:
            encode(column, "s")
        assert ("'s.tags'" if column is inside else "'s'") in str(refused.value)
    for lines in (json_lines, partial(csv_lines, delimiter=","), text_lines):
        with pytest.raises(PrepareError, match="Column 's' has a string that is not UTF-8"):
            lines(pa.record_batch({"s": text.drop_null()}))
    with pytest.raises(PrepareError, match=r"Column 's\.tags' has a string that is not UTF-8"):
        nested_text(inside, "s")

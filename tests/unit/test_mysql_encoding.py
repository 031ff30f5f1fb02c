"""A value that a column of MariaDB or MySQL would silently change is refused before anything is sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime

import pyarrow as pa
import pytest

from sparkonce.errors import PrepareError
from sparkonce.sinks.sql.mysql import encoding
from sparkonce.sinks.sql.mysql.encoding import check, nested_text
from sparkonce.sinks.sql.mysql.target import MySQLColumn

COLUMN = MySQLColumn(
    name="c",
    type="int",
    full_type="int(11)",
    nullable=True,
    optional=True,
    automatic=False,
    generated=False,
    fraction_digits=6,
    collation="",
)
OF_MILLISECONDS = replace(COLUMN, type="datetime", full_type="datetime(3)", fraction_digits=3)
DIGITS = replace(COLUMN, type="double", full_type="double(7,2) unsigned")
ENUM = replace(COLUMN, type="enum", full_type="enum('a','it''s')")


def not_utf8() -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]])


@pytest.mark.parametrize(
    ("values", "kind", "column", "why"),
    [
        (pa.array([1, None]), "integer", replace(COLUMN, nullable=False), "contain NULL"),
        (pa.array([1], pa.timestamp("ns")), "timestamp", COLUMN, "nanoseconds"),
        (pa.array([-(2**62)], pa.timestamp("us")), "timestamp", COLUMN, "before year 1 or after year 9999"),
        (
            pa.array([datetime(2026, 1, 1, 0, 0, 0, 1)]),
            "timestamp",
            OF_MILLISECONDS,
            "3 digits of a second would round",
        ),
        (pa.array([2**31 - 1], pa.date32()), "date", COLUMN, "before year 1 or after year 9999"),
        (pa.array([float("nan")]), "double", COLUMN, "NaN or an infinity"),
        (pa.array([float("-inf")], pa.float32()), "float", COLUMN, "NaN or an infinity"),
        (pa.array([1.23, 1.239]), "double", DIGITS, "contain 1.239, which the column would round"),
        (pa.array([1.239], pa.float32()), "float", replace(DIGITS, full_type="float(5,2)"), "column would round"),
        (pa.array([2**53 + 1]), "integer", replace(COLUMN, type="double"), "a double would round"),
        (pa.array([-1]), "integer", replace(COLUMN, type="bit"), "a negative number"),
        (not_utf8(), "string", COLUMN, "not UTF-8"),
        (pa.array(["a", "b"]), "string", ENUM, r"outside the ENUM \['a', \"it's\"\]"),
    ],
)
def test_what_would_be_changed_is_refused(values: pa.Array, kind: str, column: MySQLColumn, why: str) -> None:
    with pytest.raises(PrepareError, match=f"'c'.*{why}"):
        check(values, column, kind)


@pytest.mark.parametrize(
    ("values", "kind", "column"),
    [
        (pa.array([None], pa.timestamp("us")), "timestamp", COLUMN),
        (pa.array([datetime(2026, 1, 1, 0, 0, 0, 1000)]), "timestamp", OF_MILLISECONDS),
        (pa.array([date(1, 1, 1), date(9999, 12, 31)]), "date", COLUMN),
        (pa.array([1.5, None]), "double", COLUMN),
        (pa.array([1.23, -0.07, 12345.67, 8e15, None]), "double", DIGITS),
        (pa.array([1.23, 0.1], pa.float32()), "float", replace(DIGITS, type="float", full_type="float(7,2)")),
        (pa.array([2**53]), "integer", replace(COLUMN, type="double")),
        (pa.array([0]), "integer", replace(COLUMN, type="bit")),
        (pa.array(["a", "it's", None]), "string", ENUM),
    ],
)
def test_what_is_kept_as_it_is_is_taken(values: pa.Array, kind: str, column: MySQLColumn) -> None:
    check(values, column, kind)


def test_rows_too_large_for_one_piece_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LARGEST_PIECE_BYTES", 100)
    rows = pa.record_batch({"c": ["x" * 60, "b", "c", "y" * 200, "e"]})
    pieces = [bytes(piece).split() for piece in encoding.load_text(rows, [replace(COLUMN, type="text")])]
    assert [value.decode() for piece in pieces for value in piece] == rows["c"].to_pylist()
    assert [len(piece) for piece in pieces] == [2, 1, 1, 1]


def test_numbers_that_json_does_not_have_are_refused_where_they_are_nested() -> None:
    with pytest.raises(PrepareError, match=r"Column 'x' contains .* NaN or an infinity"):
        nested_text(pa.array([[1.0], [float("nan")]]), "x")

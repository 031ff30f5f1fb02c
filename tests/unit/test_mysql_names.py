from dataclasses import replace
from datetime import date, datetime

import pyarrow as pa
import pytest
from pymysql.err import OperationalError

from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.sql.mysql import encoding
from sparkonce.sinks.sql.mysql.catalog import MySQLColumn
from sparkonce.sinks.sql.mysql.connection import MARIADB, MYSQL, flavour_of, numbers_of
from sparkonce.sinks.sql.mysql.encoding import check, nested_text
from sparkonce.sinks.sql.mysql.outcomes import finished
from sparkonce.sinks.sql.mysql.settings import FORMAT_ID, Xid
from sparkonce.sinks.sql.mysql.statements import merge_steps
from sparkonce.sinks.sql.settings import Target

NAME = TransactionName(
    prefix="sparkonce.é",
    query="0123456789ab",
    token=Token(10**19 - 1, "89abcdef"),
    batch=10**19 - 1,
    slot=10**9 - 1,
    copy="0a1b2c3d4e5f",
)
XID = Xid.of(NAME)


def test_an_xid_is_read_back():
    assert Xid.parse(FORMAT_ID, len(XID.gtrid), len(XID.bqual), XID.gtrid + XID.bqual) == XID
    assert len(XID.gtrid) == 54
    assert str(XID) == f"X'{XID.gtrid.hex()}',X'{XID.bqual.hex()}',{FORMAT_ID}"
    assert Xid.of(XID.named()) == XID


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual"),
    [
        (1, XID.gtrid, XID.bqual),
        (FORMAT_ID, XID.gtrid + b"0", XID.bqual),
        (FORMAT_ID, b"x" + XID.gtrid[1:], XID.bqual),
        (FORMAT_ID, XID.gtrid, b""),
        (FORMAT_ID, XID.gtrid, b"\xff"),
        (FORMAT_ID, XID.gtrid, b"x" * 65),
        (FORMAT_ID, b"", b""),
    ],
)
def test_xids_of_others_are_none(format_id, gtrid, bqual):
    assert Xid.parse(format_id, len(gtrid), len(bqual), gtrid + bqual) is None


@pytest.mark.parametrize("data", [XID.gtrid + XID.bqual, f"0x{(XID.gtrid + XID.bqual).hex().upper()}"])
def test_rows_of_xa_recover(data):
    lengths = (len(XID.gtrid), len(XID.bqual))
    assert Xid.parse(FORMAT_ID, *lengths, data) == XID
    assert Xid.parse(FORMAT_ID, lengths[0], lengths[1] + 1, data) is None
    assert Xid.parse(FORMAT_ID, 1, 1, "no digits") is None


@pytest.mark.parametrize(
    ("version", "flavour", "numbers"),
    [
        ("10.11.19-MariaDB-0+deb12u1", MARIADB, (10, 11, 19)),
        ("5.5.5-10.4.1-MariaDB", MARIADB, (10, 4, 1)),
        ("8.0.36", MYSQL, (8, 0, 36)),
        ("5.7.44-log", MYSQL, (5, 7, 44)),
    ],
)
def test_servers_are_told_apart(version, flavour, numbers):
    assert flavour_of(version) is flavour
    assert numbers_of(version) == numbers


def test_versions_that_lose_prepared_transactions_are_too_old():
    assert numbers_of("10.4.30-MariaDB") < MARIADB.oldest < numbers_of("10.5.0-MariaDB")
    assert numbers_of("5.7.44") < MYSQL.oldest < numbers_of("8.4.0")
    assert numbers_of("unheard of") < MYSQL.oldest

    assert "ON DUPLICATE" not in merge_steps(["s"], Target(table="t"), ["k"])[0]

    assert {finished(OperationalError(number, "")).outcome for number in range(5000)} == {
        Outcome.RETRY,
        Outcome.UNKNOWN,
    }


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
ENUM = replace(COLUMN, type="enum", full_type="enum('a','it''s')")


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
        (pa.array([2**53 + 1]), "integer", replace(COLUMN, type="double"), "a double would round"),
        (pa.array([-1]), "integer", replace(COLUMN, type="bit"), "a negative number"),
        (
            pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]]),
            "string",
            COLUMN,
            "not UTF-8",
        ),
        (pa.array(["a", "b"]), "string", ENUM, r"outside the ENUM \['a', \"it's\"\]"),
    ],
)
def test_what_would_be_changed_is_refused(values, kind, column, why):
    with pytest.raises(PrepareError, match=f"'c'.*{why}"):
        check(values, column, kind)


@pytest.mark.parametrize(
    ("values", "kind", "column"),
    [
        (pa.array([None], pa.timestamp("us")), "timestamp", COLUMN),
        (pa.array([datetime(2026, 1, 1, 0, 0, 0, 1000)]), "timestamp", OF_MILLISECONDS),
        (pa.array([date(1, 1, 1), date(9999, 12, 31)]), "date", COLUMN),
        (pa.array([1.5, None]), "double", COLUMN),
        (pa.array([2**53]), "integer", replace(COLUMN, type="double")),
        (pa.array([0]), "integer", replace(COLUMN, type="bit")),
        (pa.array(["a", "it's", None]), "string", ENUM),
    ],
)
def test_what_is_kept_as_it_is_is_taken(values, kind, column):
    check(values, column, kind)


def test_rows_too_large_for_one_piece_are_halved(monkeypatch):
    monkeypatch.setattr(encoding, "LARGEST_PIECE_BYTES", 100)
    rows = pa.record_batch({"c": ["x" * 60, "b", "c", "y" * 200, "e"]})
    pieces = [bytes(piece).split() for piece in encoding.load_text(rows, [replace(COLUMN, type="text")])]
    assert [value.decode() for piece in pieces for value in piece] == rows["c"].to_pylist()
    assert [len(piece) for piece in pieces] == [2, 1, 1, 1]


def test_numbers_that_json_does_not_have_are_refused_where_they_are_nested():
    with pytest.raises(PrepareError, match=r"Column 'x' contains .* NaN or an infinity"):
        nested_text(pa.array([[1.0], [float("nan")]]), "x")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (2013, Outcome.RETRY),
        (None, Outcome.RETRY),
        (1397, Outcome.RETRY),
        (1213, Outcome.RETRY),
        (1062, Outcome.UNKNOWN),
        (1146, Outcome.UNKNOWN),
        (1290, Outcome.UNKNOWN),
        (4711, Outcome.UNKNOWN),
    ],
)
def test_what_errors_mean(number, outcome):
    found = finished(OperationalError(number, "its words") if number else ConnectionResetError("its words"))
    assert found.outcome is outcome
    assert "its words" in found.reason

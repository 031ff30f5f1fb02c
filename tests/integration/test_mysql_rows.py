"""What a second connection reads of what was written, and what is refused instead of changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mariadb_witness import NOT_BULK, Witness, shared_server
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import SinkWriter
from sparkonce.sinks.mysql.connection import Connection
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import Scene

Write = Callable[..., list[tuple[Any, ...]]]

BULK = {"commit": "two_phase", "bulk": True}
BY_LOAD = {"commit": "two_phase", "bulk": False, "local_infile": True}
BY_INSERT = {"commit": "two_phase", "bulk": False, "local_infile": False}
STAGED = {"commit": "staged", "bulk": True}
WAYS = pytest.mark.parametrize("how", [BULK, BY_LOAD, BY_INSERT], ids=["bulk", "load", "insert"])


def go(how: dict[str, Any], witness: Witness, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings for one way to the server; without the bulk protocol rows go as they go to MySQL."""
    if not how["bulk"]:
        monkeypatch.setattr(Connection, "takes_bulk", NOT_BULK)
    return {**witness.settings, "local_infile": how.get("local_infile", True)}


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness(shared_server())


@pytest.fixture(params=[BULK, BY_LOAD, BY_INSERT, STAGED], ids=["bulk", "load", "insert", "staged"])
def write(request: pytest.FixtureRequest, witness: Witness, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a table's only batch and gives what a second connection reads of it."""
    settings = go(request.param, witness, monkeypatch)

    def write(columns: str, rows: pa.RecordBatch, select: str = "*", **more: Any) -> list[tuple[Any, ...]]:
        witness.run("DROP TABLE IF EXISTS target")
        witness.run(f"CREATE TABLE target ({columns}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4")
        sink = MySQLSink(settings, table="target", **{"commit": request.param["commit"], **more})
        scene = Scene(SinkHooks(), sink)
        writer = scene.new_writer()
        try:
            sink.columns(rows.schema)
            writer.begin()
            writer.write(rows)
            fields = writer.prepare()
            writer.close()
        except PrepareError:
            writer.abort()
            scene.expect_nothing_lingers("after a refused row")
            raise
        scene.commit(scene.handle(fields, rows=rows.num_rows))
        scene.committer.conclude(0, [scene.handle(fields, rows=rows.num_rows)])
        scene.close()
        assert witness.stages() == []
        return witness.rows(f"SELECT {select} FROM target ORDER BY place")  # noqa: S608 - of this file

    return write


def write_all(writer: SinkWriter, rows: pa.RecordBatch) -> None:
    writer.write(rows)
    writer.prepare()


def rows_of(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch(
        {"place": pa.array(range(len(values)), pa.int32()), "it": pa.array(values, kind)},
    )


TEXTS = [
    "",
    "NULL",
    "\\N",
    "\\",
    "a\tb",
    "a\nb",
    "a\r\nb",
    'it\'s "quoted", `so`',
    "nul \x00 in it",
    "\x1a",
    "😀 漢 é",
    "\\t \\n \\0 \\'",
    "%s %% {}",
    " spaces ",
    None,
    "x" * 70_000,
]

ROUND_TRIPS: dict[str, tuple[str, list[Any], pa.DataType]] = {
    "text": ("LONGTEXT", TEXTS, pa.string()),
    "large text": ("LONGTEXT", TEXTS, pa.large_string()),
    "lengths of a byte": ("LONGTEXT", ["x" * 250, None, ""], pa.string()),
    "lengths of two bytes": ("LONGTEXT", ["x" * 251, None, ""], pa.string()),
    "the largest of two bytes": ("LONGTEXT", ["x" * 65_535, None, ""], pa.string()),
    "lengths of more bytes": ("LONGTEXT", ["x" * 65_536, None, ""], pa.string()),
    "without a sign": ("INT UNSIGNED", [0, 2**32 - 1, None], pa.uint32()),
    "far times": ("DATETIME(6)", [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999),
                                 datetime(9999, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us")),
    "latin1": ("VARCHAR(10) CHARACTER SET latin1", ["é", None, ""], pa.string()),
    "binary": ("LONGBLOB", [b"", b"\x00\xff\n\t\\'", None, bytes(range(256))], pa.binary()),
    "boolean": ("TINYINT(1)", [True, False, None], pa.bool_()),
    "tinyint": ("TINYINT", [-128, 127, None], pa.int8()),
    "bigint": ("BIGINT", [-(2**63), 2**63 - 1, 0, None], pa.int64()),
    "unsigned": ("BIGINT UNSIGNED", [0, 2**63 - 1], pa.int64()),
    "digits": ("DOUBLE(9,2)", [1.23, -0.07, 12345.67, -9999999.99, None], pa.float64()),
    "float_digits": ("FLOAT(7,2)", [1.25, -0.07, None], pa.float32()),
    "decimal": ("DECIMAL(38,10)", [Decimal("1E-10"), Decimal("-1234567890123456789012345678.0000000001"), None],
                 pa.decimal128(38, 10)),
    "double": ("DOUBLE", [0.1, -1.7976931348623157e308, 5e-324, 0.0, None], pa.float64()),
    "date": ("DATE", [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31), None], pa.date32()),
    "datetime": ("DATETIME(6)", [datetime(1000, 1, 1), datetime(2024, 1, 1, 12, 0, 0, 123456), None],
                 pa.timestamp("us")),
    "whole seconds": ("DATETIME", [datetime(2024, 1, 1, 12, 0, 7)], pa.timestamp("us")),
    "enum": ("ENUM('a','it''s')", ["a", "it's", None], pa.string()),
    "uuid": ("UUID", ["123e4567-e89b-12d3-a456-426614174000"], pa.string()),
    "beyond long": ("BIGINT UNSIGNED", [2**64 - 1, 0, None], pa.decimal128(20, 0)),
    "set": ("SET('a','b','it''s')", ["", "a", "b,it's", "a,b,it's", None], pa.string()),
}  # fmt: skip


def test_what_is_written_is_read_back(write: Write) -> None:
    """All types in one table. Each repeats its last value to the end, so that those without NULL have none."""
    count = max(len(values) for _, values, _ in ROUND_TRIPS.values())
    whole = {name: values + values[-1:] * (count - len(values)) for name, (_, values, _) in ROUND_TRIPS.items()}
    columns = ", ".join(f"`{name}` {column}" for name, (column, _, _) in ROUND_TRIPS.items())
    arrays = [pa.array(whole[name], kind) for name, (_, _, kind) in ROUND_TRIPS.items()]
    rows = pa.RecordBatch.from_arrays([pa.array(range(count), pa.int32()), *arrays], names=["place", *ROUND_TRIPS])
    found = write(f"place INT, {columns}", rows)
    assert dict(zip(ROUND_TRIPS, map(list, list(zip(*found, strict=True))[1:]), strict=True)) == whole


def test_parts_of_larger_arrays(write: Write) -> None:
    """Arrow's arrays may begin in the middle of their buffers."""
    whole = pa.record_batch(
        {
            "place": pa.array(range(6), pa.int32()),
            "word": pa.array(["a", "b", None, "dd", "e", "f"]),
            "at": pa.array([datetime(2024, 1, day, 1, 2, 3, day) if day != 4 else None for day in range(1, 7)]),
            "flag": pa.array([True, False, None, True, False, True]),
            "raw": pa.array([b"a", b"b", b"c", None, b"", b"f"]),
        }
    )
    columns = "place INT, word TEXT, at DATETIME(6), flag BOOLEAN, raw BLOB"
    assert write(columns, whole.slice(2, 3)) == [tuple(row.values()) for row in whole.slice(2, 3).to_pylist()]


def test_instants_are_kept_in_utc(write: Write) -> None:
    at = datetime(2024, 6, 1, 10, 0, 0, 1, tzinfo=timezone.utc)
    rows = rows_of([at], pa.timestamp("us", tz="Europe/Berlin"))
    found = write("place INT, it TIMESTAMP(6)", rows, "UNIX_TIMESTAMP(it)")
    assert float(found[0][0]) == at.timestamp()


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        ("TIME", ["00:00:00", "-838:59:59", "838:59:59", None]),
        ("TIME(6)", ["12:34:56.789012", "-00:00:01.000001"]),
        ("YEAR", ["1901", "2155", "0000", None]),
    ],
)
def test_times_and_years_are_taken_from_text(write: Write, column: str, texts: list[str | None]) -> None:
    found = write(f"place INT, it {column}", rows_of(texts, pa.string()), "CAST(it AS CHAR)")
    assert [text for (text,) in found] == texts


def test_floats_keep_their_bits(write: Write) -> None:
    rows = rows_of([0.1, 16777217.0, 1e-38], pa.float32())
    found = write("place INT, it FLOAT", rows, "CAST(it AS DOUBLE)")
    assert [value for (value,) in found] == [value.as_py() for value in rows["it"]]


def test_floats_and_integers_in_a_double_keep_their_value(write: Write) -> None:
    found = write("place INT, it DOUBLE", rows_of([0.1, 16777217.0, 1e-38, None], pa.float32()))
    assert [value for _, value in found] == rows_of([0.1, 16777217.0, 1e-38, None], pa.float32())["it"].to_pylist()
    numbers = [2**53, -(2**53), None]
    assert [value for _, value in write("place INT, it DOUBLE", rows_of(numbers, pa.int64()))] == numbers


def test_bits(write: Write) -> None:
    found = write("place INT, it BIT(4)", rows_of([0, 5, 15, None], pa.int32()), "it + 0")
    assert [value for (value,) in found] == [0, 5, 15, None]


def test_arrays_and_structs_are_json(write: Write) -> None:
    kind = pa.struct([("name", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.list_(pa.int64()))])
    at = datetime(2024, 1, 1, tzinfo=timezone.utc)
    values = [
        {"name": 'a "b" \\ \n \x01 😀', "at": at, "n": [1, None, 2]},
        {"name": None, "at": None, "n": []},
        {"name": "", "at": at, "n": None},
        None,
    ]
    found = [value for _, value in write("place INT, it JSON", rows_of(values, kind))]
    assert found[3] is None
    wanted = [{**value, "at": value["at"] and "2024-01-01T00:00:00.000000Z"} for value in values[:3] if value]
    assert [json.loads(text) for text in found[:3]] == wanted


def test_odd_identifiers(witness: Witness) -> None:
    witness.run("CREATE TABLE `odd ``table`` %s.1` (`a ``b`` %s` INT PRIMARY KEY, `select` TEXT) ENGINE=InnoDB")
    rows = pa.record_batch({"a `b` %s": [1, 2], "select": ["x", None]})
    for mode in ({}, {"mode": "upsert", "key_columns": ["a `b` %s"]}):
        sink = MySQLSink(witness.settings, table="odd `table` %s.1", **mode)
        scene = Scene(SinkHooks(), sink)
        writer = scene.new_writer()
        sink.columns(rows.schema)
        writer.begin()
        writer.write(rows)
        scene.commit(scene.handle(writer.prepare(), rows=2))
        scene.close()
    assert witness.rows("SELECT * FROM `odd ``table`` %s.1` ORDER BY 1") == [(1, "x"), (2, None)]


SLOW = pytest.mark.slow
REFUSED: list[Any] = [
    pytest.param("VARCHAR(3)", ["abcd"], pa.string(), id="too long"),
    pytest.param("VARCHAR(3)", ["abc "], pa.string(), id="spaces too many"),
    pytest.param("TINYTEXT", ["x" * 256], pa.string(), id="tinytext too long"),
    pytest.param("VARBINARY(2)", [b"abc"], pa.binary(), id="binary too long"),
    pytest.param("TINYINT", [300], pa.int32(), id="out of range"),
    pytest.param("INT UNSIGNED", [-1], pa.int32(), id="negative"),
    pytest.param("BIT(4)", [16], pa.int32(), id="bits out of range"),
    pytest.param("BIT(64)", [-1], pa.int64(), id="negative bits"),
    pytest.param("DECIMAL(5,2)", [Decimal("1.239")], pa.decimal128(10, 3), id="digits too many"),
    pytest.param("DOUBLE(7,2)", [1.239], pa.float64(), id="a double's digits too many"),
    pytest.param("FLOAT(7,2)", [1.239], pa.float32(), id="a float's digits too many"),
    pytest.param("DOUBLE(7,2)", [1.239], pa.float32(), id="a float's digits too many for a double"),
    pytest.param("INT NOT NULL", [None], pa.int32(), id="null"),
    pytest.param("TIMESTAMP NOT NULL", [None], pa.timestamp("us"), id="null would be now"),
    pytest.param("BIGINT NOT NULL AUTO_INCREMENT, KEY (it)", [None], pa.int64(), id="null would be the next"),
    pytest.param("DATETIME(3)", [datetime(2024, 1, 1, 0, 0, 0, 600)], pa.timestamp("us"), id="would be rounded"),
    pytest.param("TIMESTAMP(6)", [datetime(2040, 1, 1)], pa.timestamp("us"), id="after 2038"),
    pytest.param("DOUBLE", [float("nan")], pa.float64(), id="not a number"),
    pytest.param("DOUBLE", [float("inf")], pa.float64(), id="infinity"),
    pytest.param("DOUBLE", [2**53 + 1], pa.int64(), id="beyond what a double has"),
    pytest.param("DOUBLE", [-(2**63)], pa.int64(), id="below what a double has"),
    pytest.param("TIMESTAMP(6)", [datetime(1969, 12, 31, 23, 59, 59)], pa.timestamp("us"), id="before 1970"),
    pytest.param("TIMESTAMP(6) NULL", [datetime(1970, 1, 1)], pa.timestamp("us"), id="1970 itself"),
    pytest.param("TIMESTAMP NULL", [date(1960, 1, 1)], pa.date32(), id="date before 1970"),
    pytest.param("VARCHAR(9) CHARACTER SET latin1", ["漢"], pa.string(), id="not in latin1"),
    pytest.param("ENUM('x','y')", ["1"], pa.string(), id="would be an index"),
    pytest.param("SET('x','y')", ["1"], pa.string(), id="would be a mask"),
    pytest.param("SET('x','y')", ["y,x"], pa.string(), id="would be sorted"),
    pytest.param("SET('x','y')", ["x,"], pa.string(), id="an empty member"),
    pytest.param("TIME", ["12:34"], pa.string(), id="would be guessed"),
    pytest.param("TIME", ["839:00:00"], pa.string(), id="would be cut off"),
    pytest.param("TIME(3)", ["12:00:00.0001"], pa.string(), id="would be rounded to milliseconds"),
    pytest.param("YEAR", ["0"], pa.string(), id="would be 2000"),
    pytest.param("BIGINT UNSIGNED", [Decimal(2**64)], pa.decimal128(20, 0), id="beyond unsigned"),
    pytest.param("BIGINT UNSIGNED", [Decimal(-1)], pa.decimal128(20, 0), id="below unsigned"),
]


@pytest.mark.parametrize(
    "write", [BULK, STAGED, pytest.param(BY_LOAD, marks=SLOW), pytest.param(BY_INSERT, marks=SLOW)], indirect=True
)
def test_nothing_is_changed_silently(write: Write, witness: Witness) -> None:
    for refusal in REFUSED:
        column, values, kind = refusal.values
        with pytest.raises(PrepareError):
            write(f"place INT, it {column}", rows_of(values, kind))
        assert witness.one("SELECT COUNT(*) FROM target") == 0, refusal.id


def test_bytes_that_are_no_text_are_refused(write: Write) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xe6\t")]
    )
    with pytest.raises(PrepareError, match=r"'it' .* not UTF-8"):
        write("place INT, it TEXT", pa.record_batch({"place": pa.array([1], pa.int32()), "it": broken}))


@WAYS
@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("INT PRIMARY KEY", [1, 2, 1], "1062"),
        ("INT CHECK (it > 1)", [1, 2], "4025"),
        ("INT, FOREIGN KEY (it) REFERENCES parent (id)", [9], "1452|foreign key"),
    ],
)
def test_rows_that_the_table_refuses(
    witness: Witness,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    column: str,
    values: list[int],
    words: str,
) -> None:
    """LOAD DATA LOCAL leaves such rows out and goes on."""
    witness.run("CREATE TABLE IF NOT EXISTS parent (id INT PRIMARY KEY) ENGINE=InnoDB")
    witness.run("DROP TABLE IF EXISTS target")
    witness.run(f"CREATE TABLE target (it {column}) ENGINE=InnoDB")
    before = witness.xids()
    settings = go(how, witness, monkeypatch)
    for guarantee in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
        scene = Scene(SinkHooks(), MySQLSink(settings, table="target", commit="two_phase", guarantee=guarantee))
        writer = scene.new_writer()
        writer.begin()
        with pytest.raises(PrepareError, match=words):
            write_all(writer, pa.record_batch({"it": pa.array(values, pa.int32())}))
        writer.abort()
        scene.close()
        assert witness.one("SELECT COUNT(*) FROM target") == 0
    assert witness.xids() == before


@WAYS
def test_a_key_that_is_there_is_refused_in_append_mode(
    witness: Witness, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    witness.run("DROP TABLE IF EXISTS target")
    witness.run("CREATE TABLE target (it INT PRIMARY KEY, word TEXT) ENGINE=InnoDB")
    witness.run("INSERT INTO target VALUES (7, 'old')")
    rows = pa.record_batch({"it": pa.array([6, 7], pa.int32()), "word": ["new", "new"]})
    settings = go(how, witness, monkeypatch)
    scene = Scene(SinkHooks(), MySQLSink(settings, table="target", commit="two_phase"))
    writer = scene.new_writer()
    writer.begin()
    with pytest.raises(PrepareError, match=r"Duplicate entry '…' for key"):
        write_all(writer, rows)
    writer.abort()
    scene.close()
    assert witness.rows("SELECT * FROM target") == [(7, "old")]


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ("INT", pa.string(), "is int"),
        ("DATE", pa.string(), "is date"),
        ("FLOAT", pa.float64(), "is float"),
        ("YEAR", pa.int32(), "is year.*Cast it to string"),
        ("BIGINT UNSIGNED", pa.decimal128(20, 1), "is bigint"),
        ("BIGINT", pa.decimal128(20, 0), "is bigint"),
        ("TEXT", pa.int32(), "is text"),
        ("INT AS (place + 1) STORED", pa.int32(), "generated"),
    ],
)
def test_types_that_might_change_a_value_are_refused_at_start(
    witness: Witness, column: str, kind: pa.DataType, words: str
) -> None:
    witness.run("DROP TABLE IF EXISTS target")
    witness.run(f"CREATE TABLE target (place INT, it {column}) ENGINE=InnoDB")
    sink = MySQLSink(witness.settings, table="target")
    sink.columns(pa.schema([("place", pa.int32()), ("it", kind)]))
    with pytest.raises(PreflightError, match=words):
        sink.preflight("0" * 12, None)


@pytest.mark.parametrize("how", [BULK, BY_INSERT], ids=["bulk", "insert"])
def test_large_rows_and_small_packets(witness: Witness, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]) -> None:
    """Statements are cut to max_allowed_packet; what is larger alone is refused by the server's own words."""
    witness.run("DROP TABLE IF EXISTS target")
    witness.run("CREATE TABLE target (place INT, it LONGTEXT) ENGINE=InnoDB")
    sink = MySQLSink(go(how, witness, monkeypatch), table="target", commit="two_phase")
    scene = Scene(SinkHooks(), sink)
    rows = rows_of(["x" * 3_000_000] * 10, pa.string())
    writer = scene.new_writer()
    writer.begin()
    writer.write(rows)
    scene.commit(scene.handle(writer.prepare(), rows=10))
    assert witness.one("SELECT SUM(LENGTH(it)) FROM target") == 30_000_000
    writer = scene.new_writer()
    writer.begin()
    with pytest.raises(PrepareError):
        writer.write(rows_of(["x" * 17_000_000], pa.string()))
    writer.abort()
    scene.expect_nothing_lingers("after a row that was too large")
    scene.close()

"""What a second connection reads after a write, and which values are refused instead of changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.errors import PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import SinkWriter
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import Scene
from sparkonce_lab.systems.mysql import MySQLSystem

Write = Callable[..., list[tuple[Any, ...]]]

BY_LOAD = {"commit": "two_phase", "local_infile": True}
BY_INSERT = {"commit": "two_phase", "local_infile": False}
STAGED = {"commit": "staged", "local_infile": True}
WAYS = pytest.mark.parametrize("how", [BY_LOAD, BY_INSERT], ids=["load", "insert"])


@pytest.fixture(params=[BY_LOAD, BY_INSERT, STAGED], ids=["load", "insert", "staged"])
def write(request: pytest.FixtureRequest, mariadb: MySQLSystem) -> Write:
    """Writes the only batch of a table, and returns what a second connection reads."""
    settings = {**mariadb.settings, "local_infile": request.param["local_infile"]}

    def write(columns: str, rows: pa.RecordBatch, select: str = "*", **more: Any) -> list[tuple[Any, ...]]:
        mariadb.ask("DROP TABLE IF EXISTS target")
        mariadb.ask(f"CREATE TABLE target ({columns}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4")
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
        assert mariadb.stages() == []
        return mariadb.ask(f"SELECT {select} FROM target ORDER BY place")  # noqa: S608 - of this file

    return write


def write_all(writer: SinkWriter, rows: pa.RecordBatch) -> None:
    writer.write(rows)
    writer.prepare()


def rows_of(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch(
        {"place": pa.array(range(len(values)), pa.int32()), "it": pa.array(values, kind)},
    )


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


def test_odd_identifiers(mariadb: MySQLSystem) -> None:
    mariadb.ask("CREATE TABLE `odd ``table`` %s.1` (`a ``b`` %s` INT PRIMARY KEY, `select` TEXT) ENGINE=InnoDB")
    rows = pa.record_batch({"a `b` %s": [1, 2], "select": ["x", None]})
    for mode in ({}, {"mode": "upsert", "key_columns": ["a `b` %s"]}):
        sink = MySQLSink(mariadb.settings, table="odd `table` %s.1", **mode)
        scene = Scene(SinkHooks(), sink)
        writer = scene.new_writer()
        sink.columns(rows.schema)
        writer.begin()
        writer.write(rows)
        scene.commit(scene.handle(writer.prepare(), rows=2))
        scene.close()
    assert mariadb.ask("SELECT * FROM `odd ``table`` %s.1` ORDER BY 1") == [(1, "x"), (2, None)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("write", [STAGED, BY_LOAD, pytest.param(BY_INSERT, marks=SLOW)], indirect=True)
def test_nothing_is_changed_silently(write: Write, mariadb: MySQLSystem) -> None:
    refused: list[Any] = [
        pytest.param("VARCHAR(3)", ["abc "], pa.string(), id="spaces too many"),
        pytest.param("TINYTEXT", ["x" * 256], pa.string(), id="tinytext too long"),
        pytest.param("VARBINARY(2)", [b"abc"], pa.binary(), id="binary too long"),
        pytest.param("TINYINT", [300], pa.int32(), id="out of range"),
        pytest.param("INT UNSIGNED", [-1], pa.int32(), id="negative"),
        pytest.param("BIT(4)", [16], pa.int32(), id="bits out of range"),
        pytest.param("BIT(64)", [-1], pa.int64(), id="negative bits"),
        pytest.param("DOUBLE(7,2)", [1.239], pa.float64(), id="a double's digits too many"),
        pytest.param("FLOAT(7,2)", [1.239], pa.float32(), id="a float's digits too many"),
        pytest.param("DOUBLE(7,2)", [1.239], pa.float32(), id="a float's digits too many for a double"),
        pytest.param("INT NOT NULL", [None], pa.int32(), id="null"),
        pytest.param("TIMESTAMP NOT NULL", [None], pa.timestamp("us"), id="null would be now"),
        pytest.param("BIGINT NOT NULL AUTO_INCREMENT, KEY (it)", [None], pa.int64(), id="null would be the next"),
        pytest.param("TIMESTAMP(6)", [datetime(2040, 1, 1)], pa.timestamp("us"), id="after 2038"),
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
    for refusal in refused:
        column, values, kind = refusal.values
        with pytest.raises(PrepareError):
            write(f"place INT, it {column}", rows_of(values, kind))
        assert mariadb.ask("SELECT COUNT(*) FROM target") == [(0,)], refusal.id


def test_bytes_that_are_no_text_are_refused(write: Write) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xe6\t")]
    )
    with pytest.raises(PrepareError, match=r"'it' .* not UTF-8"):
        write("place INT, it TEXT", pa.record_batch({"place": pa.array([1], pa.int32()), "it": broken}))


@WAYS
@pytest.mark.parametrize(
    ("column", "values", "words", "step"),
    [
        ("INT PRIMARY KEY", [1, 2, 1], "'target': error 1062, .* for key 'PRIMARY'", "mode='upsert' and key_columns"),
        ("INT, CONSTRAINT more CHECK (it > 1)", [1, 2], "'target': error 4025, .*`more` failed", "change the CHECK"),
        (
            "INT, CONSTRAINT old FOREIGN KEY (it) REFERENCES parent (id)",
            [9],
            "'target': error 1452, .*`old`",
            "Write the rows that these refer to first",
        ),
    ],
)
def test_rows_that_the_table_refuses(
    mariadb: MySQLSystem,
    how: dict[str, Any],
    column: str,
    values: list[int],
    words: str,
    step: str,
) -> None:
    """LOAD DATA LOCAL skips such rows and continues."""
    mariadb.ask("CREATE TABLE IF NOT EXISTS parent (id INT PRIMARY KEY) ENGINE=InnoDB")
    mariadb.ask("DROP TABLE IF EXISTS target")
    mariadb.ask(f"CREATE TABLE target (it {column}) ENGINE=InnoDB")
    before = mariadb.prepared()
    settings = {**mariadb.settings, "local_infile": how["local_infile"]}
    for guarantee in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
        scene = Scene(SinkHooks(), MySQLSink(settings, table="target", commit="two_phase", guarantee=guarantee))
        writer = scene.new_writer()
        writer.begin()
        with pytest.raises(PrepareError, match=words) as caught:
            write_all(writer, pa.record_batch({"it": pa.array(values, pa.int32())}))
        assert step in caught.value.next_step
        writer.abort()
        scene.close()
        assert mariadb.ask("SELECT COUNT(*) FROM target") == [(0,)]
    assert mariadb.prepared() == before


@WAYS
def test_a_key_that_is_there_is_refused_in_append_mode(mariadb: MySQLSystem, how: dict[str, Any]) -> None:
    mariadb.ask("DROP TABLE IF EXISTS target")
    mariadb.ask("CREATE TABLE target (it INT PRIMARY KEY, word TEXT) ENGINE=InnoDB")
    mariadb.ask("INSERT INTO target VALUES (7, 'old')")
    rows = pa.record_batch({"it": pa.array([6, 7], pa.int32()), "word": ["new", "new"]})
    settings = {**mariadb.settings, "local_infile": how["local_infile"]}
    scene = Scene(SinkHooks(), MySQLSink(settings, table="target", commit="two_phase"))
    writer = scene.new_writer()
    writer.begin()
    with pytest.raises(PrepareError, match=r"Duplicate entry '…' for key"):
        write_all(writer, rows)
    writer.abort()
    scene.close()
    assert mariadb.ask("SELECT * FROM target") == [(7, "old")]


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
    mariadb: MySQLSystem, column: str, kind: pa.DataType, words: str
) -> None:
    mariadb.ask("DROP TABLE IF EXISTS target")
    mariadb.ask(f"CREATE TABLE target (place INT, it {column}) ENGINE=InnoDB")
    sink = MySQLSink(mariadb.settings, table="target")
    sink.columns(pa.schema([("place", pa.int32()), ("it", kind)]))
    with pytest.raises(PreflightError, match=words):
        sink.preflight("0" * 12, None)


def test_large_rows_and_small_packets(mariadb: MySQLSystem) -> None:
    """INSERTs are limited to max_allowed_packet. A larger single row gets the server's own error."""
    mariadb.ask("DROP TABLE IF EXISTS target")
    mariadb.ask("CREATE TABLE target (place INT, it LONGTEXT) ENGINE=InnoDB")
    sink = MySQLSink({**mariadb.settings, "local_infile": False}, table="target", commit="two_phase")
    scene = Scene(SinkHooks(), sink)
    rows = rows_of(["x" * 3_000_000] * 10, pa.string())
    writer = scene.new_writer()
    writer.begin()
    writer.write(rows)
    scene.commit(scene.handle(writer.prepare(), rows=10))
    assert mariadb.ask("SELECT SUM(LENGTH(it)) FROM target") == [(30_000_000,)]
    writer = scene.new_writer()
    writer.begin()
    with pytest.raises(PrepareError):
        writer.write(rows_of(["x" * 17_000_000], pa.string()))
    writer.abort()
    scene.expect_nothing_lingers("after a row that was too large")
    scene.close()

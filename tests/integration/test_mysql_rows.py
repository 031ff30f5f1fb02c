from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from one_run import QUERY, finish, prepare
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import Scene

Write = Callable[..., list[tuple[Any, ...]]]

BY_LOAD = {"commit": "two_phase", "local_infile": True}
BY_INSERT = {"commit": "two_phase", "local_infile": False}
STAGED = {"commit": "staged", "local_infile": True}
WAYS = pytest.mark.parametrize("how", [BY_LOAD, BY_INSERT], ids=["load", "insert"])


@pytest.fixture(params=[BY_LOAD, BY_INSERT, STAGED], ids=["load", "insert", "staged"])
def write(request, mariadb) -> Write:
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


def rows_of(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch({"place": pa.array(range(len(values)), pa.int32()), "it": pa.array(values, kind)})


def test_bits(write):
    found = write("place INT, it BIT(4)", rows_of([0, 5, 15, None], pa.int32()), "it + 0")
    assert [value for (value,) in found] == [0, 5, 15, None]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("write", [STAGED, BY_LOAD, pytest.param(BY_INSERT, marks=SLOW)], indirect=True)
def test_nothing_is_changed_silently(write, mariadb):
    refused: list[Any] = [  # more in unit/test_mysql_encoding.py
        pytest.param("VARCHAR(3)", ["abc "], pa.string(), id="spaces too many"),
        pytest.param("TINYTEXT", ["x" * 256], pa.string(), id="tinytext too long"),
        pytest.param("VARBINARY(2)", [b"abc"], pa.binary(), id="binary too long"),
        pytest.param("TINYINT", [300], pa.int32(), id="out of range"),
        pytest.param("INT UNSIGNED", [-1], pa.int32(), id="negative"),
        pytest.param("BIT(4)", [16], pa.int32(), id="bits out of range"),
        pytest.param("TIMESTAMP NOT NULL", [None], pa.timestamp("us"), id="null would be now"),
        pytest.param("BIGINT NOT NULL AUTO_INCREMENT, KEY (it)", [None], pa.int64(), id="null would be the next"),
        pytest.param("TIMESTAMP(6)", [datetime(2040, 1, 1)], pa.timestamp("us"), id="after 2038"),
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
def test_rows_that_the_table_refuses(mariadb, how, column, values, words, step):
    """LOAD DATA LOCAL skips such rows and continues."""
    mariadb.ask("CREATE TABLE parent (id INT PRIMARY KEY) ENGINE=InnoDB")
    mariadb.ask(f"CREATE TABLE target (it {column}) ENGINE=InnoDB")
    before = mariadb.prepared()
    settings = {**mariadb.settings, "local_infile": how["local_infile"]}
    for guarantee in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
        sink = MySQLSink(settings, table="target", commit="two_phase", guarantee=guarantee)
        with pytest.raises(PrepareError, match=words) as caught:
            prepare(sink, pa.record_batch({"it": pa.array(values, pa.int32())}))
        assert step in caught.value.next_step
        assert mariadb.ask("SELECT COUNT(*) FROM target") == [(0,)]
    assert mariadb.prepared() == before


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ("INT", pa.string(), "is int"),
        ("DATE", pa.string(), "is date"),
        ("FLOAT", pa.float64(), "is float"),
        ("DOUBLE(7,2) UNSIGNED", pa.float64(), r"is double\(7,2\) unsigned"),
        ("FLOAT(5,2)", pa.float32(), r"is float\(5,2\)"),
        ("YEAR", pa.int32(), "is year.*Cast it to string"),
        ("BIGINT UNSIGNED", pa.decimal128(20, 1), "is bigint"),
        ("BIGINT", pa.decimal128(20, 0), "is bigint"),
        ("TEXT", pa.int32(), "is text"),
        ("INT AS (place + 1) STORED", pa.int32(), "generated"),
    ],
)
def test_types_that_might_change_a_value_are_refused_at_start(mariadb, column, kind, words):
    mariadb.ask(f"CREATE TABLE target (place INT, it {column}) ENGINE=InnoDB")
    sink = MySQLSink(mariadb.settings, table="target")
    sink.columns(pa.schema([("place", pa.int32()), ("it", kind)]))
    with pytest.raises(PreflightError, match=words):
        sink.preflight(QUERY, None)


def test_large_rows_and_small_packets(mariadb):
    """INSERTs are limited to max_allowed_packet. A larger single row gets the server's own error."""
    mariadb.ask("CREATE TABLE target (place INT, it LONGTEXT) ENGINE=InnoDB")
    sink = MySQLSink({**mariadb.settings, "local_infile": False}, table="target", commit="two_phase")
    finish(sink, prepare(sink, rows_of(["x" * 3_000_000] * 10, pa.string())))
    assert mariadb.ask("SELECT SUM(LENGTH(it)) FROM target") == [(30_000_000,)]
    before = mariadb.prepared()
    with pytest.raises(PrepareError):
        prepare(sink, rows_of(["x" * 17_000_000], pa.string()))
    assert mariadb.prepared() == before

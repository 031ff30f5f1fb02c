"""Extreme values of each Spark type are written by each sink, and read back with an independent client.

Each value arrives unchanged, or is rejected with an error that names its column. The rows here are Arrow data, as Spark
passes them to workers. `spark/test_values_kept.py` sends the same rows through Spark.
"""

from __future__ import annotations

import base64
import json
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdfs_native import Client

from one_run import prepare
from redis_servers import witness
from s3_bucket import Bucket
from shared_servers import USES_HDFS, USES_RABBIT, hdfs_server, rabbit_server, redis_server
from sparkonce import FilesSink, KafkaSink, MySQLSink, PostgresSink, RedisSink, WriteAheadSink
from sparkonce.errors import SchemaError, SparkonceError
from sparkonce.protocol.handles import Outcome
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import Applies
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem, RabbitStreamSystem
from sparkonce_rabbitmq import RabbitMQ, RabbitMQQueueSink, RabbitMQStreamSink

# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class No:
    """Rejected with this message, by a column of this type if the target's columns have types."""

    words: str
    column: str = ""


@dataclass(frozen=True)
class As:
    """Stored in a column of this type as other values, as documented."""

    column: str
    values: Sequence[Any]


@dataclass(frozen=True)
class Case:
    """Values of a type, and what each sink does with them.

    Attributes:
        name: Spark's name of the type.
        arrow: The Arrow type.
        values: Days for a date, microseconds for a time or an interval, and bytes for a string. Otherwise Python
            values.
        cells: For each sink, the type of a column that stores the values, or `No`, or `As`. Sinks without column types
            store everything that is not listed.
    """

    name: str
    arrow: pa.DataType
    values: Sequence[Any]
    cells: dict[str, str | No | As] = field(default_factory=dict)


def case(name: str, arrow: pa.DataType, values: Sequence[Any], /, **cells: str | No | As) -> Case:
    return Case(name, arrow, values, cells)


NO_CSV = No("csv files have no nested values")
NO_REDIS = No("and a string, binary, number, boolean or date is needed")
NO_TIME = No("timestamps: date_format")
INTERVALS = dict.fromkeys(("parquet", "json", "csv"), No("files have no intervals")) | {
    "redis": NO_REDIS,
    "table": No("is not in"),
}
NO_MAP = No("no format here takes a map")
MAPS = dict.fromkeys(("parquet", "json", "csv", "arrow"), NO_MAP) | {"redis": NO_REDIS}
NESTED = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])
NOT_NULL = pa.struct([pa.field("a", pa.int32(), nullable=False)])
EMPTY = pa.struct([])
HOUR = 3_600_000_000
LEAST_US = -9_223_372_022_400_000_000
"""The first microsecond that DuckDB has, 22 days after Spark's."""

TABLE = [
    case("boolean", pa.bool_(), [True, False], postgres="boolean", mariadb="boolean"),
    case("byte", pa.int8(), [-128, 127], postgres="smallint", mariadb="tinyint"),
    case("short", pa.int16(), [-(2**15), 2**15 - 1], postgres="smallint", mariadb="smallint"),
    case("int", pa.int32(), [-(2**31), 2**31 - 1], postgres="integer", mariadb="int"),
    case("int, wider", pa.int32(), [-(2**31), 2**31 - 1], postgres="numeric(20,2)", mariadb="double"),
    case("int, in a domain", pa.int32(), [1], postgres="positive", mariadb="int"),
    case("long", pa.int64(), [-(2**63), 2**63 - 1], postgres="bigint", mariadb="bigint"),
    case("long, as decimal", pa.int64(), [-(2**63), 2**63 - 1], postgres="numeric", mariadb="decimal(20,1)"),
    case("float", pa.float32(), [1e-45, 3.4028234663852886e38, 0.1], postgres="real", mariadb="float"),
    case("float, wider", pa.float32(), [0.1, 16777217.0], postgres="double precision", mariadb="double"),
    case("double", pa.float64(), [5e-324, -1.7976931348623157e308, 0.1], postgres="float8", mariadb="double"),
    case("double, minus zero", pa.float64(), [-0.0], postgres="float8", mariadb=As("double", [0.0])),
    case("double, not finite", pa.float64(), [math.nan, math.inf, -math.inf], postgres="float8",
         mariadb=No("NaN or an infinity", "double")),
    case("double, of two digits", pa.float64(), [1.23, -0.07, -9999999.99], postgres="float8",
         mariadb=No(r"is double\(9,2\)", "double(9,2)")),
    case("decimal(38,0)", pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38)], postgres="numeric",
         mariadb="decimal(38,0)"),
    case("decimal(38,38)", pa.decimal128(38, 38), [Decimal("0." + "9" * 38), Decimal("-1E-38")],
         postgres="numeric(38,38)", mariadb="decimal(38,38)"),
    case("decimal(38,18)", pa.decimal128(38, 18), [Decimal("-" + "9" * 20 + "." + "9" * 18), Decimal("1E-18")],
         postgres="numeric", mariadb="decimal(38,18)"),
    case("decimal(20,0)", pa.decimal128(20, 0), [Decimal(2**64 - 1), Decimal(0)], postgres="numeric(20)",
         mariadb="bigint unsigned"),
    case("string", pa.string(), [b"", b" ", b"\\.", b"\\N", b"NULL", b"a\"b'c,d\t", b"x\r\ny", "é𝄞".encode(), b"%s{}"],
         postgres="text", mariadb="longtext"),
    case("string, long", pa.string(), [b"x" * 250, b"x" * 251, b"x" * 65_535, b"x" * 65_536], postgres="text",
         mariadb="longtext"),
    case("string with NUL", pa.string(), [b"a\0b"], postgres=No("22021.*regexp_replace", "text"),
         mariadb="longtext"),
    case("string, not UTF-8", pa.string(), [b"a\xffb"], postgres=No("22021.*make_valid_utf8", "text"),
         mariadb=No("not UTF-8", "text"), kafka="kept",
         json=No("make_valid_utf8"), csv=No("make_valid_utf8"), parquet="pyarrow"),
    case("string, too long", pa.string(), [b"abcd"], postgres=No("22001.*Correct such rows", "varchar(3)"),
         mariadb=No("Data (too long|truncated)", "varchar(3)")),
    case("string, of a few characters", pa.string(), ["é".encode()], postgres="varchar(1)",
         mariadb="varchar(1) character set latin1"),
    case("string, of a choice", pa.string(), [b"it's"], postgres="colour", mariadb="enum('a', 'it''s')"),
    case("string, of members", pa.string(), [b"", b"a,it's"], postgres="text", mariadb="set('a', 'b', 'it''s')"),
    case("string, JSON", pa.string(), [b'{"a": [1, null]}'], postgres="jsonb", mariadb="json"),
    case("string, JSON with NUL", pa.string(), [b'{"a": "\\u0000"}'], mariadb="json",
         postgres=No("22P05.*make the column json", "jsonb")),
    case("string, a time", pa.string(), [b"12:34:56.789012", b"00:00:00.000001"], postgres="time", mariadb="time(6)"),
    case("string, a time span", pa.string(), [b"-838:59:59", b"100:00:00"], postgres="text", mariadb="time"),
    case("string, a year", pa.string(), [b"1901", b"2155", b"0000"], postgres="text", mariadb="year"),
    case("string, an address", pa.string(), [b"10.0.0.0/8", b"::1/64"], postgres="inet", mariadb="text"),
    case("string, a UUID", pa.string(), [b"123e4567-e89b-12d3-a456-426614174000"], postgres="uuid", mariadb="uuid"),
    case("binary", pa.binary(), [b"", b"\0", bytes(range(256)), b"\\x41"], postgres="bytea", mariadb="longblob"),
    case("date", pa.date32(), [-719_162, 2_932_896, -1, 0], postgres="date", mariadb="date"),
    case("date, far", pa.date32(), [-719_163, 2_932_897, 12_019_723, -2_440_588], postgres="date",
         mariadb=No("before year 1 or after year 9999", "date")),
    case("date, farthest", pa.date32(), [-(2**31) + 2, 2**31 - 2], postgres=No("4713 BC", "date"),
         mariadb=No("after year", "date")),
    case("timestamp", pa.timestamp("us", "Asia/Tokyo"), [-62_135_596_800_000_000, 253_402_300_799_999_999, -1],
         postgres="timestamptz", mariadb="datetime(6)", redis=NO_TIME),
    case("timestamp, of this age", pa.timestamp("us", "UTC"), [1_000_000, 2**31 * 1_000_000 - 1],
         postgres="timestamptz", mariadb="timestamp(6)", redis=NO_TIME),
    case("timestamp, far", pa.timestamp("us", "UTC"), [-62_135_596_800_000_001, 1_700_000_000_000_000_000],
         postgres="timestamptz", mariadb=No("after year 9999", "datetime(6)"), redis=NO_TIME),
    case("timestamp, farthest", pa.timestamp("us", "UTC"), [LEAST_US, 2**63 - 2],
         postgres=No("4713 BC", "timestamptz"), mariadb=No("after year 9999", "datetime(6)"), redis=NO_TIME),
    case("timestamp_ntz", pa.timestamp("us"), [-62_135_596_800_000_000, 253_402_300_799_999_999, 1],
         postgres="timestamp", mariadb="datetime(6)", redis=NO_TIME),
    case("timestamp_ntz, farthest", pa.timestamp("us"), [LEAST_US, 2**63 - 2], postgres=No("4713 BC", "timestamp"),
         mariadb=No("after year 9999", "datetime(6)"), redis=NO_TIME),
    case("timestamp, to be rounded", pa.timestamp("us", "UTC"), [1],
         postgres=No("multiples of 1000000", "timestamptz(0)"), mariadb=No("would round", "datetime"), redis=NO_TIME),
    case("day-time interval", pa.duration("us"), [0, -25 * HOUR + 7, 2**63 - 1, -(2**63) + 1],
         postgres=No("is interval day to second", "interval"), mariadb=No("cannot write", "time"), **INTERVALS),
    case("array<long>", pa.list_(pa.int64()), [[], [None, 2**63 - 1], [-(2**63)]], postgres="bigint[]",
         mariadb="json", csv=NO_CSV, redis=NO_REDIS),
    case("array<string>", pa.list_(pa.string()), [[], ["", None, "NULL", 'a"b\\c,}{\n']], postgres="text[]",
         mariadb="json", csv=NO_CSV, redis=NO_REDIS),
    case("array<date>", pa.list_(pa.date32()), [[12_019_723, None]], postgres="date[]",
         mariadb="json", csv=NO_CSV, redis=NO_REDIS),
    case("array<double>, NaN", pa.list_(pa.float64()), [[math.nan]], postgres="float8[]", mariadb=No("NaN", "json"),
         csv=NO_CSV, redis=NO_REDIS),
    case("array<array<int>>", pa.list_(pa.list_(pa.int32())), [[[1], None, []]],
         postgres=No("such values are not", "integer[]"), mariadb="json", csv=NO_CSV, redis=NO_REDIS),
    case("struct", NESTED, [{"a": [1, None], "b": 'q"\\\n\x01😀'}, {"a": None, "b": None}],
         postgres=No("to_json", "jsonb"), mariadb="json", csv=NO_CSV, redis=NO_REDIS),
    case("struct<int not null>", NOT_NULL, [{"a": 1}], postgres=No("to_json", "jsonb"), mariadb="json", csv=NO_CSV,
         redis=NO_REDIS),
    case("map<string,int>", pa.map_(pa.string(), pa.int32()), [[("k", 1)]], postgres=No("to_json", "jsonb"),
         mariadb=No("cannot write", "json"), **MAPS),
    case("array<map<string,int>>", pa.list_(pa.map_(pa.string(), pa.int32())), [[[("k", 1), ("l", None)], [], None]],
         postgres=No("such values are not", "jsonb"), mariadb=No("cannot write", "json"), **MAPS | {"csv": NO_CSV}),
    case("struct<>", EMPTY, [{}], postgres=No("to_json", "jsonb"), mariadb="json", csv=NO_CSV, redis=NO_REDIS,
         **dict.fromkeys(("parquet", "json", "arrow"), No("without fields")), write_ahead=No("no such type"),
         table=No("no such type")),
    case("void", pa.null(), [None], postgres=No("such values are not", "text"),
         mariadb=No("cannot write", "text"), redis=NO_REDIS,
         **dict.fromkeys(("parquet", "json", "csv", "arrow"), No("no type")), table=No("is not in|no type")),
]  # fmt: skip


# --- rows -------------------------------------------------------------------------------------------------------------


def array_of(case: Case, rows: int) -> pa.Array:
    """Returns the values, padded with nulls to this number of rows."""
    values = [*case.values, *[None] * (rows - len(case.values))]
    if pa.types.is_string(case.arrow):
        return pa.array(values, pa.binary()).view(case.arrow)
    if case.arrow == pa.list_(pa.string()):
        return pa.array(values, pa.list_(pa.binary())).cast(case.arrow)
    if case.arrow == NOT_NULL:  # as Spark sends it: with null in every field of a null struct
        fields = pa.array([None if value is None else value["a"] for value in values], pa.int32())
        return pa.StructArray.from_arrays([fields], fields=list(NOT_NULL), mask=fields.is_null())
    return pa.array(values, case.arrow)


def in_arrays(case: Case) -> Case:
    """Arrays of the values, with nulls in and among them."""
    values = list(case.values)
    cell = f"{case.cells['postgres']}[]"
    return Case(f"array of {case.name}", pa.list_(case.arrow), [values, [None, values[0]], []], {"postgres": cell})


def count_of(columns: dict[str, Case]) -> int:
    return max(len(one.values) for one in columns.values()) + 1


def rows_of(columns: dict[str, Case]) -> pa.RecordBatch:
    """All cases as columns, with a null below each, and a number in the first column."""
    rows = count_of(columns)
    return pa.record_batch(
        {"id": pa.array(range(rows), pa.int32()), **{name: array_of(one, rows) for name, one in columns.items()}}
    )


def same(value: Any) -> Any:
    """Converts a value so that equal values compare equal, including NaN, and -0.0 differs from 0.0."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value) and value:
        value = Decimal(value)
    if isinstance(value, (int, Decimal)):
        return format(Decimal(value).normalize(), "f")
    if isinstance(value, dict):
        return [same(one) for one in value.items()]  # a struct's fields, or a map's entries
    if isinstance(value, (list, tuple)):
        return [same(one) for one in value]
    if isinstance(value, float):
        return repr(value)
    return bytes(value.encode() if isinstance(value, str) else value)


def wanted(case: Case, sink: str, rows: int) -> list[Any]:
    cell = case.cells.get(sink)
    values = cell.values if isinstance(cell, As) else case.values
    if "float," in f"{case.name},":  # Python's types with 32 bits
        values = array_of(replace(case, values=values), len(values)).to_pylist()
    return [same(one) for one in [*values, *[None] * (rows - len(values))]]


def of_text(kind: pa.DataType, text: Any, *, base64_bytes: bool = True) -> Any:
    """Parses a string with Python and NumPy. Nested values are JSON lists and objects."""
    if text is None:
        return None
    if pa.types.is_list(kind):
        return [of_text(kind.value_type, one) for one in text]
    if pa.types.is_struct(kind):
        return {one.name: of_text(one.type, text[one.name]) for one in kind}
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return base64.b64decode(text) if base64_bytes else text
    if isinstance(text, bool):
        return text
    text = text.decode() if isinstance(text, bytes) else str(text)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_float32(kind):
        return float(np.float32(text))
    if pa.types.is_float64(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    assert not re.match(r"\d{5}", text), f"{text}: ISO 8601 wants a sign before a year of five digits"
    unit = "D" if pa.types.is_date32(kind) else "us"
    return int(np.datetime64(text.removesuffix("Z").lstrip("+"), unit).astype(np.int64))


# --- the sinks --------------------------------------------------------------------------------------------------------


class Way:
    """A sink: how to create a target for the cases, and how another client reads it.

    Attributes:
        cell: The name of the sink in the table.
    """

    cell: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, request: pytest.FixtureRequest) -> None:
        """Prepares what all targets need."""

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        """Creates an empty target with this name and these columns besides `id`, and returns its sink."""
        raise NotImplementedError

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        """Returns the values of each column, ordered by `id`."""
        raise NotImplementedError

    def column_type(self, case: Case) -> str:
        cell = case.cells.get(self.cell, "kept")
        return cell if isinstance(cell, str) else cell.column


class Postgres(Way):
    system: PostgresSystem
    cell = "postgres"
    commit = "staged"

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.system = request.getfixturevalue("postgres")
        self.system.ask("CREATE TYPE colour AS ENUM ('a', 'it''s')")
        self.system.ask("CREATE DOMAIN positive AS integer CHECK (value > 0)")

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        declared = ", ".join(f"{column} {self.column_type(one)}" for column, one in columns.items())
        self.system.ask(f"CREATE TABLE {name} (id integer, {declared})")
        return PostgresSink(self.system.server.conninfo(), table=name, commit=self.commit)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        values = ", ".join(self._value(one.arrow, column) for column, one in columns.items())
        query = f"SELECT {values} FROM {name} ORDER BY id"  # noqa: S608 - of this file, as below
        return by_column(columns, self.system.ask(query))

    def _value(self, kind: pa.DataType, column: str) -> str:
        if not pa.types.is_list(kind):
            return self._form(kind, column)
        array = f"array(SELECT {self._form(kind.value_type, 'one')} FROM unnest({column}) AS one)"  # noqa: S608
        return f"CASE WHEN {column} IS NOT NULL THEN {array} END"

    def _form(self, kind: pa.DataType, value: str) -> str:
        if pa.types.is_date32(kind):
            return f"{value} - date '1970-01-01'"
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            return f"(extract(epoch from {value}) * 1000000)::numeric(30)"
        if pa.types.is_string(kind):
            return f"convert_to({value}::text, 'UTF8')"
        if pa.types.is_int32(kind):
            return f"{value}::integer"  # psycopg does not support arrays of a domain
        # Cast real to double on the server: psycopg would parse the shortest text of a real as a double, which is a
        # different number.
        return f"{value}::float8" if pa.types.is_float32(kind) else value


class PostgresTwoPhase(Postgres):
    commit = "two_phase"


class MariaDB(Way):
    cell = "mariadb"
    commit = "staged"
    load = True

    system: MySQLSystem

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.system = request.getfixturevalue("mariadb")

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        declared = ", ".join(f"{column} {self.column_type(one)} NULL" for column, one in columns.items())
        self.system.ask(f"CREATE TABLE {name} (id int, {declared}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4")
        return MySQLSink({**self.system.settings, "local_infile": self.load}, table=name, commit=self.commit)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        values = ", ".join(self._form(one.arrow).format(column) for column, one in columns.items())
        query = f"SELECT {values} FROM {name} ORDER BY id"  # noqa: S608
        found = by_column(columns, self.system.ask(query))
        for column, one in columns.items():
            if pa.types.is_nested(one.arrow):
                found[column] = [one and of_text(columns[column].arrow, json.loads(one)) for one in found[column]]
            elif pa.types.is_boolean(one.arrow):
                found[column] = [None if one is None else bool(one) for one in found[column]]
        return found

    def _form(self, kind: pa.DataType) -> str:
        if pa.types.is_date32(kind):
            return "DATEDIFF({}, '1970-01-01')"
        if pa.types.is_timestamp(kind):
            return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {})"
        if pa.types.is_float32(kind):
            return "CAST({} AS DOUBLE)"  # the server shows six digits of a float
        return "CAST({} AS CHAR)" if pa.types.is_string(kind) else "{}"


class MariaDBLoad(MariaDB):
    commit = "two_phase"


class MariaDBInsert(MariaDBLoad):
    load = False


class Redis(Way):
    cell = "redis"
    rows = 0

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        self.rows = count_of(columns)
        return RedisSink(redis_server().url, structure="hash", key_template=f"{name}:{{id}}", name=name)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        with witness(redis_server()) as client:
            rows = [client.hmget(f"{name}:{number}", list(columns)) for number in range(self.rows)]
        found = by_column(columns, rows)
        return {
            column: [of_text(one.arrow, text, base64_bytes=False) for text in found[column]]
            for column, one in columns.items()
        }


class Files(Way):
    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        return FilesSink(str(self.folder / name), format=self.cell, name=name)

    def files(self, name: str) -> list[str]:
        return [str(one) for one in (self.folder / name).glob("part-*")]


class Parquet(Files):
    cell = "parquet"

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        return read_parquet(self.files(name), columns)


def read_parquet(files: list[str], columns: dict[str, Case]) -> dict[str, list[Any]]:
    """DuckDB reads the files, and rejects strings that are not UTF-8."""

    def form(one: Case) -> str:
        if pa.types.is_date32(one.arrow):
            return "date_diff('day', DATE '1970-01-01', {})"
        if pa.types.is_timestamp(one.arrow):
            return "epoch_us({})"
        if one.name == "array<date>":
            return "list_transform({}, lambda one: date_diff('day', DATE '1970-01-01', one))"
        return "encode({})" if pa.types.is_string(one.arrow) else "{}"

    odd = {column: one for column, one in columns.items() if one.cells.get("parquet") == "pyarrow"}
    others = {column: one for column, one in columns.items() if column not in odd}
    values = ", ".join(form(one).format(column) for column, one in others.items())
    query = f"SELECT {values} FROM read_parquet($files) ORDER BY id"  # noqa: S608
    with duckdb.connect() as client:
        found = by_column(others, client.execute(query, {"files": files}).fetchall())
    whole = pa.concat_tables(pq.read_table(one, columns=["id", *odd]) for one in files).sort_by("id")
    return found | {column: plain(whole[column]) for column in odd}


class Json(Files):
    cell = "json"

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        lines = [line for one in self.files(name) for line in Path(one).read_bytes().decode().split("\n")[:-1]]
        rows = sorted((json.loads(line, parse_float=str) for line in lines), key=lambda row: int(row["id"]))
        return {column: [of_text(one.arrow, row[column]) for row in rows] for column, one in columns.items()}


class Csv(Files):
    cell = "csv"

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        options = "all_varchar = true, allow_quoted_nulls = false, header = true, quote = '\"', escape = '\"'"
        query = f"SELECT {', '.join(columns)} FROM read_csv($files, {options}) ORDER BY id::int"  # noqa: S608
        with duckdb.connect() as client:
            found = by_column(columns, client.execute(query, {"files": self.files(name)}).fetchall())
        return {column: [of_text(one.arrow, text) for text in found[column]] for column, one in columns.items()}


class Arrow(Files):
    cell = "arrow"

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        whole = pa.concat_tables(pa.ipc.open_file(one).read_all() for one in self.files(name)).sort_by("id")
        return {column: plain(whole[column]) for column in columns}


class S3(Parquet):
    bucket: Bucket

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.bucket = request.getfixturevalue("bucket")

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        return FilesSink(f"s3://{self.bucket.name}/{name}", store_options=self.bucket.server.settings(), name=name)

    def files(self, name: str) -> list[str]:
        return downloaded(self.folder, self.bucket.objects(f"{name}/part-"))


class HDFS(Parquet):
    root: str

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.root = f"{hdfs_server().url}/values-{secrets.token_hex(6)}"

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        return FilesSink(f"{self.root}/{name}", name=name)

    def files(self, name: str) -> list[str]:
        client = Client(hdfs_server().url)
        found = [one.path for one in client.list_status(f"{urlsplit(self.root).path}/{name}") if "/part-" in one.path]
        return downloaded(self.folder, {path: client.read(path).read() for path in found})


def downloaded(folder: Path, files: dict[str, bytes]) -> list[str]:
    for number, content in enumerate(files.values()):
        (folder / f"{number}.parquet").write_bytes(content)
    return [str(folder / f"{number}.parquet") for number in range(len(files))]


class Stream(Way):
    cell = "message"

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.system = RabbitStreamSystem(server=rabbit_server())
        self.system.start(self.folder)

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        stream = self.system.client.create(name)
        return RabbitMQStreamSink(self.system.settings(), stream=stream, body="raw", name=name)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        return dict.fromkeys(columns, self.system.client.messages(name))


class Queue(Way):
    cell = "message"
    queue = ""

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.system = RabbitQueueSystem(server=rabbit_server())
        self.system.start(self.folder)

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        self.queue = self.system.declare()
        return RabbitMQQueueSink(self.system.settings(), queue=self.queue, name=name)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        bodies = [body for _, body in self.system.peek(self.queue)]
        return dict.fromkeys(columns, bodies)


TAKEN: dict[str, pa.Table] = {}


def take(name: str, rows: pa.RecordBatchReader, _: object) -> None:
    TAKEN[name] = rows.read_all()


class WriteAhead(Way):
    cell = "write_ahead"

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        return WriteAheadSink(partial(take, name), applies=Applies.IDEMPOTENT, name=name, per="batch")

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        return {column: plain(TAKEN[name].sort_by("id")[column]) for column in columns}


def by_column(columns: dict[str, Case], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


def plain(column: pa.ChunkedArray) -> list[Any]:
    """The raw memory, without Python's dates."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_string(kind):
        column = column.cast(pa.binary())
    elif kind == pa.list_(pa.date32()):
        column = column.cast(pa.list_(pa.int32()))
    return column.to_pylist()


WAYS = [Postgres, PostgresTwoPhase, MariaDB, MariaDBLoad, MariaDBInsert, Redis, Parquet, Json, Csv, Arrow,
        WriteAhead]  # fmt: skip
STORES = [pytest.param(S3, marks=pytest.mark.slow), pytest.param(HDFS, marks=[pytest.mark.slow, USES_HDFS])]
"""They store the bytes of the same formats."""
ARROW_NAMES = r"\b(int8|int16|int32|int64|list<|null\b|timestamp\[|date32|decimal128|duration)"
AS_OTHERS = {PostgresTwoPhase, MariaDBLoad, MariaDBInsert}
"""They reject the same values as the sink's other commit mode."""


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def kept_by(way: Way) -> dict[str, Case]:
    kept = {f"c{at}": one for at, one in enumerate(TABLE) if not isinstance(one.cells.get(way.cell), No)}
    if way.cell == "message":
        return {column: one for column, one in kept.items() if is_text(one.arrow)}
    if way.cell == "postgres":
        plain_ones = {column: one for column, one in kept.items() if not pa.types.is_nested(one.arrow)}
        kept |= {f"{column}s": in_arrays(one) for column, one in plain_ones.items()}
    return kept


def refused_by(way: Way) -> Iterator[tuple[str, Case, str]]:
    for at, one in enumerate(TABLE):
        if isinstance(cell := one.cells.get(way.cell), No):
            yield f"c{at}", one, cell.words


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture
def way(request, tmp_path) -> Way:
    made: Way = request.param(tmp_path)
    made.prepare(request)
    return made


def write(sink: TwoPhaseCommitSink, rows: pa.RecordBatch, checkpoint: Path) -> None:
    """Writes a batch of one slot, in two record batches, one of which begins in the middle of its buffers."""
    sink.use_checkpoint(LocalFiles(checkpoint))
    rows = rows.select(list(sink.columns(rows.schema)))
    handle = prepare(sink, rows.slice(0, 2), rows.slice(2))
    with closing(sink.committer()) as committer:
        assert [one.outcome for one in committer.commit([handle])] == [Outcome.COMMITTED]
        committer.conclude(0, [handle])


@pytest.mark.parametrize("way", [*WAYS, *STORES], indirect=True, ids=lambda way: way.__name__)
def test_what_a_sink_keeps_is_read_as_it_was(way, tmp_path):
    kept = kept_by(way)
    rows = rows_of(kept)
    write(way.sink("kept", kept), rows, tmp_path / "checkpoint")
    for column, values in way.read("kept", kept).items():
        assert [same(one) for one in values] == wanted(kept[column], way.cell, rows.num_rows), kept[column].name


@pytest.mark.parametrize(
    "way",
    [pytest.param(one, marks=[pytest.mark.slow] if one in AS_OTHERS else [], id=one.__name__) for one in WAYS],
    indirect=True,
)
def test_all_else_is_refused_by_column(way, tmp_path):
    for column, one, words in refused_by(way):
        with pytest.raises(SparkonceError, match=words) as refused:
            write(way.sink(f"no_{column}", {column: one}), rows_of({column: one}), tmp_path / column)
        assert re.search(rf"\b{column}\b", str(refused.value)), refused.value
        assert not re.search(ARROW_NAMES, str(refused.value)), "types have Spark's names"


@pytest.mark.slow
@USES_RABBIT
@pytest.mark.parametrize("way", [Stream, Queue], indirect=True, ids=lambda way: way.__name__)
def test_messages_have_the_bytes_of_strings_and_binaries(way, tmp_path):
    for column, one in kept_by(way).items():
        name = f"{column}-{secrets.token_hex(6)}"
        sink = way.sink(name, {column: one})
        write(sink, pa.record_batch({"value": array_of(one, len(one.values))}), tmp_path / name)
        found = way.read(name, {column: one})[column]
        assert [same(value) for value in found] == wanted(one, way.cell, len(one.values)), one.name


@pytest.mark.parametrize(
    "sink",
    [
        KafkaSink({"bootstrap.servers": "localhost:1"}, topic="t"),
        RabbitMQStreamSink(RabbitMQ(host="localhost"), stream="s"),
        RabbitMQQueueSink(RabbitMQ(host="localhost"), queue="q"),
        FilesSink("/out", format="text"),
    ],
    ids=lambda sink: type(sink).__name__,
)
def test_a_message_and_a_line_are_a_string_or_bytes(sink):
    for one in TABLE:
        schema = pa.schema([("value", one.arrow)])
        if pa.types.is_string(one.arrow) or (pa.types.is_binary(one.arrow) and sink.name != "files"):
            assert list(sink.columns(schema)) == ["value"]
        else:
            with pytest.raises(SchemaError, match="value"):
                sink.columns(schema)

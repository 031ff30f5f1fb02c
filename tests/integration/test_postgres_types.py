from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from postgres_witness import (
    ask,
    database_fixture,
    finish,
    needs_postgres,
    new_sink,
    open_writer,
    owner,
    prepare,
    server_fixture,
)
from sparkonce.errors import PrepareError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.sink import WriterContext

pytestmark = needs_postgres

UTC = dt.timezone.utc
NAN = float("nan")

EXACT: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.bool_(), "boolean", [True, False]),
    (pa.int8(), "smallint", [-128, 127]),
    (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    (pa.int16(), "integer", [-(2**15), 2**15 - 1]),
    (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    (pa.int64(), "numeric", [Decimal(-(2**63)), Decimal(2**63 - 1)]),
    (pa.float32(), "real", [1.5, math.inf, -math.inf, NAN, -0.0]),
    (pa.float32(), "double precision", [0.1, NAN]),
    (pa.float64(), "double precision", [5e-324, 1.7976931348623157e308, math.inf, -math.inf, NAN, -0.0]),
    (pa.decimal128(38, 0), "numeric", [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0), Decimal(2**64)]),
    (pa.decimal128(38, 38), "numeric(38,38)", [Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")]),
    (pa.decimal128(38, 18), "numeric", [Decimal("-12345678901234567890.123456789012345678"), Decimal("0.5")]),
    (pa.decimal128(10, 2), "numeric(12,4)", [Decimal("99999999.99"), Decimal("-0.01"), Decimal("10000.00")]),
    (pa.decimal128(5, 5), "numeric", [Decimal("0.12345"), Decimal("-0.00001")]),
    (pa.string(), "text", ["", " ", "\\.", "\\N", "a\"b'c,d", "x\r\n\ty", "é𝄞", "NULL"]),
    (pa.string(), "varchar(3)", ["", "abc", "é𝄞x"]),
    (pa.large_string(), "text", ["", "long"]),
    (pa.string(), "jsonb", ['{"a": [1, null]}', "null"]),
    (pa.string(), "json", ['{"b": 1}']),
    (pa.string(), "uuid", ["00000000-0000-0000-0000-000000000005", "FFFFFFFF-ffff-ffff-ffff-fffffffffff0"]),
    (pa.string(), "colour", ["red", "green"]),
    (pa.string(), "short_text", ["ab", ""]),
    (pa.binary(), "bytea", [b"", b"\0", bytes(range(256)), b"\\x41"]),
    (pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), dt.date(2000, 1, 1)]),
    (
        pa.timestamp("us", "UTC"),
        "timestamptz",
        [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    ),
    (pa.timestamp("us"), "timestamp", [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)]),
    (pa.duration("us"), "interval", [dt.timedelta(0), dt.timedelta(hours=-25, microseconds=7)]),
    (pa.int32(), "positive", [1, 2]),
]


server = server_fixture()
_database = database_fixture(
    "CREATE TYPE colour AS ENUM ('red', 'green')",
    "CREATE DOMAIN short_text AS varchar(2)",
    "CREATE DOMAIN positive AS integer CHECK (value > 0)",
)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return repr(found) == repr(wanted)
    if isinstance(found, uuid.UUID):
        return found == uuid.UUID(wanted)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted) and type(found) is type(wanted)


@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_every_type_arrives_as_it_was(server: PostgresServer, commit: str) -> None:
    """Alone, between nulls, in arrays, and in a slice of a larger batch."""
    columns: dict[str, pa.Array] = {}
    declared, wanted = [], {}
    for number, (arrow, declaration, values) in enumerate(EXACT):
        five = (values * 5)[:5]
        forms = {
            "plain": (arrow, declaration, five),
            "nulls": (arrow, declaration, [None, five[0], None, five[1], five[2]]),
            "array": (pa.list_(arrow), f"{declaration}[]", [None, [], values, [None, values[0]], [values[-1]]]),
        }
        for form, (kind, sort, rows) in forms.items():
            name = f"{form} {number}"
            given = [int(one) if arrow == pa.int64() and isinstance(one, Decimal) else one for one in rows]
            if arrow == pa.int64() and form == "array":
                given = [None if one is None else [None if x is None else int(x) for x in one] for one in rows]
            columns[name] = pa.concat_arrays([pa.array(given[:1], kind), pa.array(given, kind)]).slice(1)
            declared.append(f'"{name}" {sort}')
            wanted[name] = rows
    ask(server, f"CREATE TABLE t ({', '.join(declared)})")
    handle = prepare(new_sink(server, commit=commit), pa.record_batch(columns))
    assert ask(server, "SELECT count(*) FROM t") == [(0,)]
    finish(new_sink(server, commit=commit), handle)
    found = ask(server, "SELECT * FROM t")
    for place, (name, rows) in enumerate(wanted.items()):
        have = [row[place] for row in found]
        kind, sort, _ = EXACT[int(name.split()[1])]
        if sort in ("json", "jsonb"):
            rows = [
                None
                if one is None
                else [None if x is None else json.loads(x) for x in one]
                if isinstance(one, list)
                else json.loads(one)
                for one in rows
            ]
        if kind == pa.float32() and sort == "double precision":
            rows = pa.array(rows, columns[name].type).to_pylist()
        if sort in ("colour", "short_text", "positive") and name.startswith("array"):
            have = [None if one is None else elements(one) for one in have]
            rows = [None if one is None else [None if x is None else str(x) for x in one] for one in rows]
        assert all(map(same, have, rows)), f"{name} as {sort}: {have} and not {rows}"


def elements(text: str) -> list[str | None]:
    """An array of an enum or a domain comes back as text."""
    return [None if word == "NULL" else word.strip('"') for word in text.strip("{}").split(",") if word]


def test_years_that_python_does_not_know(server: PostgresServer) -> None:
    ask(server, "CREATE TABLE t (day date, at timestamp)")
    days = [-800_000, 5_000_000]
    rows = pa.record_batch(
        {
            "day": pa.array(days, pa.int32()).cast(pa.date32()),
            "at": pa.array([day * 86_400_000_000 for day in days], pa.int64()).cast(pa.timestamp("us")),
        }
    )
    finish(new_sink(server), prepare(new_sink(server), rows))
    found = ask(server, "SELECT day - date '1970-01-01', extract(epoch from at)::int8 / 86400 FROM t")
    assert found == [(day, day) for day in days]


@pytest.mark.parametrize(
    ("rows", "declared"),
    [
        ({"x": pa.array([2**31 - 2], pa.int32()).cast(pa.date32())}, "date"),
        ({"x": pa.array([-(2**63) + 1], pa.int64()).cast(pa.timestamp("us"))}, "timestamp"),
        ({"x": pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us"))}, "timestamp"),
    ],
)
def test_times_that_the_server_cannot_hold_are_refused_by_column(
    server: PostgresServer, rows: dict[str, pa.Array], declared: str
) -> None:
    ask(server, f"CREATE TABLE t (x {declared})")
    with pytest.raises(PrepareError, match="Column 'x'"):
        prepare(new_sink(server), pa.record_batch(rows))


def test_the_character_nul_is_refused_with_a_way_out(server: PostgresServer) -> None:
    ask(server, "CREATE TABLE t (x text)")
    with pytest.raises(PrepareError, match=r"22021.*regexp_replace"):
        prepare(new_sink(server), pa.record_batch({"x": ["fine", "a\0b"]}))
    assert ask(server, "SELECT count(*) FROM sparkonce_commits") == [(0,)]


@pytest.mark.parametrize(
    ("declared", "text", "words"),
    [
        ("text", b"a\xffb", "22021.*make_valid_utf8"),
        ("jsonb", b'{"a": "\\u0000"}', "22P05.*make the column json"),
    ],
)
def test_other_texts_that_the_server_cannot_hold(
    server: PostgresServer, declared: str, text: bytes, words: str
) -> None:
    ask(server, f"CREATE TABLE t (x {declared})")
    with pytest.raises(PrepareError, match=words):
        prepare(new_sink(server), pa.record_batch({"x": pa.array([text]).view(pa.string())}))


HOUR, MINUTE, SECOND = 3_600_000_000, 60_000_000, 1_000_000
KEPT: list[tuple[str, pa.DataType, int]] = [
    ("interval(0)", pa.duration("us"), SECOND),
    ("interval(3)[]", pa.duration("us"), 1_000),
    ("interval second(0)", pa.duration("us"), SECOND),
    ("interval hour to minute", pa.duration("us"), MINUTE),
    ("interval day to hour", pa.duration("us"), HOUR),
    ("interval hour", pa.duration("us"), HOUR),
    ("timestamptz(3)", pa.timestamp("us", "UTC"), 1_000),
    ("timestamp(0)[]", pa.timestamp("us"), SECOND),
]


def test_what_a_column_keeps_of_times_is_written_and_the_rest_refused(server: PostgresServer) -> None:
    """The server rounds or cuts off without a word."""
    for number, (declared, kind, unit_us) in enumerate(KEPT):
        ask(server, f"CREATE TABLE k{number} (x {declared})")
        sink = new_sink(server, table=f"k{number}")

        def column(*values: int | None, kind: pa.DataType = kind, declared: str = declared) -> pa.RecordBatch:
            found = pa.array(values, pa.int64()).cast(kind)
            return (
                pa.record_batch({"x": pa.ListArray.from_arrays([*range(len(found) + 1)], found)})
                if "[" in declared
                else pa.record_batch({"x": found})
            )

        with pytest.raises(PrepareError, match="Column 'x' has 1 µs of a day"):
            prepare(sink, column(0, 24 * HOUR + 1))
        kept = column(0, -25 * HOUR, 7 * unit_us, None)
        finish(sink, prepare(sink, kept))
        assert ask(server, f"TABLE k{number}") == [(one,) for one in kept.column("x").to_pylist()], declared


@pytest.mark.parametrize("declared", ["interval day", "interval year to month", "interval month[]"])
def test_intervals_without_hours_are_refused_at_start(server: PostgresServer, declared: str) -> None:
    ask(server, f"CREATE TABLE t (x {declared})")
    column = pa.array([1], pa.duration("us"))
    rows = pa.record_batch({"x": pa.ListArray.from_arrays([0, 1], column) if "[" in declared else column})
    with pytest.raises(SchemaError, match="Column 'x' is day-time interval"):
        prepare(new_sink(server), rows)


@pytest.mark.parametrize("declared", ["varchar(3)", "varchar(3)[]"])
def test_spaces_that_a_varchar_would_cut_off_are_refused(server: PostgresServer, declared: str) -> None:
    ask(server, f"CREATE TABLE t (x {declared})")

    def column(*texts: str | None) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array([[text] for text in texts] if "[" in declared else texts)})

    with pytest.raises(PrepareError, match=r"Column 'x'.*varchar\(3\)"):
        prepare(new_sink(server), column("ab", "äb  "))
    with pytest.raises(PrepareError, match="22001"):
        prepare(new_sink(server), column("abcd"))
    finish(new_sink(server), prepare(new_sink(server), column("äöü", " a ", None, "")))
    assert ask(server, "SELECT count(*) FROM t WHERE x::text LIKE '% a %' OR x::text LIKE '%äöü%'") == [(2,)]


def test_what_is_no_uuid_is_refused(server: PostgresServer) -> None:
    ask(server, "CREATE TABLE t (x uuid)")
    with pytest.raises(PrepareError, match="Column 'x' has a text that is no UUID"):
        prepare(new_sink(server), pa.record_batch({"x": [None, str(uuid.uuid4()), "nonsense"]}))


READ: dict[str, list[str]] = {
    "inet": ["10.0.0.1", "::1/64"],
    "cidr": ["10.0.0.0/8"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "time": ["00:00:00", "23:59:59.999999", "24:00:00"],
    "time(3)": ["12:00:00.123000"],
    "timetz": ["12:34:56.789+02"],
    "money": ["1234.50", "-0.01"],
    "bit(4)": ["1010"],
    "varbit(5)": ["101", ""],
    "point": ["(1,2.5)"],
    "tsvector": ["a b", "'x':1A"],
    "int4range": ["[1,2)", "empty", "(,5]"],
    "tstzrange": ["[2024-01-01 00:00:00.123456+00,)"],
    "int4multirange": ["{[1,3),[5,7)}"],
    "name": ["x" * 63],
    "oid": ["4294967295"],
    '"char"': ["x"],
    "regclass": ["pg_class"],
    "jsonpath": ["$.a"],
    "local": ["10.1.1.1"],
    "pair": ["(1,abc)"],
}


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_what_no_type_of_sparks_is_like_is_read_from_text(server: PostgresServer, commit: str) -> None:
    ask(server, "CREATE DOMAIN local AS inet CHECK (value << '10.0.0.0/8'); CREATE TYPE pair AS (a int, b text)")
    columns: dict[str, list[Any]] = {}
    for number, texts in enumerate(READ.values()):
        columns[f"x{number}"] = [*(texts * 3)[:3], None]
        columns[f"xs{number}"] = [texts, [None, texts[0]], [], None]
    declared = [one for kind in READ for one in (kind, f"{kind}[]")]
    ask(server, f"CREATE TABLE t ({', '.join(map(' '.join, zip(columns, declared, strict=True)))})")
    sink = new_sink(server, commit=commit)
    finish(sink, prepare(sink, pa.record_batch({name: pa.array(one) for name, one in columns.items()})))
    for (name, values), kind in zip(columns.items(), declared, strict=True):
        found = ask(server, f"SELECT {name}::text FROM t")  # noqa: S608 - the test's own
        wanted = [ask(server, f"SELECT %s::{'text[]::' if '[' in kind else ''}{kind}::text", one) for one in values]
        assert found == [one for (one,) in wanted], kind


@pytest.mark.parametrize(
    ("declared", "text", "says"),
    [
        ("inet", "10.0.0.300", r"22P02 .*inet: \"…\". Next: Correct such rows"),
        ("inet[]", "nonsense", r"\(inet\) has a text .* 22P02"),
        ("tsvector", "'a", r"42601 .*: \"…\". Next: Correct such rows"),
        ("int4range", "[2,1)", "22000"),
        ("inet", "a\0b", "22021.*regexp_replace"),
        ("time(0)", "12:00:00.5", "'12:00:00.5', of which the server would keep only a part"),
        ("time", "12:00:00.1234567", "only a part"),
        ("bit(4)", "101", "only a part"),
        ("bit(4)", "10101", "only a part"),
        ("money", "1.239", "only a part"),
        ("money", "$1", "22P02"),
        ("name", "x" * 64, "only a part"),
        ('"char"', "xy", "only a part"),
    ],
)
def test_a_text_that_the_server_does_not_keep_is_refused_by_column(
    server: PostgresServer, declared: str, text: str, says: str
) -> None:
    ask(server, f"CREATE TABLE t (id int, x {declared})")
    good, bad = ([None], [text]) if "[" in declared else (None, text)
    rows = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "x": pa.array([good, bad])})
    with pytest.raises(PrepareError, match=f"'x'.*{says}"):
        prepare(new_sink(server), rows)

    sink = new_sink(server, commit="two_phase")
    writer = sink.writer(WriterContext(owner=owner(sink), batch=0, slot=0, copy="1.0.0"))
    writer.begin()
    refused = writer.offer(rows)
    assert list(refused.rows) == [1]
    assert "'x'" in refused.reasons[0]
    fields = writer.prepare()
    writer.close()
    finish(sink, Handle(sink=sink.name, slot=0, rows=1, transaction=transaction_fields(fields)))
    assert ask(server, "SELECT id FROM t") == [(1,)]


@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key_columns": ["x"]}])
def test_texts_are_read_at_weaker_guarantees_too(server: PostgresServer, mode: dict[str, Any]) -> None:
    ask(server, "CREATE TABLE t (x inet PRIMARY KEY)")
    sink = new_sink(server, guarantee=Guarantee.AT_LEAST_ONCE, **mode)
    writer = open_writer(sink, pa.record_batch({"x": ["10.0.0.1", "10.0.0.2"]}))
    writer.write(pa.record_batch({"x": ["10.0.0.3"]}))
    assert writer.prepare() == {}
    writer.close()
    assert ask(server, "SELECT count(*), host(max(x)) FROM t") == [(3, "10.0.0.3")]


@pytest.mark.parametrize(
    ("arrow", "declared", "says"),
    [
        (pa.int64(), "integer", "long"),
        (pa.float64(), "real", "double"),
        (pa.float64(), "numeric", "double"),
        (pa.string(), "integer", "string"),
        (pa.int32(), "inet", "Cast it to string in the query: the server reads inet from text"),
        (pa.string(), "integer[]", "string"),
        (pa.int32(), "text", "int"),
        (pa.decimal128(10, 4), "numeric(10,2)", r"would round it. Next: Cast it to decimal\(10,2\)"),
        (pa.int64(), "numeric(5,-2)", "is long, and .* would round it. Next: Give the column a scale of 0 or more"),
        (pa.list_(pa.int32()), "numeric(5,-2)[]", "is int, and .* would round it"),
        (pa.timestamp("us", "UTC"), "timestamp", "timestamp_ntz into timestamp"),
        (pa.timestamp("us"), "timestamptz", "timestamp_ntz"),
        (pa.struct([("a", pa.int32())]), "jsonb", "to_json"),
        (pa.list_(pa.struct([("a", pa.int32())])), "jsonb", "to_json"),
        (pa.map_(pa.string(), pa.int32()), "jsonb", "to_json"),
        (pa.list_(pa.int32()), "bigint", "array"),
        (pa.list_(pa.list_(pa.int32())), "integer[]", "Column 'x'"),
        (pa.binary(), "text", "binary"),
    ],
)
def test_what_does_not_fit_is_refused_by_column(
    server: PostgresServer, arrow: pa.DataType, declared: str, says: str
) -> None:
    ask(server, f"CREATE TABLE t (x {declared})")
    with pytest.raises(SchemaError, match=r"'x'") as raised:
        new_sink(server).columns(pa.schema([("x", arrow)]))
    raised.match(says)


def test_all_columns_that_do_not_fit_are_named_at_once(server: PostgresServer) -> None:
    ask(
        server,
        "CREATE TABLE t (a int, b int NOT NULL, c int GENERATED ALWAYS AS (a * 2) STORED, "
        "d int GENERATED ALWAYS AS IDENTITY, e int NOT NULL DEFAULT 1)",
    )
    schema = pa.schema([("a", pa.int64()), ("A", pa.int32()), ("c", pa.int32()), ("d", pa.int32())])
    with pytest.raises(SchemaError) as raised:
        new_sink(server).columns(schema)
    for words in ("'a' is long", "no column 'A'", "'c' of table", "'d' of table", r"\['b'\]"):
        raised.match(words)


def test_columns_that_are_left_out_are_the_servers(server: PostgresServer) -> None:
    ask(
        server,
        "CREATE TABLE t (a int, twice int GENERATED ALWAYS AS (a * 2) STORED, n int GENERATED BY DEFAULT AS IDENTITY, "
        "e int NOT NULL DEFAULT 7, o text)",
    )
    handle = prepare(new_sink(server), pa.record_batch({"a": pa.array([5], pa.int32())}))
    finish(new_sink(server), handle)
    assert ask(server, "SELECT * FROM t") == [(5, 10, 1, 7, None)]


@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_names_are_taken_as_they_are(server: PostgresServer, commit: str) -> None:
    schema, table, column = 'My "Schema".x', "tab'le; DROP TABLE t--", 'Ünï "col" %s {}'
    ask(server, sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    ask(
        server,
        sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY)").format(sql.Identifier(schema, table), sql.Identifier(column)),
    )
    try:
        given = new_sink(server, table, schema=schema, commit=commit, prefix="it's \\ %s", name='q"')
        finish(given, prepare(given, pa.record_batch({column: pa.array([1], pa.int32())})))
        assert ask(server, sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))) == [(1,)]
        with psycopg.connect(server.conninfo()) as connection:
            (name,) = connection.execute(
                sql.SQL("SELECT name FROM {}").format(sql.Identifier(schema, "sparkonce_commits"))
            ).fetchone() or ("",)
        assert name.startswith("it's \\ %s.q\".")
    finally:
        ask(server, sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))

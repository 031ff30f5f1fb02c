from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from integration.postgres_scene import new_sink
from one_run import QUERY, finish, open_writer, prepare
from shared_servers import needs_postgres
from sparkonce.errors import PrepareError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, transaction_fields

pytestmark = needs_postgres


HOUR, SECOND = 3_600_000_000, 1_000_000
KEPT: list[tuple[str, pa.DataType, int]] = [
    ("timestamptz(3)", pa.timestamp("us", "UTC"), 1_000),
    ("timestamp(0)[]", pa.timestamp("us"), SECOND),
]


def test_what_a_column_keeps_of_times_is_written_and_the_rest_refused(postgres):
    """The server would round or truncate them silently."""
    for number, (declared, kind, unit_us) in enumerate(KEPT):
        postgres.ask(f"CREATE TABLE k{number} (x {declared})")
        sink = new_sink(postgres, table=f"k{number}")

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
        assert postgres.ask(f"TABLE k{number}") == [(one,) for one in kept.column("x").to_pylist()], declared


@pytest.mark.parametrize("declared", ["varchar(3)", "varchar(3)[]"])
def test_spaces_that_a_varchar_would_cut_off_are_refused(postgres, declared):
    postgres.ask(f"CREATE TABLE t (x {declared})")

    def column(*texts: str | None) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array([[text] for text in texts] if "[" in declared else texts)})

    with pytest.raises(PrepareError, match=r"Column 'x'.*varchar\(3\)"):
        prepare(new_sink(postgres), column("ab", "äb  "))
    with pytest.raises(PrepareError, match="22001"):
        prepare(new_sink(postgres), column("abcd"))
    finish(new_sink(postgres), prepare(new_sink(postgres), column("äöü", " a ", None, "")))
    assert postgres.ask("SELECT count(*) FROM t WHERE x::text LIKE '% a %' OR x::text LIKE '%äöü%'") == [(2,)]


TYPES_LIKE_NO_TYPE_OF_SPARK = {
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
    "name": ["x" * 63],
    "oid": ["4294967295"],
    '"char"': ["x"],
    "regclass": ["pg_class"],
    "jsonpath": ["$.a"],
    "local": ["10.1.1.1"],
    "pair": ["(1,abc)"],
}


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
@pytest.mark.parametrize(
    "read", [TYPES_LIKE_NO_TYPE_OF_SPARK, {"int4multirange": ["{[1,3),[5,7)}"]}], ids=["since_9", "since_14"]
)
def test_what_no_type_of_sparks_is_like_is_read_from_text(postgres, commit, read):
    postgres.ask("CREATE DOMAIN local AS inet CHECK (value << '10.0.0.0/8'); CREATE TYPE pair AS (a int, b text)")
    columns: dict[str, list[Any]] = {}
    for number, texts in enumerate(read.values()):
        columns[f"x{number}"] = [*(texts * 3)[:3], None]
        columns[f"xs{number}"] = [texts, [None, texts[0]], [], None]
    declared = [one for kind in read for one in (kind, f"{kind}[]")]
    postgres.ask(f"CREATE TABLE t ({', '.join(map(' '.join, zip(columns, declared, strict=True)))})")
    sink = new_sink(postgres, commit=commit)
    finish(sink, prepare(sink, pa.record_batch({name: pa.array(one) for name, one in columns.items()})))
    for (name, values), kind in zip(columns.items(), declared, strict=True):
        found = postgres.ask(f"SELECT {name}::text FROM t")  # noqa: S608 - the test's own
        wanted = [postgres.ask(f"SELECT %s::{'text[]::' if '[' in kind else ''}{kind}::text", one) for one in values]
        assert found == [one for (one,) in wanted], kind


@pytest.mark.parametrize(
    ("declared", "text", "says"),
    [
        ("inet", "10.0.0.300", r"22P02 .*inet: \"…\". Next: Correct such rows"),
        ("inet[]", "nonsense", r"\(inet\) has a string .* 22P02"),
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
def test_a_text_that_the_server_does_not_keep_is_refused_by_column(postgres, declared, text, says):
    postgres.ask(f"CREATE TABLE t (id int, x {declared})")
    good, bad = ([None], [text]) if "[" in declared else (None, text)
    rows = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "x": pa.array([good, bad])})
    with pytest.raises(PrepareError, match=f"'x'.*{says}"):
        prepare(new_sink(postgres), rows)

    sink = new_sink(postgres, commit="two_phase")
    writer = open_writer(sink)
    refused = writer.offer(rows)
    assert list(refused.rows) == [1]
    assert "'x'" in refused.reasons[0]
    fields = writer.prepare()
    writer.close()
    finish(sink, Handle(sink=sink.name, slot=0, rows=1, transaction=transaction_fields(fields)))
    assert postgres.ask("SELECT id FROM t") == [(1,)]


@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key_columns": ["x"]}])
def test_texts_are_read_at_weaker_guarantees_too(postgres, mode):
    postgres.ask("CREATE TABLE t (x inet PRIMARY KEY)")
    sink = new_sink(postgres, guarantee=Guarantee.AT_LEAST_ONCE, **mode)
    writer = open_writer(sink, pa.record_batch({"x": ["10.0.0.1", "10.0.0.2"]}))
    writer.write(pa.record_batch({"x": ["10.0.0.3"]}))
    assert writer.prepare() == {}
    writer.close()
    assert postgres.ask("SELECT count(*), host(max(x)) FROM t") == [(3, "10.0.0.3")]


@pytest.mark.parametrize(
    ("arrow", "declared", "says"),
    [
        (pa.int64(), "integer", "bigint"),
        (pa.float64(), "real", "double"),
        (pa.duration("us"), "interval", "'90 minutes'"),
        (pa.float64(), "numeric", "double"),
        (pa.string(), "integer", "string"),
        (pa.int32(), "inet", "Cast it to string in the query: the server reads inet from text"),
        (pa.string(), "integer[]", "string"),
        (pa.int32(), "text", "int"),
        (pa.decimal128(10, 4), "numeric(10,2)", r"would round it. Next: Cast it to decimal\(10,2\)"),
        pytest.param(
            pa.int64(),
            "numeric(5,-2)",
            "is bigint, and .* would round it. Next: Give the column a scale of 0 or more",
            id="rounded-since-15",
        ),
        pytest.param(pa.list_(pa.int32()), "numeric(5,-2)[]", "is int, and .* would round it", id="lists-since-15"),
        (pa.timestamp("us", "UTC"), "timestamp", "timestamp_ntz into timestamp"),
        (pa.timestamp("us"), "timestamptz", "timestamp_ntz"),
        (pa.struct([("a", pa.int32())]), "jsonb", "to_json"),
        (pa.list_(pa.struct([("a", pa.int32())])), "jsonb", "to_json"),
        (pa.map_(pa.string(), pa.int32()), "jsonb", "to_json"),
        (pa.list_(pa.int32()), "bigint", "array"),
        (pa.list_(pa.list_(pa.int32())), "integer[]", r"array<array<int>>, and in the table integer\[\]"),
        (pa.binary(), "text", "binary"),
    ],
)
def test_what_does_not_fit_is_refused_by_column(postgres, arrow, declared, says):
    postgres.ask(f"CREATE TABLE t (x {declared})")
    given = new_sink(postgres)
    given.columns(pa.schema([("x", arrow)]))
    with pytest.raises(SchemaError, match=r"'x'") as raised:
        given.preflight(QUERY, None)
    raised.match(says)


def test_all_columns_that_do_not_fit_are_named_at_once(postgres):
    postgres.ask(
        "CREATE TABLE t (a int, b int NOT NULL, c int GENERATED ALWAYS AS (a * 2) STORED, "
        "d int GENERATED ALWAYS AS IDENTITY, e int NOT NULL DEFAULT 1)"
    )
    schema = pa.schema([("a", pa.int64()), ("A", pa.int32()), ("c", pa.int32()), ("d", pa.int32())])
    given = new_sink(postgres)
    given.columns(schema)
    with pytest.raises(SchemaError) as raised:
        given.preflight(QUERY, None)
    for words in ("'a' is bigint", "no column 'A'", "'c' of table", "'d' of table", r"\['b'\]"):
        raised.match(words)


def test_columns_that_are_left_out_are_the_servers(postgres):
    postgres.ask(
        "CREATE TABLE t (a int, twice int GENERATED ALWAYS AS (a * 2) STORED, n int GENERATED BY DEFAULT AS IDENTITY, "
        "e int NOT NULL DEFAULT 7, o text)"
    )
    handle = prepare(new_sink(postgres), pa.record_batch({"a": pa.array([5], pa.int32())}))
    finish(new_sink(postgres), handle)
    assert postgres.ask("SELECT * FROM t") == [(5, 10, 1, 7, None)]

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from sparkonce import FilesSink, KafkaSink
from sparkonce.dead_letters import DEAD_LETTER_SCHEMA, dead_letter_columns, to_dead_letters
from sparkonce.errors import SchemaError
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks._shared.arrow import offered
from sparkonce.sinks.kafka.rows import TopicRules, refused_rows

CONTEXT = WriterContext(owner=Owner(query="0" * 12, token=Token(0, "0" * 8)), batch=7, slot=2, copy="1.2.3")
INSTANT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


def test_a_row_is_told_as_json():
    rows = pa.RecordBatch.from_pylist(
        [
            {
                "number": 1,
                "data": b"\x00\xff",
                "price": Decimal("1.20"),
                "at": INSTANT,
                "rate": float("nan"),
                "inner": {"list": [1, None]},
                "text": "a\x00b",
            }
        ]
    )
    told = to_dead_letters(
        rows, ["Too dear."], sink="shop", context=CONTEXT, columns=DEAD_LETTER_SCHEMA.names
    ).to_pylist()
    (dead_letter,) = told
    assert json.loads(dead_letter.pop("row")) == {
        "number": 1,
        "data": "AP8=",
        "price": "1.20",
        "at": "2026-01-02T03:04:05+00:00",
        "rate": "nan",
        "inner": {"list": [1, None]},
        "text": "a\x00b",
    }
    assert dead_letter == {"sink": "shop", "batch": 7, "slot": 2, "reason": "Too dear."}


def test_values_that_python_does_not_have_are_told():
    """They are exactly the rows that a system rejects."""

    def _not_utf8() -> pa.Array:
        raw = pa.array([b"ok", b"\xff\xfe"])
        return pa.Array.from_buffers(pa.string(), 2, raw.buffers())

    rows = pa.record_batch(
        {
            "text": _not_utf8(),
            "day": pa.array([0, 4_000_000], pa.int32()).cast(pa.date32()),
            "list": pa.array([[0], [4_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        }
    )
    told = to_dead_letters(
        rows, ["Why.", "Why."], sink="shop", context=CONTEXT, columns=DEAD_LETTER_SCHEMA.names
    ).to_pylist()
    first, second = (json.loads(one["row"]) for one in told)
    assert first["text"] == "ok"
    assert second["text"] == "\\xff\\xfe"
    assert second["day"] == "+12921-08-18"
    assert second["list"] == ["+12921-08-18"]


def test_a_sink_of_messages_takes_a_letter_as_a_message():
    sink = KafkaSink({"bootstrap.servers": "nowhere:1"}, topic="dead")
    assert dead_letter_columns(sink) == ("key", "value")
    rows = pa.RecordBatch.from_pylist([{"number": 1}])
    told = to_dead_letters(rows, ["Odd."], sink="shop", context=CONTEXT, columns=("key", "value")).to_pylist()
    assert told[0]["key"] == "shop"
    assert json.loads(told[0]["value"]) == {
        "sink": "shop",
        "batch": 7,
        "slot": 2,
        "reason": "Odd.",
        "row": {"number": 1},
    }


def test_the_columns_that_sinks_take_of_a_letter(tmp_path):
    assert dead_letter_columns(FilesSink(str(tmp_path))) == tuple(DEAD_LETTER_SCHEMA.names)

    class _Taking(FilesSink):
        def __init__(self) -> None:
            super().__init__("/nowhere")

        def columns(self, schema: pa.Schema) -> list[str]:
            raise SchemaError(f"Nothing takes {len(schema)} columns.", next_step="Stop.")

    with pytest.raises(SchemaError, match="Nothing takes 5"):
        dead_letter_columns(_Taking())


def test_kafka_refuses_what_it_cannot_store():
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch(
        {
            "value": pa.array([b"ok", b"x" * 100, b"ok", b"ok", b"ok", b"ok"]),
            "topic": pa.array(["t", "t", None, "t", "t", "t"]),
            "timestamp": pa.array(
                [None, None, None, INSTANT.replace(year=1969), None, INSTANT], pa.timestamp("us", "UTC")
            ),
            "headers": pa.array(
                [None, [], None, None, [{"key": None, "value": b""}], [{"key": "k" * 90, "value": None}]], header
            ),
        }
    )
    found = refused_rows(rows, None, 180)
    assert list(found.rows) == [1, 2, 3, 4, 5]
    too_large = "bytes without compression, and max.message.bytes is 180"
    for reason, words in zip(
        found.reasons, [too_large, "'topic' is null", "'timestamp'", "'headers'", too_large], strict=True
    ):
        assert words in reason
    sliced = refused_rows(rows.slice(3), None, 180)
    assert list(sliced.rows) == [0, 1, 2]
    assert not refused_rows(rows.slice(0, 1), None, 180).rows


def test_each_topic_that_rows_name_has_its_own_limit():
    rows = pa.record_batch(
        {"topic": ["small", "large", "unknown", None, "small", ""], "value": [b"x" * 100] * 4 + [b"x"] * 2}
    )
    found = refused_rows(rows, None, 1000, {"small": TopicRules(most_bytes=150), "large": TopicRules(most_bytes=2000)})
    assert list(found.rows) == [0, 3, 5]
    assert "'topic' is empty" in found.reasons[2]
    assert "max.message.bytes is 150" in found.reasons[0]
    assert "'topic' is null" in found.reasons[1]
    assert list(refused_rows(rows.slice(1, 4), None, 150, {"large": TopicRules(most_bytes=2000)}).rows) == [0, 1, 2]


@pytest.mark.parametrize("bad", [set(), {0}, {9}, {3, 4}, {0, 9}, set(range(10))])
def test_halves_find_every_refused_row_and_write_the_others_once(bad):
    rows, taken = pa.record_batch({"number": list(range(10))}), []

    def attempt(part: pa.RecordBatch) -> str:
        numbers = part["number"].to_pylist()
        if wrong := [one for one in numbers if one in bad]:
            return f"{wrong[0]} is refused."
        taken.extend(numbers)
        return ""

    found = offered(rows, attempt)
    assert set(found.rows) == bad
    assert list(found.reasons) == [f"{one} is refused." for one in sorted(bad)]
    assert taken == [one for one in range(10) if one not in bad]


def test_no_rows_are_not_offered():
    nothing = pa.record_batch({"number": pa.array([], pa.int64())})
    assert not offered(nothing, lambda _: "It is never asked.").rows

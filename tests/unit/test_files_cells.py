from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.sinks.files.formats import choose, csv_header, csv_lines, json_lines, text_lines

UTC = dt.timezone.utc
STRINGS = ['a"b', "back\\slash", "tab\tline\nend\r", "".join(map(chr, range(32))), "é😀\u2028", "", None, "plain"]


def parsed(column: pa.Array) -> list[Any]:
    rows = pa.record_batch({"x": column})
    text = bytes(json_lines(rows)).decode()
    assert text.count("\n") == len(column), "one line a row, whatever is in it"
    assert list(json.loads(line)) == ["x"] if (line := text.split("\n")[0]) else not len(column)
    return [json.loads(line, parse_float=str)["x"] for line in text.split("\n")[:-1]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_are_base64(kind):
    values = [bytes(range(size)) for size in range(20)] + [None, b"", b"\xff" * 301]
    wanted = [None if one is None else base64.b64encode(one).decode() for one in values]
    assert parsed(pa.array(values, kind)) == wanted
    assert parsed(pa.array(values, kind).slice(5, 17)) == wanted[5:22]
    assert parsed(pa.array([], kind)) == []


def test_csv_tells_null_from_an_empty_string():
    rows = pa.record_batch(
        {
            "text": STRINGS,
            "n": pa.array([1, None] * 4, pa.int16()),
            "f": pa.array([math.nan, 1.0] * 4),
            "at": pa.array([0, None] * 4, pa.timestamp("us", "UTC")),
        }
    )
    content = (csv_header(rows.schema.names, ";") + bytes(csv_lines(rows, ";"))).decode()
    read = list(csv.reader(io.StringIO(content, newline=""), delimiter=";"))
    assert read[0] == ["text", "n", "f", "at"]
    assert [row[0] for row in read[1:]] == [one or "" for one in STRINGS]
    assert [row[1:] for row in read[1:3]] == [["1", "NaN", "1970-01-01T00:00:00.000000Z"], ["", "1.0", ""]]
    lines = bytes(csv_lines(rows.slice(5, 2), ";")).decode().split("\n")
    assert lines[0].startswith('"";'), "an empty string is quoted"
    assert lines[1].startswith(";"), "a null is nothing"

    rows = pa.record_batch({"x": [1, 2, 3], "b": pa.array([b"", None, b"a"])})
    assert bytes(csv_lines(rows, ",")) == b'1,""\n2,\n3,"YQ=="\n'

    assert bytes(csv_lines(pa.record_batch({"b": pa.array([b""])}), ",")) == b'""\n'
    with pytest.raises(PrepareError, match=r"'n'.*null.*empty line"):
        csv_lines(pa.record_batch({"n": pa.array([1, None])}), ",")

    assert csv_header(['a"b', "c,d"], ",") == b'"a""b","c,d"\n'

    rows = pa.record_batch({"value": ["one", "", "é"]})
    assert bytes(text_lines(rows)).decode() == "one\n\né\n"


@pytest.mark.parametrize("delimiter", [".", "-", "+", ":", "7", "T", "e", '"', "\0", ";;"])
def test_a_delimiter_that_stands_in_values_without_quotes_is_refused(delimiter):
    with pytest.raises(ConfigurationError, match="delimiter"):
        choose("csv", None, {"delimiter": delimiter})


@pytest.mark.parametrize(("value", "said"), [("a\nb", "line break"), ("a\r", "line break"), (None, "null")])
def test_text_that_would_not_be_read_back_is_refused(value, said):
    with pytest.raises(PrepareError, match=f"'value'.*{said}"):
        text_lines(pa.record_batch({"value": pa.array(["fine", value])}))

"""Tests the example in docs/own-sink.md with its own test file, and the page itself."""

import re
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from own_sink.sqlite_sink import SqliteSink
from own_sink.test_sqlite_sink import TestSqliteSink as Suite
from sparkonce.sink import Handle, Outcome, Owner, Token, WriterContext, transaction_fields

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_sink"


class TestOwnSink(Suite):
    pass


@pytest.mark.parametrize("file", ["sqlite_sink.py", "test_sqlite_sink.py"])
def test_the_page_shows_the_code_as_it_is(file):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-sink.md").read_text(), re.DOTALL)
    assert (EXAMPLE / file).read_text() in blocks


def test_the_example_needs_one_import():
    found = {line for line in (EXAMPLE / "sqlite_sink.py").read_text().splitlines() if "sparkonce" in line}
    assert found == {"from sparkonce.sink import ("}


def test_markers_of_long_ago_are_deleted(tmp_path):
    path = str(tmp_path / "target.db")
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (number INTEGER)")
    database.close()
    sink = SqliteSink(path, "orders")
    owner = Owner(query="0" * 12, token=Token(1, "0" * 8), facts=sink.preflight("0" * 12, None))
    committer = sink.committer()
    for batch in (0, 1, 201):
        writer = sink.writer(WriterContext(owner=owner, batch=batch, slot=0, copy="1"))
        writer.begin()
        writer.write(pa.record_batch({"number": [batch]}))
        handle = Handle(sink=sink.name, slot=0, transaction=transaction_fields(writer.prepare()))
        assert committer.commit([handle])[0].outcome is Outcome.COMMITTED
        committer.conclude(batch, [handle, Handle(sink=sink.name, slot=1)])
    assert len(committer.list_traces("0" * 12, owner.facts)) == 2

"""The example of docs/own-source.md, in a query."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from own_source import lines_source
from spark.in_process import travelling
from sparkonce import ExactlyOnce, FilesSink, explain, source
from sparkonce.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture
def lines(spark, tmp_path, monkeypatch) -> Iterator[DataFrame]:
    entry = EntryPoint("lines", "own_source.lines_source:Lines", source.GROUP)
    monkeypatch.setattr(source, "entry_points", lambda group: [entry] if group == source.GROUP else [])
    source._entries.cache_clear()
    with travelling(lines_source):
        spark.dataSource.register(lines_source.LinesDataSource)
        yield spark.readStream.format("lines").option("path", str(tmp_path / "lines.txt")).load()
    source._entries.cache_clear()


def test_a_query_reads_it_exactly_once_and_is_told_what_only_the_source_knows(lines, tmp_path):
    file, sink = tmp_path / "lines.txt", FilesSink(tmp_path / "out")
    once = ExactlyOnce(sink, checkpoint=tmp_path / "checkpoint", rows_per_slot=1000, display=False)
    with pytest.raises(PreflightError, match=f"There is no file {file}, which this query reads"):
        once.start(lines, trigger={"availableNow": True})

    for text in ("one\ntwo\n", "three\n"):
        with file.open("a") as end:
            end.write(text)
        assert once.start(lines, trigger={"availableNow": True}).awaitTermination(120)
    written = lines.sparkSession.read.parquet(str(tmp_path / "out"))
    assert sorted(map(tuple, written.collect())) == [(0, "one"), (1, "two"), (2, "three")]

    told = explain(lines, once).part("source")
    assert told.name == f"lines: {file}"
    assert told.conditions == ("the file is only appended to, in whole lines, and never rotated",)


def test_the_page_shows_the_code_as_it_is():
    root = Path(__file__).parents[2]
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "own-source.md").read_text(), re.DOTALL)
    assert (root / "examples" / "own_source" / "lines_source.py").read_text() in blocks

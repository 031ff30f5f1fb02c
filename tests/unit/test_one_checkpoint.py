"""A query has one checkpoint: a sink that keeps rows in it is that query's, and its folder must be found again."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkonce import DeltaSink, ExactlyOnce, IcebergSink, WriteAheadSink
from sparkonce.errors import ConfigurationError
from sparkonce.testing.forwarding import ForwardingSink
from sparkonce.write_ahead import Applies

SINKS: dict[str, Callable[[], WriteAheadSink]] = {
    "write-ahead": lambda: WriteAheadSink(print, applies=Applies.NEITHER),
    "delta": lambda: DeltaSink("/tmp/table"),  # noqa: S108 - nothing is there
    "iceberg": lambda: IcebergSink("catalog.db.table"),
}


@pytest.mark.parametrize("make", SINKS.values(), ids=SINKS)
def test_a_second_query_is_refused(tmp_path: Path, make: Callable[[], WriteAheadSink]) -> None:
    sink = make()
    ExactlyOnce(sink, checkpoint=str(tmp_path / "one"))
    kept = sink.folder()
    with pytest.raises(ConfigurationError, match=r"/two'.*/one'") as refused:
        ExactlyOnce(sink, checkpoint=str(tmp_path / "two"))
    assert refused.value.next_step == "Make a sink object for each query."
    assert (sink.folder().root, sink.folder().ledger.root) == (kept.root, kept.ledger.root)
    ExactlyOnce(make(), checkpoint=str(tmp_path / "two"))


def test_also_where_the_rows_are_elsewhere(tmp_path: Path) -> None:
    """The notes are in the checkpoint all the same."""
    sink = WriteAheadSink(print, applies=Applies.NEITHER, folder=tmp_path / "rows")
    ExactlyOnce(sink, checkpoint=str(tmp_path / "one"))
    with pytest.raises(ConfigurationError, match="/one'"):
        ExactlyOnce(sink, checkpoint=str(tmp_path / "two"))


def test_also_behind_another_sink(tmp_path: Path) -> None:
    sink = WriteAheadSink(print, applies=Applies.NEITHER)
    ExactlyOnce(ForwardingSink(sink), checkpoint=str(tmp_path / "one"))
    with pytest.raises(ConfigurationError, match="/one'"):
        ExactlyOnce(ForwardingSink(sink), checkpoint=str(tmp_path / "two"))


def test_the_same_checkpoint_under_any_of_its_names_is_taken_again(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    sink = pickle.loads(pickle.dumps(WriteAheadSink(print, applies=Applies.NEITHER)))  # noqa: S301 - from this line
    for name in ("one", "one/", "link", "../" + tmp_path.name + "/one"):
        ExactlyOnce(sink, checkpoint=f"{tmp_path}/{name}")
    ExactlyOnce(sink, checkpoint=f"file://{tmp_path}/one")

"""A query has one checkpoint. A sink that keeps rows in it belongs to that query, and must find the folder again."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from plain_store import PlainStore
from sparkonce import DeltaSink, ExactlyOnce, IcebergSink, WriteAheadSink
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import Applies
from sparkonce_lab.forwarding import ForwardingSink

SINKS: dict[str, Callable[[], WriteAheadSink]] = {
    "write-ahead": lambda: WriteAheadSink(print, applies=Applies.NEITHER),
    "delta": lambda: DeltaSink("/tmp/table"),  # noqa: S108 - nothing is there
    "iceberg": lambda: IcebergSink("catalog.db.table"),
}


@pytest.mark.parametrize("make", SINKS.values(), ids=SINKS)
@pytest.mark.parametrize("kind", [LocalFiles, PlainStore])
def test_a_second_query_is_refused(tmp_path, make, kind):
    sink = make()
    sink.use_checkpoint(kind(tmp_path / "one"))
    kept = places(sink)
    assert all(f"{tmp_path}/one/" in place for place in kept)
    with pytest.raises(ConfigurationError, match=r"/two'.*/one'") as refused:
        sink.use_checkpoint(kind(tmp_path / "two"))
    assert refused.value.next_step == "Create a sink object for each query."
    assert places(sink) == kept
    make().use_checkpoint(kind(tmp_path / "two"))


def places(sink: WriteAheadSink) -> tuple[str, str]:
    return sink.folder().location, sink.folder().ledger.files.location


def test_also_where_the_rows_are_elsewhere(tmp_path):
    """The notes are still in the checkpoint."""
    sink = WriteAheadSink(print, applies=Applies.NEITHER, folder=tmp_path / "rows")
    sink.use_checkpoint(PlainStore(tmp_path / "one"))
    assert places(sink) == (
        f"{tmp_path}/rows/write-ahead",
        f"plain:{tmp_path}/one/sparkonce-write-ahead/write-ahead/ledger",
    )
    with pytest.raises(ConfigurationError, match="/one'"):
        sink.use_checkpoint(PlainStore(tmp_path / "two"))

    sink = WriteAheadSink(print, applies=Applies.NEITHER)
    ForwardingSink(sink).use_checkpoint(LocalFiles(tmp_path / "one"))
    with pytest.raises(ConfigurationError, match="/one'"):
        ForwardingSink(sink).use_checkpoint(LocalFiles(tmp_path / "two"))


def test_the_same_checkpoint_under_any_of_its_names_is_taken_again(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    sink = WriteAheadSink(print, applies=Applies.NEITHER)
    sink.use_checkpoint(LocalFiles(tmp_path / "one"))
    sink = pickle.loads(pickle.dumps(sink))  # noqa: S301 - from this line
    for name in ("one", "link", "../" + tmp_path.name + "/one"):
        sink.use_checkpoint(LocalFiles(tmp_path / name))


def test_a_store_that_workers_do_not_reach_is_refused_unless_the_rows_are_elsewhere(tmp_path):
    class OfTheDriver(PlainStore):
        def for_workers(self) -> CheckpointFiles:
            raise ConfigurationError("A worker has no JVM.")

        def __reduce__(self) -> str:
            raise TypeError("It holds a JVM.")

    with pytest.raises(ConfigurationError, match="no JVM"):
        WriteAheadSink(print, applies=Applies.NEITHER).use_checkpoint(OfTheDriver(tmp_path))
    elsewhere = WriteAheadSink(print, applies=Applies.NEITHER, folder=tmp_path / "rows")
    elsewhere.use_checkpoint(OfTheDriver(tmp_path))
    pickle.dumps(elsewhere)


def test_a_folder_of_rows_that_cannot_be_opened_is_called_by_its_own_setting():
    def open_folder(url: str) -> CheckpointFiles:
        raise ConfigurationError(f"checkpoint={url!r} cannot be written to.", setting="checkpoint")

    with pytest.raises(ConfigurationError, match=r"^folder='s3a://b/rows' cannot be written to") as refused:
        WriteAheadSink(print, applies=Applies.NEITHER, folder="s3a://b/rows").use_folders(open_folder)
    assert refused.value.details == {"setting": "folder"}


def test_a_path_that_depends_on_the_working_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (str(tmp_path / "one"), f"file:{tmp_path}/one"):
        ExactlyOnce(WriteAheadSink(print, applies=Applies.NEITHER), checkpoint=given)
    with pytest.raises(ConfigurationError, match="'rel/one' is relative to this process's working folder") as refused:
        ExactlyOnce(WriteAheadSink(print, applies=Applies.NEITHER), checkpoint="rel/one")
    assert str(tmp_path / "rel" / "one") in str(refused.value.next_step)

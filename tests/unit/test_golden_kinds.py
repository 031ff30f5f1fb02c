"""Today's code reads, and writes alike, what the golden query does not write: see `golden.kinds`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from golden import kinds
from golden.kept import CHANGED, SHORT
from golden.kinds import BATCH, BEGUN, KINDS, PARTITIONS, SINKS, TOKEN, entry, facts, handles
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import codec
from sparkonce.protocol.records import Amend, Claim, Commit, Void
from sparkonce.protocol.view import LogView
from sparkonce.sinks.rabbitmq import preflight
from sparkonce.sinks.rabbitmq.queue_sink import RabbitMQQueueSink
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.sinks.rabbitmq.sink import RabbitMQStreamSink
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import RowsState
from sparkonce.sinks.write_ahead.ledger import Group, Ledger
from sparkonce.sinks.write_ahead.sink import FOLDER, LEDGER, WriteAheadSink
from sparkonce.sinks.write_ahead.stored import StoredFolder
from sparkonce.sources.rabbitmq.places import StreamRange, ranges_of
from sparkonce.sources.rabbitmq.queue.progress import Progress
from sparkonce.spark.pravega import sink as pravega_sink
from sparkonce.spark.pravega.notes import TransactionNotes
from sparkonce.watch.timeline import TimelineReader
from tidy.sources import SOURCE

V1 = KINDS / "v1"
SERVER = RabbitMQ(host="127.0.0.1")


def floor(number: int) -> DecisionLog:
    return DecisionLog(LocalLogStore(V1 / f"floor-{number}"))


def copied(tmp_path: Path) -> Path:
    shutil.copytree(V1, tmp_path / "v1")
    for sink in SINKS:
        root = tmp_path / "v1" / "checkpoint" / FOLDER / sink
        for folder in ("open", "prepared", "started", "done", "discarded", f"{LEDGER}/begun", f"{LEDGER}/forgotten"):
            (root / folder).mkdir(parents=True, exist_ok=True)
    return tmp_path / "v1"


def said() -> Any:
    return json.loads((V1 / "said.json").read_text())


# --- the decision log ------------------------------------------------------------------------------------------------


def test_everything_is_written_in_the_same_bytes(tmp_path: Path) -> None:
    kinds.write(tmp_path / "v1")
    found, wanted = (
        {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "v1", V1)
    )
    assert found == wanted, CHANGED.format(version="kinds/v1")


def test_every_kind_of_record_is_read() -> None:
    paths = sorted((V1 / "log" / "sparkonce" / "records").iterdir())
    found = [codec.decode_record(path.read_bytes()) for path in paths]
    assert [type(one) for one in found] == [Claim, Commit, Void, Amend]
    assert {type(one) for one in found} == set(codec._KINDS)
    claim, _, void, _ = found
    assert isinstance(claim, Claim)
    assert isinstance(void, Void)
    assert claim.sources == (("orders", "0aa23acf-e793-429e-99f0-8ce8e8f7e89d"),)
    assert claim.sinks == facts()
    assert void.handles == handles()
    view = DecisionLog(LocalLogStore(V1 / "log")).read(LogView())
    assert [(one.position, one.batch, one.void) for one in view.decisions] == [(3, BATCH, ())]


def test_every_format_of_a_record_and_a_floor_has_a_golden_file() -> None:
    found = {
        kind: {int(path.read_bytes().split()[2]) for path in V1.parents[1].rglob(f"{kind}s/*")}
        for kind in codec.FORMATS
    }
    assert found == {kind: set(range(1, newest + 1)) for kind, newest in codec.FORMATS.items()}


def test_every_format_of_a_floor_is_read() -> None:
    views = [floor(number).read(LogView()) for number in (1, 2, 3)]
    assert [[run.token for run in view.runs] for view in views] == [[TOKEN]] * 3
    decided = [(one.position, one.void) for view in views for one in view.decisions]
    assert decided == [(1, ()), (2, (("kafka", 1),))]


# --- rows that wait --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", SINKS)
def test_notes_of_what_was_begun_and_of_what_was_given_up_are_read(sink: str, tmp_path: Path) -> None:
    ledger = Ledger(LocalFiles(copied(tmp_path) / "checkpoint" / FOLDER / sink / LEDGER))
    begun = Group(entries=[entry(sink, 0), entry(sink, 1)], is_lost=False)
    assert ledger.groups(SHORT, BATCH) == [begun, Group(entries=[entry(sink, 2)], is_lost=True)]
    (first, second) = [one for one in handles() if one.sink == sink]
    assert [Entry.of_handle(first), Entry.of_handle(second)] == begun.entries


def test_the_note_of_a_pravega_transaction_is_read(tmp_path: Path) -> None:
    notes = TransactionNotes(LocalFiles(copied(tmp_path) / "checkpoint" / FOLDER / "pravega" / LEDGER))
    assert notes.last(entry("pravega", 0).name) == (1, BEGUN)


def test_rows_on_an_object_store_have_their_fate(tmp_path: Path) -> None:
    root = copied(tmp_path) / "stored"
    (root / RowsState.DONE.value).mkdir(exist_ok=True)
    stored = StoredFolder(LocalFiles(root), Ledger(LocalFiles(root / LEDGER)))
    names = [entry("streams", slot).name for slot in range(3)]
    assert [stored.find(name) for name in names] == [RowsState.STARTED, None, RowsState.PREPARED]
    assert stored.take(names[2])
    (root / "fate" / str(names[2])).write_bytes(b"moved")
    with pytest.raises(OSError, match="is damaged, or of another version: b'moved'"):
        stored.find(names[2])


def test_the_newest_batches_and_events_are_read(tmp_path: Path) -> None:
    shutil.copytree(V1 / "timeline", tmp_path / "sparkonce" / "timeline")
    assert TimelineReader(LocalFiles(tmp_path)).read() == [kinds.timeline()]


# --- RabbitMQ and Pravega --------------------------------------------------------------------------------------------


def sinks() -> dict[str, WriteAheadSink]:
    return {
        "pravega": pravega_sink.PravegaSink("tcp://127.0.0.1:9090", scope="shop", stream="orders"),
        "queue": RabbitMQQueueSink(SERVER, exchange="orders", name="queue"),
        "streams": RabbitMQStreamSink(SERVER, stream="orders", name="streams"),
        "super": RabbitMQStreamSink(SERVER, super_stream="invoices", route_by="key", name="super"),
    }


@pytest.mark.parametrize("name", SINKS)
def test_facts_are_recorded_alike(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_stream", lambda *_: 1_048_576)
    monkeypatch.setattr(preflight, "partitions_of", lambda *_: list(PARTITIONS))
    monkeypatch.setattr("sparkonce.sinks.rabbitmq.queue_publisher.check_exchange", lambda *_: None)
    monkeypatch.setattr(pravega_sink.PravegaSink, "_opened", lambda _: SimpleNamespace(exists=lambda: True))
    sink = sinks()[name]
    sink.use_checkpoint(LocalFiles(copied(tmp_path) / "checkpoint"))
    recorded = dict(dict(facts())[name])
    assert sink.preflight(SHORT, recorded) == recorded, CHANGED.format(version="kinds/v1")


def test_rows_of_a_stream_have_the_publishing_ids_of_then(tmp_path: Path) -> None:
    checkpoint = LocalFiles(copied(tmp_path) / "checkpoint")
    found = {}
    for name in ("streams", "super"):
        sink = sinks()[name]
        sink.use_checkpoint(checkpoint)
        committer: Any = sink.committer()
        ids, begun = committer._learn([one for one in handles() if one.sink == name])
        assert begun == {entry(name, 0).name, entry(name, 1).name}
        found[name] = ids[entry(name, 0).name]
    first, last = said()["publishing ids"][f"{BATCH}.0"]
    assert {
        name: {stream: (one.first, one.last) for stream, one in streams.items()} for name, streams in found.items()
    } == {
        "streams": {"orders": (first, last)},
        "super": {"invoices-0": (first, first + 5), "invoices-1": (first, first + 7)},
    }


def test_a_query_publishes_under_the_name_of_then() -> None:
    """The stream remembers the highest publishing id of each name."""
    sink: Any = sinks()["streams"]
    assert sink._publisher_name(SHORT) == f"sparkonce.{SHORT}.streams"


# --- positions of sources --------------------------------------------------------------------------------------------


def test_positions_in_streams_are_read() -> None:
    end = said()["read_rabbitmq_stream"]
    (one,) = ranges_of({}, end)
    wanted = StreamRange(stream="orders", start=3, end=7, before=None, last=(5, end["orders"]["at"]))
    assert one == wanted


def test_positions_in_a_queue_are_read(tmp_path: Path) -> None:
    found = said()["read_rabbitmq_queue"]
    progress = Progress(LocalFiles(tmp_path), found["queue"])
    assert progress._next(json.dumps(found)) == found["next"] == 3


def test_positions_in_a_pravega_stream_have_the_names_that_the_source_reads() -> None:
    """The source is of Java: `spark/test_read_pravega.py` runs it."""
    java = (SOURCE / "spark" / "pravega" / "java" / "Cut.java").read_text()
    read, written = set(re.findall(r'read\.get\("(\w+)"\)', java)), set(re.findall(r'\\"(\w+)\\":', java))
    assert read == written == set(said()["read_pravega"])

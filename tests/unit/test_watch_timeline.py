"""The timeline in a checkpoint: written in the background, bounded, and read by others while it is written."""

from __future__ import annotations

import errno
import json
import logging
import threading
from typing import Any

import pytest

from eventually import eventually
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Phase, State
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.watch import timeline
from sparkonce.watch.figures import Figures, WatchedBatch
from sparkonce.watch.timeline import TimelineReader, TimelineSegment, TimelineWriter
from unit.test_watch_figures import CLAIM, QUERY, Run


def figures_of(token: Token | None, spark_run: str = "r1") -> Figures:
    made, run = Figures(), Run()
    run.state = State(claim=CLAIM, token=token)
    made.begin_run(QUERY, spark_run, run)
    return made


def batch(number: int) -> WatchedBatch:
    return WatchedBatch(
        batch=number,
        rows={"orders": 5},
        transactions=2,
        recovered=False,
        healed=0,
        began_ms=1_000 * number,
        phases=(("writing", 10), ("deciding", 3)),
    )


def write(files: CheckpointFiles, token: Token, batches: range) -> None:
    figures = figures_of(token)
    writer = TimelineWriter(files, figures, "r1", every_s=60.0)
    for number in batches:
        writer.add(batch(number))
    figures.enter(Phase.FINISHING, batches.stop)
    writer.tell()
    writer.close()


@pytest.fixture
def files(tmp_path, monkeypatch) -> LocalFiles:
    monkeypatch.setattr(timeline, "_CLOSED_WITHIN_S", 60.0)  # on a busy disk, a write may exceed a run's normal wait
    return LocalFiles(tmp_path)


def numbers(segments: Any) -> list[int]:
    return [one.batch for segment in segments for one in segment.batches]


def test_it_is_read_as_it_was_written(files):
    write(files, Token(7, "ab12cd34"), range(3))
    (segment,) = TimelineReader(files).read()
    assert [one.batch for one in segment.batches] == [0, 1, 2]
    assert segment.batches[1].took_ms == 13
    assert (segment.run, segment.query, segment.spark_run) == ("7-ab12cd34", QUERY, "r1")
    assert (segment.now.batch, segment.now.phase) == (3, "finishing")
    assert segment.timeout_ms == {"orders": 900_000}
    assert [one.kind for one in segment.events] == ["started"]

    write(files, Token(7, "ab12cd34"), range(2))
    folder = files.folder / "sparkonce" / "timeline"
    (kept,) = folder.iterdir()
    plain = json.loads(kept.read_bytes())
    for number, text in enumerate(
        [
            *(
                "",
                "[]",
                json.dumps({**plain, "format": 2}),
                json.dumps({**plain, "now": {}}),
                json.dumps({"format": 1}),
            ),
            json.dumps({**plain, "batches": [{**plain["batches"][0], "phases": None}]}),
        ]
    ):
        (folder / f"{number:020d}-00000000.000000.json").write_text(text)
    assert TimelineSegment.decoded(kept.read_bytes()) is not None
    assert numbers(TimelineReader(files).read()) == [0, 1]


def test_the_newest_batches_are_kept_over_all_runs(files, monkeypatch):
    monkeypatch.setattr(timeline, "BATCHES_A_SEGMENT", 10)
    monkeypatch.setattr(timeline, "SEGMENTS_KEPT", 4)
    write(files, Token(7, "ffffffff"), range(35))
    write(files, Token(12, "00000000"), range(35, 62))
    reader = TimelineReader(files)
    assert numbers(reader.read()) == list(range(30, 62))
    write(files, Token(20, "00000000"), range(62, 64))
    assert numbers(reader.read()) == list(range(35, 64))
    assert len(list((files.folder / "sparkonce" / "timeline").iterdir())) == 4


def test_where_nothing_is_written(files):
    writer = TimelineWriter(files, figures_of(None), "r1", every_s=60.0)
    writer.tell()
    writer.close()
    assert TimelineReader(files).read() == []

    # A slow store may have delayed the write for so long that another run has begun.
    figures = figures_of(Token(7, "ab12cd34"), "r2")
    writer = TimelineWriter(files, figures, "r1", every_s=60.0)
    writer.add(batch(0))
    writer.close("r2")
    assert not writer._is_closed, "it is not that run's"
    writer.close()
    assert TimelineReader(files).read() == []

    writer = TimelineWriter(None, figures_of(Token(7, "ab12cd34")), "r1")
    writer.add(batch(0))
    writer.tell()
    writer.close()
    assert writer._thread is None


def test_a_store_that_refuses_is_told_once_and_stops_nothing(files, monkeypatch, caplog):
    def full(*_: object) -> None:
        tried.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    tried: list[int] = []
    monkeypatch.setattr(LocalFiles, "replace", full)
    writer = TimelineWriter(files, figures_of(Token(7, "ab12cd34")), "r1", every_s=0.0)
    for number in range(3):
        writer.add(batch(number))
        eventually(lambda number=number: len(tried) > number, "it was tried")
    monkeypatch.undo()
    eventually(lambda: numbers(TimelineReader(files).read()) == [0, 1, 2], "it is tried again, without any news")
    writer.close()
    assert [one.levelno for one in caplog.records if "timeline" in one.getMessage()].count(logging.WARNING) == 1


def test_no_more_threads_stop_no_query(files, monkeypatch):
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer = TimelineWriter(files, figures_of(Token(7, "ab12cd34")), "r1")
    monkeypatch.setattr(threading.Thread, "start", refused)
    writer.add(batch(0))
    writer.add(batch(1))
    writer.close()

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkonce.decision_log import DecisionLog
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.checkers import judge
from sparkonce_lab.history import EVENTS, ROWS, Event, EventKind, Recorder, load
from sparkonce_lab.verdicts import Anomaly, passed
from sparkonce_lab.watch import Readers, has_log, note_sizes, note_violation
from unit.verify_world import SYSTEMS, good_run


def recorded(folder: Path) -> Path:
    good_run().record(folder)
    return folder


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "null", "[1]", "7", '"began"', "{}"),
        *('{"at_ms": 1}', '{"kind": "began"}', '{"at_ms": 1, "kind": "gone"}'),
        *('{"at_ms": null, "kind": "began"}', '{"at_ms": "1", "kind": "began"}'),
    ],
)
def test_what_is_no_event(line):
    with pytest.raises((ValueError, KeyError)):
        Event.of_json(line)


def test_what_was_recorded_is_loaded(tmp_path):
    history = good_run().history()
    loaded = load(recorded(tmp_path / "run" / "1"))
    assert [(event.kind, event.fields) for event in loaded.events] == [(e.kind, e.fields) for e in history.events]
    assert loaded.expected == history.expected
    assert loaded.undisturbed == history.undisturbed
    assert loaded.observed == history.observed
    assert list(loaded.observed) == list(SYSTEMS)

    path = recorded(tmp_path) / "observed-kafka.parquet"
    table = pq.read_table(path)
    other = table.select(table.column_names[::-1])
    other = other.set_column(other.column_names.index("key"), "key", other["key"].cast(pa.int32()))
    pq.write_table(other, path)
    assert load(tmp_path).observed["kafka"] == table


def test_a_folder_with_a_history_is_refused(tmp_path):
    recorded(tmp_path)
    before = (tmp_path / EVENTS).read_bytes()
    with pytest.raises(ConfigurationError, match="holds a history already"):
        Recorder(tmp_path)
    assert (tmp_path / EVENTS).read_bytes() == before


def test_a_torn_last_line_is_left_out_and_the_run_is_unfinished(tmp_path):
    path = recorded(tmp_path) / EVENTS
    whole = path.read_bytes()
    events = load(tmp_path).events
    begins = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(begins, len(whole) - 1):
        path.write_bytes(whole[:cut])
        torn = load(tmp_path)
        assert torn.events == events[:-1]
    assert [verdict.anomaly for verdict in judge(torn) if not verdict.ok] == [Anomaly.STUCK]
    path.write_bytes(whole[:-1])
    assert load(tmp_path).events == events


def test_a_line_that_is_torn_between_others_is_refused(tmp_path):
    path = recorded(tmp_path) / EVENTS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:9] + "\n", *lines[4:]]))
    with pytest.raises(ConfigurationError, match="no history that can be read"):
        load(tmp_path)


def test_a_table_with_other_columns(tmp_path):
    path = recorded(tmp_path) / "observed-kafka.parquet"
    pq.write_table(pq.read_table(path).drop(["batch"]), path)
    with pytest.raises(ConfigurationError, match=r"observed-kafka.parquet.*batch"):
        load(tmp_path)


def test_a_last_line_that_is_whole_and_no_event_is_refused(tmp_path):
    with (recorded(tmp_path) / EVENTS).open("a") as file:
        file.write('{"at_ms": 1, "kind": "gone"}\n')
    with pytest.raises(ConfigurationError, match="no history that can be read"):
        load(tmp_path)


def test_a_run_without_tables_is_loaded_and_does_not_pass(tmp_path):
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        load(tmp_path)

    recorder = Recorder(tmp_path)
    recorder.note(EventKind.BEGAN, seed=1, systems=["kafka"])
    recorder.close()
    history = load(tmp_path)
    assert history.expected.schema == ROWS
    assert (len(history.expected), history.observed, history.undisturbed) == (0, {}, None)
    assert not passed(judge(history))


@pytest.mark.parametrize("name", ["expected", "undisturbed", "observed-kafka"])
def test_a_table_that_cannot_be_read(tmp_path, name):
    path = recorded(tmp_path) / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigurationError, match=f"{name}.parquet"):
        load(tmp_path)


OLD, NEW = Token(0, "00000000"), Token(1, "11111111")


@pytest.fixture
def recorder(tmp_path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def log(tmp_path) -> DecisionLog:
    log = DecisionLog(LocalFiles(tmp_path))
    for token in (OLD, NEW):
        log.put(token.position, Claim(nonce=token.nonce, run=token.nonce, query="query", location="here"))
    return log


def decision(token: Token) -> Commit:
    return Commit(token=token, query="query", batch=0, offsets=(), handles=())


def noted(recorder: Recorder) -> Sequence[Event]:
    return load(recorder.folder).events


def test_a_decision_of_a_run_that_was_deposed_is_found(log, recorder, tmp_path):
    log.put(2, decision(OLD))
    note_violation(recorder, LocalFiles(tmp_path), 3)
    (found,) = noted(recorder)
    assert (found.kind, found["driver"], found["error"]) == (EventKind.STOPPED, 3, "LogViolation")
    assert "for a run that was superseded" in found["message"]


def test_a_record_that_cannot_be_read_is_found(log, recorder, tmp_path):
    log.put_bytes(2, b"{")
    note_violation(recorder, LocalFiles(tmp_path), 3)
    assert [event["error"] for event in noted(recorder)] == ["CorruptRecordError"]


def test_nothing_is_found_in_a_log_as_it_must_be(log, recorder, tmp_path):
    log.put(2, decision(NEW))
    note_violation(recorder, LocalFiles(tmp_path), 3)
    assert not noted(recorder)


def test_only_the_files_of_a_log_elsewhere_are_counted(recorder, log, tmp_path):
    log.put(2, decision(NEW))
    here = LocalFiles(tmp_path)
    assert has_log(here)
    elsewhere: Any = mock.Mock(names=here.names)
    assert not has_log(LocalFiles(tmp_path / "none"))
    note_sizes(recorder, here)
    note_sizes(recorder, elsewhere)
    first, _, away = noted(recorder)
    assert (first["name"], first["files"], away["name"], away["files"]) == ("log", 3, "log", 3)
    assert "bytes" not in away.fields
    note_sizes(recorder, mock.Mock(names=mock.Mock(side_effect=OSError)))
    assert len(noted(recorder)) == 3, "a store that does not answer is queried again later"


def test_a_reader_looks_on_when_it_could_not_read_the_log(log, recorder, tmp_path):
    log.put(2, decision(OLD))
    looks = 0

    def newest() -> int:
        nonlocal looks
        looks += 1
        if looks == 3:  # the log could not be read twice
            path = tmp_path / "sparkonce" / "records" / f"{2:020d}"
            path.unlink()
            log.put(2, decision(NEW))
        if looks == 4:
            seen.set()
        return 0

    seen = threading.Event()
    system: Any = mock.Mock(newest=newest)
    system.name = "a system"
    readers = Readers([system], LocalFiles(tmp_path), recorder)
    readers.start()
    assert seen.wait(60.0)
    readers.stop()
    assert [(event.kind, event["batch"], event["decided"]) for event in noted(recorder)] == [(EventKind.SEEN, 0, 0)]

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkonce.errors import ConfigurationError
from sparkonce_lab.checkers import judge
from sparkonce_lab.history import EVENTS, OBSERVED, ROWS, Event, EventKind, Recorder, load
from sparkonce_lab.verdicts import Anomaly, passed
from unit.verify_world import SYSTEMS, good_run


def recorded(folder: Path) -> Path:
    """Records the good run."""
    history = good_run().history()
    recorder = Recorder(folder)
    for event in history.events:
        recorder.note(event.kind, **event.fields)
    recorder.keep("expected", history.expected)
    assert history.undisturbed is not None
    recorder.keep("undisturbed", history.undisturbed)
    for name, table in history.observed.items():
        recorder.keep(f"observed-{name}", table)
    recorder.close()
    return folder


@pytest.mark.parametrize("kind", EventKind)
def test_an_event_goes_to_a_line_and_back(kind: EventKind) -> None:
    event = Event(
        17, kind, {"driver": 1, "names": ["a", 'b"\n'], "seconds": {"WRITING": 0.5}, "why": None, "word": "ü"}
    )
    line = event.to_json()
    assert "\n" not in line
    assert Event.of_json(line) == event
    assert Event.of_json(line)["names"] == ["a", 'b"\n']


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "null", "[1]", "7", '"began"', "{}"),
        *('{"at_ms": 1}', '{"kind": "began"}', '{"at_ms": 1, "kind": "gone"}'),
        *('{"at_ms": null, "kind": "began"}', '{"at_ms": "1", "kind": "began"}'),
    ],
)
def test_what_is_no_event(line: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        Event.of_json(line)


def test_events_of_some_kinds_in_their_order(tmp_path: Path) -> None:
    history = good_run().history()
    kinds = [event.kind for event in history.of(EventKind.OVER, EventKind.FAULT)]
    assert kinds == [EventKind.FAULT, EventKind.OVER]
    first = history.first(EventKind.SEEN)
    assert first is not None
    assert first["batch"] == 0
    assert history.first(EventKind.STUCK) is None

    recorder = Recorder(tmp_path)
    noted = recorder.note(EventKind.FED, rows=1)
    assert load(tmp_path).events == [noted]
    recorder.close()


def test_what_was_recorded_is_loaded(tmp_path: Path) -> None:
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


def test_times_never_go_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    threads = [
        threading.Thread(target=lambda: [recorder.note(EventKind.FED, rows=1) for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    times = [event.at_ms for event in load(tmp_path).events]
    assert len(times) == 800
    assert times == sorted(times)
    assert times[0] >= 0


def test_a_folder_with_a_history_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path)
    before = (tmp_path / EVENTS).read_bytes()
    with pytest.raises(ConfigurationError, match="holds a history already"):
        Recorder(tmp_path)
    assert (tmp_path / EVENTS).read_bytes() == before


def test_a_torn_last_line_is_left_out_and_the_run_is_unfinished(tmp_path: Path) -> None:
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


def test_a_table_that_could_not_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(_table: pa.Table, path: Path, **_: object) -> None:
        path.write_bytes(b"PAR1")
        raise OSError("no space left")

    recorder = Recorder(tmp_path)
    recorder.note(EventKind.FED, rows=0)
    recorder.close()
    monkeypatch.setattr(pq, "write_table", half)
    with pytest.raises(OSError, match="no space"):
        recorder.keep("observed-kafka", OBSERVED.empty_table())
    assert load(tmp_path).observed == {}


def test_a_line_that_is_torn_between_others_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path) / EVENTS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:9] + "\n", *lines[4:]]))
    with pytest.raises(ConfigurationError, match="no history that can be read"):
        load(tmp_path)


def test_a_table_with_other_columns(tmp_path: Path) -> None:
    path = recorded(tmp_path) / "observed-kafka.parquet"
    pq.write_table(pq.read_table(path).drop(["batch"]), path)
    with pytest.raises(ConfigurationError, match=r"observed-kafka.parquet.*batch"):
        load(tmp_path)


def test_a_last_line_that_is_whole_and_no_event_is_refused(tmp_path: Path) -> None:
    with (recorded(tmp_path) / EVENTS).open("a") as file:
        file.write('{"at_ms": 1, "kind": "gone"}\n')
    with pytest.raises(ConfigurationError, match="no history that can be read"):
        load(tmp_path)


def test_a_run_without_tables_is_loaded_and_does_not_pass(tmp_path: Path) -> None:
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
def test_a_table_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    path = recorded(tmp_path) / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigurationError, match=f"{name}.parquet"):
        load(tmp_path)

"""A run of the verifier that an earlier version recorded is judged, and done again, by today's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from golden.kept import CHANGED, NEWEST, VERSIONS, state
from sparkonce.errors import ConfigurationError
from sparkonce.lab.ask import Asked, options_of
from sparkonce.lab.checkers import judge
from sparkonce.lab.faults import Fault
from sparkonce.lab.history import EVENTS, OBSERVED, ROWS, Event, Kind, Recorder, load
from sparkonce.lab.report import summary, write
from sparkonce.lab.verdicts import Anomaly

VERIFIED = "verified"
EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
KINDS_OF_V1 = (
    "began start phase batch log stopped ended fault over recovered skipped seen fed resources folder open state stuck "
    "unread finished"
)


@EACH_VERSION
def test_a_recorded_run_is_judged(version: str) -> None:
    history = load(state(version, VERIFIED))
    assert history.came_to_its_end
    verdicts = judge(history)
    assert {(one.anomaly, one.count) for one in verdicts if one.count} == set()
    looked_at = {(one.anomaly, one.system) for one in verdicts if one.looked_at}
    assert {(Anomaly.MISSING, "files"), (Anomaly.DOUBLED, "files"), (Anomaly.LINGERING, "files")} <= looked_at
    if version == "v1":
        assert (len(history.expected), len(history.observed["files"])) == (5582, 5582)
        assert [event["fault"] for event in history.of(Kind.FAULT)] == ["other-parallelism", "replies-swallowed"]


@EACH_VERSION
def test_a_recorded_run_that_lost_a_row_is_judged_so(version: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    shutil.copytree(state(version, VERIFIED), made)
    observed = load(made).observed["files"]
    (made / "observed-files.parquet").unlink()
    recorder = Recorder(tmp_path / "less")
    recorder.keep("observed-files", observed.slice(1))
    recorder.close()
    shutil.move(tmp_path / "less" / "observed-files.parquet", made)
    found = {one.anomaly: one.count for one in judge(load(made)) if one.count}
    assert found[Anomaly.MISSING] == 1


@EACH_VERSION
def test_a_report_is_made_of_a_recorded_run(version: str, tmp_path: Path) -> None:
    history = load(state(version, VERIFIED))
    verdicts = judge(history)
    page, _ = write(tmp_path, history, verdicts)
    assert "other-parallelism" in page.read_text()
    assert summary(history, verdicts)["verdict"]["outcome"] == "passed"


@EACH_VERSION
def test_a_recorded_run_is_done_again(version: str, tmp_path: Path) -> None:
    options = options_of(Asked(folder=tmp_path / "new", replay=state(version, VERIFIED)))
    assert options.schedule is not None
    if version == "v1":
        assert (options.seed, options.rows, options.workload.seed, options.workload.rows_per_second) == (7, 2000, 7, 50)
        steps = [(step.number, step.fault, step.phase, step.lasts_ms) for step in options.schedule]
        assert steps == [
            (1, Fault.OTHER_PARALLELISM, "DECIDING", 500),
            (2, Fault.REPLIES_SWALLOWED, "CLAIMING", 4000),
        ]
    assert [system.name for system in options.systems] == ["files"]
    assert [step.to_json() for step in options.schedule] == began()["schedule"], CHANGED.format(version=NEWEST)


def test_events_are_written_in_the_same_bytes() -> None:
    lines = (state(NEWEST, VERIFIED) / EVENTS).read_text().splitlines()
    assert len(lines) > 200
    for line in lines:
        assert Event.of_json(line).to_json() == line, CHANGED.format(version=NEWEST)


def test_every_kind_of_event_is_still_known() -> None:
    assert {kind.value for kind in Kind} >= set(KINDS_OF_V1.split())


def test_rows_have_the_columns_that_they_had() -> None:
    assert OBSERVED.names == ["kind", "key", "number", "amount", "rows", "batch", "partition", "offset"]
    assert ROWS.names == OBSERVED.names[:5]


def test_a_run_that_was_recorded_by_a_newer_version_is_refused(tmp_path: Path) -> None:
    made = tmp_path / VERIFIED
    shutil.copytree(state(NEWEST, VERIFIED), made)
    with (made / EVENTS).open("a") as file:
        file.write('{"at_ms": 1, "kind": "rewound"}\n')
    with pytest.raises(ConfigurationError, match="holds no history that can be read: 'rewound' is not a valid Kind"):
        load(made)


def test_what_a_newer_version_was_asked_for_is_not_done_again(tmp_path: Path) -> None:
    made = tmp_path / VERIFIED
    shutil.copytree(state(NEWEST, VERIFIED), made)
    events = (made / EVENTS).read_text()
    (made / EVENTS).write_text(events.replace('"workload": {', '"workload": {"colour": 1, ', 1))
    with pytest.raises(ConfigurationError, match="The workload of the history to be replayed cannot be read") as told:
        options_of(Asked(folder=tmp_path / "new", replay=made))
    assert "Replay it with the version that has recorded it" in told.value.next_step


def began() -> dict[str, object]:
    with (state(NEWEST, VERIFIED) / EVENTS).open() as file:
        first: dict[str, object] = json.loads(file.readline())
    return first

"""A query that is kept running without Spark. Its drivers are processes that run a few lines of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from sparkonce.storage.local import LocalFiles
from sparkonce_lab.conduct import Conductor, RunLimits, StuckError
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import Event, EventKind, Recorder, load
from sparkonce_lab.query import QueryConfig
from sparkonce_lab.schedule import Step

FALLS_AFTER_A_BATCH = """\
import json

batch = {"batch": 0, "rows": {}, "transactions": {}, "recovered": False, "healed": 0, "seconds": {}}
print(json.dumps({"event": "batch", **batch}), flush=True)
raise SystemExit(1)
"""
TELLS = """\
import json, sys

sys.stdin.readline()  # the configuration
{before}
print("\\n".join(json.dumps(event) for event in {events}), flush=True)
{after}
"""

Conduct = Callable[[str], Conductor]


@pytest.fixture
def conduct(tmp_path, monkeypatch) -> Iterator[Conduct]:
    conductors = []
    recorder = Recorder(tmp_path / "run")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def of(lines: str) -> Conductor:
        (tmp_path / "a_query.py").write_text(lines)
        config = QueryConfig(
            source={},
            topic="",
            sinks={},
            checkpoint=str(tmp_path / "checkpoint"),
            temporary=str(tmp_path / "tmp"),
            jars=(),
            window_ms=1,
        )
        conductor = Conductor(
            config,
            checkpoint=LocalFiles(tmp_path / "checkpoint"),
            module="a_query",
            folder=tmp_path,
            recorder=recorder,
            limits=RunLimits(falls=2),
            check=lambda: None,
        )
        conductors.append(conductor)
        conductor.start()
        return conductor

    yield of
    for conductor in conductors:
        conductor.end()
    recorder.close()


def noted(conductor: Conductor) -> Sequence[Event]:
    return load(conductor.recorder.folder).events


def test_drivers_that_fall_one_after_the_other_are_not_waited_for(conduct):
    falls = "raise SystemExit(1)\n"
    conductor = conduct(falls)
    with pytest.raises(StuckError, match="2 drivers in a row ended on their own: a batch is finished"):
        conductor.need(lambda: conductor.finished > 0, 600.0, "a batch is finished", step=7)
    stuck = [event for event in noted(conductor) if event.kind is EventKind.STUCK]
    assert [event["step"] for event in stuck] == [7]

    conductor = conduct(falls)
    ended = EventKind.ENDED
    conductor.need(lambda: sum(event.kind is ended for event in noted(conductor)) >= 2, 600.0, "two have ended")


def test_a_driver_that_finishes_a_batch_before_it_falls_does_not_count(conduct):
    conductor = conduct(FALLS_AFTER_A_BATCH)
    conductor.need(lambda: conductor.finished >= 3, 600.0, "three batches are finished")
    assert sum(event.kind is EventKind.ENDED for event in noted(conductor)) >= 2


def test_a_driver_that_takes_long_to_start_is_still_held(conduct, monkeypatch):
    monkeypatch.setattr("sparkonce_lab.conduct._ARMED_S", 0.0)
    events = [{"event": "held", "phase": "READING", "batch": 0}]  # the phase alone would end the wait
    conductor = conduct(TELLS.format(before="", events=events, after="sys.stdin.read()"))
    step = Step(number=1, fault=Fault.DRIVER_KILLED, phase="READING", batches=0)
    assert conductor.aim(step).held == "READING"

    monkeypatch.setattr("sparkonce_lab.conduct._ARMED_S", 0.0)
    events = [{"event": "phase", "phase": "READING", "batch": 0}]
    conductor = conduct(TELLS.format(before="", events=events, after="sys.stdin.read()"))
    step = Step(number=1, fault=Fault.DRIVER_KILLED, phase="READING", batches=0, delay_ms=1)
    assert conductor.aim(step).phase == "READING"


def test_what_a_driver_says_that_nobody_asked_to_stop_is_one(conduct):
    events = [{"event": "stop", "error": "PrepareError", "message": "a row was refused"}]
    conductor = conduct(TELLS.format(before="", events=events, after=""))
    conductor.need(lambda: any(event.kind is EventKind.STOPPED for event in noted(conductor)), 600.0, "a stop is noted")


def test_what_a_driver_says_that_was_asked_to_stop_is_no_stop_of_its_own(conduct):
    events = [{"event": "stop", "error": "PrepareError", "message": "stopped in the middle of a batch"}]
    conductor = conduct(TELLS.format(before="sys.stdin.read()", events=events, after=""))
    conductor.stop()
    told = [event for event in noted(conductor) if event.kind in (EventKind.LOG, EventKind.STOPPED)]
    assert [(event.kind, event["message"]) for event in told] == [(EventKind.LOG, "stopped in the middle of a batch")]

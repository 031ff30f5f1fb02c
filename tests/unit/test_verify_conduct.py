"""A query that is kept running, without Spark: its drivers are processes that do what a few lines of Python say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkonce.verify.conduct import Conductor, Limits, StuckError
from sparkonce.verify.history import Kind, Recorder
from sparkonce.verify.query import QueryConfig

FALLS = "raise SystemExit(1)\n"
FALLS_AFTER_A_BATCH = """\
import json

batch = {"batch": 0, "rows": {}, "transactions": {}, "recovered": False, "healed": 0, "seconds": {}}
print(json.dumps({"event": "batch", **batch}), flush=True)
raise SystemExit(1)
"""

Conduct = Callable[[str], Conductor]


@pytest.fixture
def conduct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Conduct]:
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
            module="a_query",
            folder=tmp_path,
            recorder=recorder,
            limits=Limits(falls=2),
            look=lambda: None,
        )
        conductors.append(conductor)
        conductor.start()
        return conductor

    yield of
    for conductor in conductors:
        conductor.end()
    recorder.close()


def test_drivers_that_fall_one_after_the_other_are_not_waited_for(conduct: Conduct) -> None:
    conductor = conduct(FALLS)
    with pytest.raises(StuckError, match="2 drivers in a row ended by themselves: a batch is finished"):
        conductor.need(lambda: conductor.finished > 0, 600.0, "a batch is finished", step=7)
    stuck = [event for event in conductor.recorder.events if event.kind is Kind.STUCK]
    assert [event["step"] for event in stuck] == [7]


def test_a_driver_that_finishes_a_batch_before_it_falls_does_not_count(conduct: Conduct) -> None:
    conductor = conduct(FALLS_AFTER_A_BATCH)
    conductor.need(lambda: conductor.finished >= 3, 600.0, "three batches are finished")
    assert sum(event.kind is Kind.ENDED for event in conductor.recorder.events) >= 2


def test_what_has_come_has_come_however_many_fell(conduct: Conduct) -> None:
    conductor = conduct(FALLS)
    ended = Kind.ENDED
    conductor.need(
        lambda: sum(event.kind is ended for event in conductor.recorder.events) >= 2, 600.0, "two have ended"
    )

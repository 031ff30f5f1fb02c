"""The verifier as a whole: it finds nothing in sparkonce, and finds what is wrong with each broken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from postgres_witness import needs_postgres
from sparkonce.protocol.state import Phase
from sparkonce.verify.faults import Fault
from sparkonce.verify.history import Kind
from sparkonce.verify.report import write
from sparkonce.verify.schedule import Step
from sparkonce.verify.verdicts import Anomaly, passed
from verifying.mutants import MUTANTS
from verifying.trial import LIMITS, broken_by, found, trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, needs_postgres, pytest.mark.timeout(1_800)]

Say = Callable[[str], None]

IN_CI = ("drops-a-handle", "finishes-one-sink", "turns-rows-round")
"""One of the decision log, one of the unit, one of a writer: together they start Spark four times."""

STEPS = (
    (Fault.SERVER_KILLED, Phase.FINISHING, "kafka", ""),
    (Fault.DRIVER_KILLED, Phase.FINISHING, "", ""),
    (Fault.CUT, Phase.REPLAYING, "postgres", ""),
    (Fault.REPLY_LOST, Phase.DECIDING, "postgres", "commit"),
    (Fault.WORKER_KILLED, Phase.WRITING, "", ""),
    (Fault.DRIVER_PAUSED, Phase.DECIDING, "", ""),
)


def test_nothing_is_found_in_sparkonce(tmp_path: Path, say: Say) -> None:
    steps = [
        Step(number=number, fault=fault, phase=phase.name, system=system, request=request)
        for number, (fault, phase, system, request) in enumerate(STEPS, 1)
    ]
    history, verdicts = trial(tmp_path / "run", say, schedule=steps, undisturbed=True)
    assert passed(verdicts), found(verdicts)
    assert [event["step"] for event in history.of(Kind.FAULT)] == [step.number for step in steps]
    assert len(list(history.of(Kind.RECOVERED))) == len(steps)
    page, _ = write(tmp_path, history, verdicts)
    assert "postgres" in page.read_text()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.slow) for name in MUTANTS]
)
def test_a_broken_sparkonce_is_caught(name: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    for variable, value in broken_by(name).items():
        monkeypatch.setenv(variable, value)
    history, verdicts = trial(
        tmp_path / "run",
        say,
        schedule=mutant.schedule(),
        fresh_end=False,
        undisturbed=Anomaly.STATE_DIFFERS in mutant.wanted,
        limits=replace(LIMITS, falls=1 if mutant.ends_it else 4),
    )
    counts = found(verdicts)
    say(f"{name}: {mutant.words}: {counts}")
    assert {anomaly.value for anomaly in mutant.wanted} & counts.keys(), counts
    # Of a run that breaks off much is missing, whatever is wrong.
    assert mutant.ends_it or history.first(Kind.FINISHED) is not None, counts
    assert [event["step"] for event in history.of(Kind.FAULT)] == [step.number for step in mutant.schedule()]

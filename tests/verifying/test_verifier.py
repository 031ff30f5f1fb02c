"""The whole verifier: it finds no anomalies in sparkonce, and finds the fault of each broken version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shared_servers import needs_postgres
from sparkonce.protocol.state import Phase
from sparkonce_lab.clock import find_faketime
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import EventKind
from sparkonce_lab.report.page import write
from sparkonce_lab.rig.disk import cannot_mount
from sparkonce_lab.schedule import Step
from sparkonce_lab.systems.delta import DeltaSystem
from sparkonce_lab.systems.files import FilesSystem, read_dead_letters
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.verdicts import Anomaly, passed
from verifying.mutants import MUTANTS, TOGETHER, schedule
from verifying.trial import LIMITS, PARTITIONS, broken_by, found, trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, needs_postgres, pytest.mark.timeout(1_800)]

Say = Callable[[str], None]

STEPS = (
    (Fault.SERVER_KILLED, Phase.FINISHING, "kafka", ""),
    (Fault.DRIVER_KILLED, Phase.FINISHING, "", ""),
    (Fault.CUT, Phase.REPLAYING, "postgres", ""),
    (Fault.REPLY_LOST, Phase.DECIDING, "postgres", "commit"),
    (Fault.WORKER_KILLED, Phase.WRITING, "", ""),
    (Fault.DRIVER_PAUSED, Phase.DECIDING, "", ""),
)

LONG_MS, LONGER_MS = 20_000, 75_000
"""Longer than a start waits, and longer than a commit is retried."""


@pytest.mark.slow
def test_nothing_is_found_in_sparkonce(tmp_path, say):
    steps = [
        Step(number=number, fault=fault, phase=phase.name, system=system, request=request)
        for number, (fault, phase, system, request) in enumerate(STEPS, 1)
    ]
    history, verdicts = trial(tmp_path / "run", say, schedule=steps, undisturbed=True)
    assert passed(verdicts), found(verdicts)
    assert [event["step"] for event in history.of(EventKind.FAULT)] == [step.number for step in steps]
    assert len(list(history.of(EventKind.RECOVERED))) == len(steps)
    page, _ = write(tmp_path, history, verdicts)
    assert "postgres" in page.read_text()


@pytest.mark.slow
@pytest.mark.timeout(5_400)
@pytest.mark.skipif(find_faketime() is None, reason="libfaketime is not installed")
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_nothing_is_found_after_every_fault_that_there_is(tmp_path, say):
    every_fault: tuple[dict[str, Any], ...] = (
        {"fault": Fault.CUT, "phase": Phase.WRITING, "system": "kafka"},
        {"fault": Fault.SLOWED, "phase": Phase.DECIDING, "system": "postgres", "lasts_ms": 4_000},
        {"fault": Fault.BLACK_HOLE, "phase": Phase.FINISHING, "system": "kafka", "lasts_ms": LONG_MS},
        {"fault": Fault.REQUESTS_SWALLOWED, "phase": Phase.FINISHING, "system": "postgres", "lasts_ms": LONGER_MS},
        {"fault": Fault.REPLIES_SWALLOWED, "phase": Phase.WRITING, "system": "kafka"},
        {"fault": Fault.REPLY_LOST, "phase": Phase.DECIDING, "system": "kafka", "request": "end"},
        {"fault": Fault.REQUEST_LATE, "phase": Phase.DECIDING, "system": "postgres", "request": "commit"},
        {"fault": Fault.SERVER_PAUSED, "phase": Phase.SWEEPING_OWN, "system": "kafka", "lasts_ms": LONG_MS},
        {"fault": Fault.SERVER_KILLED, "phase": Phase.DECIDING, "system": "postgres"},
        {"fault": Fault.COORDINATOR_MOVED, "phase": Phase.FINISHING, "system": "kafka"},
        {"fault": Fault.TARGET_DISK_FULL, "phase": Phase.WRITING, "system": "files"},
        {"fault": Fault.LOG_DISK_FULL, "phase": Phase.DECIDING},
        {"fault": Fault.WORKER_KILLED, "phase": Phase.WRITING},
        {"fault": Fault.DRIVER_KILLED, "phase": Phase.DECIDING},
        {"fault": Fault.EXECUTOR_KILLED, "phase": Phase.WRITING},
        {"fault": Fault.OTHER_PARALLELISM, "phase": Phase.FINISHING, "amount": 2},
        {"fault": Fault.TWO_DRIVERS, "phase": Phase.DECIDING},
        {"fault": Fault.DRIVER_PAUSED, "phase": Phase.DECIDING},
        {"fault": Fault.CLOCK_JUMPED, "phase": Phase.WRITING, "amount": 3_600},
        {"fault": Fault.CLOCK_JUMPED, "phase": Phase.IDLE, "amount": -3_600},
        {"fault": Fault.EXPIRED, "phase": Phase.FINISHING},
    )
    assert {one["fault"] for one in every_fault} == set(Fault)
    steps = [Step(number=number, **{**one, "phase": one["phase"].name}) for number, one in enumerate(every_fault, 1)]
    kafka = KafkaSystem(nodes=3, partitions=PARTITIONS)
    systems = [kafka, PostgresSystem(), FilesSystem()]
    history, verdicts = trial(tmp_path / "run", say, source=kafka, systems=systems, schedule=steps, undisturbed=True)
    assert passed(verdicts), found(verdicts)
    assert {event["step"]: event["fault"] for event in history.of(EventKind.FAULT)} == {
        step.number: step.fault.value for step in steps
    }
    assert len(list(history.of(EventKind.RECOVERED))) == len(steps)


@pytest.mark.slow
def test_a_table_has_each_row_once(tmp_path, say):
    faults = (
        (Fault.DRIVER_KILLED, Phase.FINISHING),
        (Fault.DRIVER_KILLED, Phase.DECIDING),
        (Fault.DRIVER_KILLED, Phase.IDLE),
        (Fault.TWO_DRIVERS, Phase.WRITING),
    )
    steps = [Step(number=number, fault=fault, phase=phase.name) for number, (fault, phase) in enumerate(faults, 1)]
    kafka = KafkaSystem(partitions=PARTITIONS)
    history, verdicts = trial(tmp_path / "run", say, source=kafka, systems=[kafka, DeltaSystem()], schedule=steps)
    assert found(verdicts) == {}
    assert len(list(history.of(EventKind.RECOVERED))) == len(steps)


@pytest.mark.slow
def test_a_lost_dead_letter_is_found(tmp_path, say, monkeypatch):
    """Kafka refuses some rows. One that is hidden from the reader of dead letters is in neither place."""
    monkeypatch.setattr(
        "sparkonce_lab.systems.kafka.read_dead_letters", lambda folder: read_dead_letters(folder).slice(1)
    )
    kafka = KafkaSystem(partitions=PARTITIONS, refuse_every=5)
    _, verdicts = trial(tmp_path / "run", say, source=kafka, systems=[kafka], schedule=[])
    assert {one.anomaly: one.count for one in verdicts if one.count} == {Anomaly.MISSING: 1}


def test_a_row_that_one_sink_doubles_is_found_there_and_nothing_elsewhere(tmp_path, say, monkeypatch):
    """The driver is killed when a batch is prepared. The other two sinks are correct."""
    for variable, value in broken_by(["rows-twice"]).items():
        monkeypatch.setenv(variable, value)
    step = Step(number=1, fault=Fault.DRIVER_KILLED, phase=Phase.DECIDING.name, batches=1)
    history, verdicts = trial(tmp_path / "run", say, schedule=[step], fresh_end=False, rows=200)
    assert [event["step"] for event in history.of(EventKind.FAULT)] == [1]
    assert history.first(EventKind.FINISHED) is not None
    counts = found(verdicts)
    assert {each for each in counts if each[0] is not Anomaly.TORN} == {(Anomaly.DOUBLED, "files")}, counts
    page, _ = write(tmp_path, history, verdicts)
    assert "files" in page.read_text()


@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param(names, id=run, marks=pytest.mark.slow) for run, names in TOGETHER.items()),
        *(pytest.param((name,), id=name, marks=pytest.mark.slow) for name in MUTANTS),
    ],
)
def test_a_broken_sparkonce_is_caught(names, tmp_path, say, monkeypatch):
    mutants = [MUTANTS[name] for name in names]
    steps = schedule(mutants)
    ends = any(mutant.ends_it for mutant in mutants)
    for variable, value in broken_by(names).items():
        monkeypatch.setenv(variable, value)
    history, verdicts = trial(
        tmp_path / "run",
        say,
        schedule=steps,
        fresh_end=False,
        undisturbed=any(Anomaly.STATE_DIFFERS in mutant.wanted for mutant in mutants),
        limits=replace(LIMITS, falls=1 if ends else 4),
    )
    counts = found(verdicts)
    for name, mutant in zip(names, mutants, strict=True):
        say(f"{name}: {mutant.rule}: {counts}")
        there = {anomaly for anomaly, system in counts if not mutant.system or system == mutant.system}
        assert mutant.wanted & there, counts
    # If a run breaks off, many rows are missing no matter what the mutant does.
    assert ends or history.first(EventKind.FINISHED) is not None, counts
    assert [event["step"] for event in history.of(EventKind.FAULT)] == [step.number for step in steps]

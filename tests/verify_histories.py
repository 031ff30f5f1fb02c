"""Histories in the form of a real run's, made without one, for tests of their readers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparkonce.lab.faults import ENDS_THE_DRIVER, OF_THE_QUERY, Fault
from sparkonce.lab.history import OBSERVED, Event, History, Kind
from sparkonce.lab.schedule import EVERY_BATCH, FIRST_BATCH, Choice, Step, draw
from sparkonce.lab.verdicts import Anomaly, Verdict
from sparkonce.lab.workload import Workload
from sparkonce.protocol.state import Phase

VERSIONS = {
    "sparkonce": "0.1.0",
    "spark": "4.0.0",
    "python": "3.11.2",
    "java": "17.0.15",
    "kafka": "4.3.0",
    "postgres": "15.13",
    "machine": "2 cores, 24 GiB, Linux 6.1",
}
SPENT_MS = {
    Phase.READING: (5, 60),
    Phase.CLAIMING: (2, 12),
    Phase.SWEEPING: (30, 400),
    Phase.REPLAYING: (300, 900),
    Phase.WRITING: (250, 700),
    Phase.DECIDING: (2, 25),
    Phase.FINISHING: (20, 140),
    Phase.SWEEPING_OWN: (1, 10),
    Phase.IDLE: (30, 250),
}
USUAL = (Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.SWEEPING_OWN, Phase.IDLE)


class Died(Exception):  # noqa: N818 - a driver, not the test
    """The driver is gone, and the next one has to be started."""


class Again(Exception):  # noqa: N818 - as above
    """The driver is gone, and the next one runs already."""


class Simulation:
    """Plays a schedule without any process or server; the clock is a number."""

    def __init__(self, seed: int, schedule: Sequence[Step], systems: Sequence[str], pace: float = 1.0) -> None:
        self.dice = random.Random(seed)
        self.systems, self.pace = systems, pace
        self.events: list[Event] = []
        self.now = 0
        self.driver = 0
        self.batch = 0
        self.finished = 0
        self.steps = list(schedule)
        self.waiting: Step | None = None
        self.since = 0
        self.seconds: dict[str, float] = {}
        self.decided = -1
        self.alive = False
        self.first = False

    def note(self, kind: Kind, *, at_ms: int | None = None, **fields: Any) -> None:
        self.events.append(Event(self.now if at_ms is None else at_ms, kind, fields))

    def spend(self, low: float, high: float) -> int:
        spent = int(self.dice.uniform(low, high))
        self.now += spent
        return spent

    def play(self, batches: int, until_ms: int | None = None) -> None:
        while self.finished < batches or self.steps or self.waiting:
            if until_ms is not None and self.now > until_ms:
                return
            try:
                if not self.alive:
                    self.start()
                self.one_batch()
            except Again:
                self.first = True
            except Died:
                self.alive = False
        self.note(Kind.ENDED, driver=self.driver, code=0)

    def start(self) -> None:
        self.driver += 1
        self.note(Kind.START, driver=self.driver, pid=4_000 + 37 * self.driver, slots=4, master="local[4]")
        self.spend(4_500, 9_000)
        self.alive, self.first = True, True

    def one_batch(self) -> None:
        self.seconds = {}
        recovered = self.first and self.decided == self.batch
        head = (Phase.READING, Phase.CLAIMING, Phase.SWEEPING) if self.first else ()
        body = (Phase.FINISHING, Phase.REPLAYING) if recovered else USUAL[:-1]
        if self.first and not recovered and self.steps and self.steps[0].phase == Phase.REPLAYING.name:
            body = (Phase.FINISHING, Phase.REPLAYING)
        for phase in (*head, *body):
            self.phase(phase)
        self.first = False
        self.note(
            Kind.BATCH,
            driver=self.driver,
            batch=self.batch,
            rows=dict.fromkeys(self.systems, 0 if recovered else self.dice.randint(900, 2_400)),
            transactions=4 * len(self.systems),
            recovered=recovered,
            healed=0,
            seconds=self.seconds,
        )
        self.finished += 1
        self.since += 1
        if self.waiting:
            self.note(Kind.RECOVERED, step=self.waiting.number, driver=self.driver, batch=self.batch)
            self.waiting, self.since = None, 0
        for system in self.systems:
            seen = self.now + self.dice.randint(5, 120)
            self.note(Kind.SEEN, at_ms=seen, system=system, batch=self.batch, decided=self.batch)
        if self.finished % 10 == 1:
            self.resources()
        self.batch += 1
        self.phase(Phase.IDLE)

    def resources(self) -> None:
        for role, rss in (("driver", 140), ("jvm", 900), ("worker", 160)):
            rss_mib = int(rss + 20 * self.dice.random() + (150 if role == "jvm" and self.since > 2 else 0))
            self.note(Kind.RESOURCES, driver=self.driver, role=role, pid=self.driver, rss_mib=rss_mib, handles=rss // 4)
        files = min(100, self.batch) + self.dice.randint(5, 15)
        self.note(Kind.FOLDER, name="log", files=files, bytes=files * 1_900)

    def phase(self, phase: Phase) -> None:
        self.note(Kind.PHASE, driver=self.driver, phase=phase.name, batch=self.batch)
        began = self.now
        self.strike(phase)
        low, high = SPENT_MS[phase]
        self.spend(low * self.pace, high * self.pace)
        self.seconds[phase.value] = (self.now - began) / 1_000
        if phase is Phase.DECIDING:
            self.decided = self.batch

    def strike(self, phase: Phase) -> None:
        step = self.steps[0] if self.steps else None
        if step is None or step.phase != phase.name or self.since < step.batches:
            return
        if self.waiting and Phase[step.phase] in EVERY_BATCH:
            return
        self.steps.pop(0)
        if self.waiting:  # One batch ends the recovery from both.
            self.waiting_twice(self.waiting)
        if step.fault is Fault.WORKER_KILLED and phase is Phase.CLAIMING:
            self.note(Kind.SKIPPED, step=step.number, fault=step.fault.value, why="no worker runs in this phase")
            return
        self.now += step.delay_ms if phase is Phase.WRITING else 0
        self.note(
            Kind.FAULT,
            step=step.number,
            fault=step.fault.value,
            system=step.system,
            request=step.request,
            driver=self.driver,
            phase=(phase if self.dice.random() > 0.06 else Phase.IDLE).name,
            batch=self.batch,
            aimed=step.phase,
            held=step.delay_ms == 0,
        )
        self.waiting = step
        if step.fault in ENDS_THE_DRIVER:
            self.replace(step)
        self.outage(step)

    def waiting_twice(self, step: Step) -> None:
        self.note(Kind.RECOVERED, step=step.number, driver=self.driver, batch=self.batch)
        self.waiting = None

    def replace(self, step: Step) -> None:
        old = self.driver
        if step.fault in {Fault.DRIVER_PAUSED, Fault.TWO_DRIVERS}:
            self.start()
            self.now += 300
            if step.fault is Fault.DRIVER_PAUSED:
                self.note(Kind.OVER, step=step.number)
            self.note(
                Kind.STOPPED,
                driver=old,
                error="SupersededError",
                message=f"batch {self.batch}: a newer run has claimed the log at 00000042",
            )
            self.spend(300, 900)
            self.note(Kind.ENDED, driver=old, code=1)
            self.since = 0
            self.seconds = {}
            raise Again
        self.spend(2, 20)
        self.note(Kind.ENDED, driver=old, code=-9)
        if step.fault is Fault.EXPIRED:
            self.now += 31_000
            self.note(Kind.OVER, step=step.number)
        raise Died

    def outage(self, step: Step) -> None:
        self.now += step.lasts_ms
        if step.fault not in {Fault.WORKER_KILLED, Fault.EXECUTOR_KILLED, Fault.CUT, Fault.CLOCK_JUMPED}:
            self.note(Kind.OVER, step=step.number)
        self.note(
            Kind.LOG,
            driver=self.driver,
            level="WARNING",
            message=f"{step.system or 'the query'}: no answer within 500 ms, asked again",
        )
        if self.dice.random() < 0.3:
            self.note(
                Kind.STOPPED,
                driver=self.driver,
                error="PrepareError",
                message=f"batch {self.batch}, slot 2: connection to {step.system or 'a worker'} was reset by its peer",
            )
            self.spend(300, 1_200)
            self.note(Kind.ENDED, driver=self.driver, code=1)
            raise Died
        self.spend(100, 1_500)


def choices(systems: Sequence[str]) -> Iterator[Choice]:
    for fault in Fault:
        if fault in OF_THE_QUERY:
            yield Choice(fault=fault)
            continue
        for system in systems:
            if fault is Fault.COORDINATOR_MOVED and system != "kafka":
                continue
            yield Choice(fault=fault, system=system, requests=("prepare", "commit", "abort"))


def run(
    *,
    seed: int = 7,
    faults: int = 12,
    batches: int = 200,
    systems: Sequence[str] = ("kafka", "postgres"),
    pace: float = 1.0,
    breaks_off_at_ms: int | None = None,
    rows: int = 50_000,
    only: Sequence[Fault] = (),
    apart: int = 1,
) -> History:
    """Returns a run without anomalies.

    Args:
        seed: The seed of schedule, workload and times.
        faults: The number of steps.
        batches: The smallest number of finished batches.
        systems: The systems' names.
        pace: The factor on the time of each phase.
        breaks_off_at_ms: The moment at which the recording breaks off; None if it does not.
        rows: The number of rows in the source.
        only: The faults to draw from; all by default.
        apart: The factor on the number of batches between two steps.
    """
    workload = Workload(seed=seed)
    possible = [choice for choice in choices(systems) if not only or choice.fault in only]
    drawn = draw(seed, faults, possible) if faults else []
    schedule = [replace(step, batches=step.batches * apart) for step in drawn]
    play = Simulation(seed, schedule, systems, pace)
    play.note(
        Kind.BEGAN,
        seed=seed,
        workload=workload.to_json(),
        systems=list(systems),
        guarantee="exactly-once",
        versions=VERSIONS,
        schedule=[step.to_json() for step in schedule],
        limits={"step_s": 120, "start_s": 90},
    )
    play.now = 4_000
    play.play(batches, breaks_off_at_ms)
    play.note(Kind.FED, rows=rows)
    if breaks_off_at_ms is None:
        play.now += 2_500
        for system in systems:
            play.note(Kind.OPEN, system=system, names=[])
        play.note(Kind.STATE, disturbed=64, undisturbed=64)
        play.note(Kind.FINISHED)
    expected = workload.expected(rows)
    return History(
        events=sorted(play.events, key=lambda event: event.at_ms),
        expected=expected,
        observed={system: observed(expected) for system in systems} if breaks_off_at_ms is None else {},
        undisturbed=expected,
    )


def observed(expected: pa.Table) -> pa.Table:
    size = len(expected)
    places = {
        "batch": pa.array(np.arange(size) // 1_000, pa.int64()),
        "partition": pa.array(np.full(size, -1), pa.int32()),
        "offset": pa.array(np.full(size, -1), pa.int64()),
    }
    table = expected
    for name, values in places.items():
        table = table.append_column(name, values)
    return table.cast(OBSERVED)


def verdicts(
    history: History, found: Mapping[tuple[Anomaly, str], tuple[int, Sequence[str]]] | None = None
) -> tuple[Verdict, ...]:
    """Returns the checkers' answers about a history.

    Args:
        history: The history to judge.
        found: The number of anomalies by kind and system (empty: the whole run), with examples.
    """
    found = found or {}
    of_the_run = {Anomaly.TORN: 198, Anomaly.STATE_DIFFERS: 4_321, Anomaly.STUCK: 12, Anomaly.STOPPED: 7}
    of_the_run[Anomaly.GROWING] = 24
    rows = len(history.expected)
    made = []
    for anomaly in Anomaly:
        for system in [""] if anomaly in of_the_run else history.observed or ["kafka"]:
            looked_at = of_the_run.get(anomaly, rows)
            if anomaly is Anomaly.OUT_OF_ORDER and system != "kafka":
                continue
            if anomaly in {Anomaly.LINGERING, Anomaly.EARLY}:
                looked_at = 1 if anomaly is Anomaly.LINGERING else 1_903
            count, examples = found.get((anomaly, system), (0, ()))
            made.append(
                Verdict(anomaly=anomaly, system=system, looked_at=looked_at, count=count, examples=tuple(examples))
            )
    return tuple(made)


BAD = {
    (Anomaly.MISSING, "kafka"): (
        1_204,
        ["row: key 17, number 2,045, amount 311", "row: key 3, number 2,046, amount -7"],
    ),
    (Anomaly.DOUBLED, "postgres"): (3, ["sum: key 5, window 1700000120000: 2 times, by batches 61 and 62"]),
    (Anomaly.EARLY, "postgres"): (1, ["batch 61 was seen at 01:52.310, when batch 60 was the newest that was decided"]),
    (Anomaly.STATE_DIFFERS, ""): (1, ["4,321 rows of state; undisturbed: 4,318"]),
}


def good() -> History:
    return run()


def big() -> History:
    return run(seed=11, faults=200, batches=3_000, pace=0.75, rows=200_000, apart=10)


def unfinished() -> History:
    return run(seed=5, faults=12, batches=200, breaks_off_at_ms=70_000)


__all__ = ["BAD", "FIRST_BATCH", "big", "good", "run", "unfinished", "verdicts"]

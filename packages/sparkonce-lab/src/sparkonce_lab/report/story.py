"""A history put together: drivers, batches and steps instead of events."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkonce_lab.history import Event, EventKind, History
from sparkonce_lab.report.words import NO_DRIVER, STARTING, phase_name


@dataclass(slots=True, kw_only=True)
class ReportedDriver:
    """One process of the query. A moment or number is None if the history does not have it.

    Attributes:
        number: Counts from 1.
        began_ms: The start of the process.
        slots: The number of tasks that run at the same time.
        ended_ms: The end of the process.
        code: The exit code of the process, or minus the signal.
        error: The class of the error that stopped its query; empty if none did.
        message: The error's message.
        stopped_ms: The moment of the error.
        batches: The number of batches that it finished.
        phases: The moments at which it entered a phase of a batch, in that order.
    """

    number: int
    began_ms: int
    slots: int | None = None
    ended_ms: int | None = None
    code: int | None = None
    error: str = ""
    message: str = ""
    stopped_ms: int | None = None
    batches: int = 0
    phases: list[tuple[int, str, int]] = field(default_factory=list)

    @property
    def end(self) -> str:
        """The way it ended, in the same words for the same way."""
        if self.error:
            return f"stopped by itself: {self.error}"
        if self.ended_ms is None:
            return "still there when the recording ended"
        if self.code is not None and self.code < 0:
            return f"killed: {signal_name(-self.code)}"
        return "ended in order" if self.code == 0 else f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedBatch:
    """A batch that a driver finished. The next driver may finish the same batch again."""

    at_ms: int
    number: int
    rows: Mapping[str, int]
    transactions: int
    recovered: bool
    healed: int
    seconds: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class ReportedStep:
    """One fault of the schedule and its effects. A moment or number is None if there is none.

    Attributes:
        number: Counts from 1.
        fault: The fault's name.
        system: The system that it strikes; empty for the query itself.
        request: The kind of request that it strikes, for a fault of one request.
        aimed: The phase that the schedule names.
        hit: The phase in which it struck.
        batch: The batch that it struck.
        driver: The driver that it struck.
        held: True if the driver was held in the phase.
        planned: The step in the schedule; empty if it is not there.
        fault_ms: The moment at which it struck.
        over_ms: The end of the outage.
        recovered_ms: The moment at which the first batch after that was finished.
        skipped: The reason why it could not be injected; empty if it could.
        stuck: The event after it that the deadline passed without; empty if there is none.
    """

    number: int
    fault: str
    system: str = ""
    request: str = ""
    aimed: str = NO_DRIVER
    hit: str = NO_DRIVER
    batch: int | None = None
    driver: int | None = None
    held: bool = False
    planned: Mapping[str, Any] = field(default_factory=dict)
    fault_ms: int | None = None
    over_ms: int | None = None
    recovered_ms: int | None = None
    skipped: str = ""
    stuck: str = ""

    @property
    def outage_ms(self) -> int | None:
        """The length of the outage; None for an instant, or an outage that never ended."""
        return None if self.fault_ms is None or self.over_ms is None else self.over_ms - self.fault_ms

    @property
    def recovery_ms(self) -> int | None:
        """The time from the end of the outage, or else from the fault, to the first batch finished after that."""
        began = self.over_ms if self.over_ms is not None else self.fault_ms
        return None if began is None or self.recovered_ms is None else self.recovered_ms - began


class Story:
    """The course of a run, from a history that may break off anywhere.

    Attributes:
        history: The recording.
        asked: The fields of the run's first event: its request.
        drivers: In the order of their numbers.
        batches: In the order in which they were finished.
        messages: The drivers' warnings and errors, each with its moment.
        steps: In the order of their numbers, with those that the run did not reach.
        end_ms: The moment of the last event.
        finished: True if every step was carried out and every system read.
        stuck: The events that a deadline passed without, each with its step.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        began = history.first(EventKind.BEGAN)
        self.asked: Mapping[str, Any] = began.fields if began else {}
        self.end_ms = max((event.at_ms for event in history.events), default=0)
        self.finished = history.first(EventKind.FINISHED) is not None
        self.stuck = [
            (event.fields.get("step"), str(event.fields.get("what", ""))) for event in history.of(EventKind.STUCK)
        ]
        self._drivers: dict[int, ReportedDriver] = {}
        self._steps: dict[int, ReportedStep] = {}
        self.batches: list[ReportedBatch] = []
        self.messages: list[tuple[int, str]] = []
        for planned in self.asked.get("schedule") or ():
            step = self._step(planned.get("number"), planned.get("fault"))
            step.planned = planned
            step.aimed = phase_name(planned.get("phase"))
            step.system, step.request = str(planned.get("system", "")), str(planned.get("request", ""))
        for event in history.events:
            self._take(event)
        self.drivers = [self._drivers[number] for number in sorted(self._drivers)]
        self.steps = [self._steps[number] for number in sorted(self._steps)]

    @property
    def systems(self) -> list[str]:
        """The requested systems, then any other that the history names."""
        told = [str(event.fields.get("system")) for event in self.history.of(EventKind.SEEN)]
        return list(dict.fromkeys([*map(str, self.asked.get("systems") or ()), *self.history.observed, *told]))

    def after(self, step: ReportedStep) -> int:
        """Returns the end of a step: its recovery, or else the next step's fault, or the end of the run."""
        if step.recovered_ms is not None:
            return step.recovered_ms
        later = (one.fault_ms for one in self.steps if one.number > step.number and one.fault_ms is not None)
        return min(later, default=self.end_ms)

    def life(self, driver: ReportedDriver) -> tuple[int, int]:
        """Returns a driver's first and last moment; the latter is the recording's if the history does not have it."""
        return driver.began_ms, self.end_ms if driver.ended_ms is None else driver.ended_ms

    def stages(self, driver: ReportedDriver) -> list[tuple[int, str, int | None]]:
        """Returns the moments at which a driver entered a phase of a batch, its start first."""
        return [(driver.began_ms, STARTING, None), *driver.phases]

    def _driver(self, event: Event) -> ReportedDriver:
        number = int(event.fields.get("driver") or 0)
        return self._drivers.setdefault(number, ReportedDriver(number=number, began_ms=event.at_ms))

    def _step(self, number: Any, fault: Any = None) -> ReportedStep:
        step = self._steps.setdefault(int(number or 0), ReportedStep(number=int(number or 0), fault=""))
        step.fault = str(fault) if fault else step.fault
        return step

    def _take(self, event: Event) -> None:
        fields, at = event.fields, event.at_ms
        match event.kind:
            case EventKind.START:
                self._driver(event).slots = fields.get("slots")
            case EventKind.PHASE:
                self._driver(event).phases.append((at, phase_name(fields.get("phase")), int(fields.get("batch") or 0)))
            case EventKind.BATCH:
                self._finished(event)
            case EventKind.LOG:
                self._message(event, str(fields.get("level", "")))
            case EventKind.STOPPED:
                driver = self._driver(event)
                driver.error, driver.message = str(fields.get("error") or "error"), str(fields.get("message", ""))
                driver.stopped_ms = at
                self._message(event, driver.error)
            case EventKind.ENDED:
                driver = self._driver(event)
                driver.ended_ms, driver.code = at, fields.get("code")
            case EventKind.FAULT:
                self._struck(event)
            case EventKind.OVER:
                self._step(fields.get("step")).over_ms = at
            case EventKind.RECOVERED:
                self._step(fields.get("step")).recovered_ms = at
            case EventKind.SKIPPED:
                self._step(fields.get("step"), fields.get("fault")).skipped = str(
                    fields.get("why") or "no reason given"
                )
            case EventKind.STUCK:
                if fields.get("step"):
                    self._step(fields["step"]).stuck = str(fields.get("what", ""))
            case _:
                pass

    def _message(self, event: Event, what: str) -> None:
        self.messages.append(
            (event.at_ms, f"driver {event.fields.get('driver')}  {what}  {event.fields.get('message', '')}")
        )

    def _finished(self, event: Event) -> None:
        fields = event.fields
        self._driver(event).batches += 1
        self.batches.append(
            ReportedBatch(
                at_ms=event.at_ms,
                number=int(fields.get("batch") or 0),
                rows=fields.get("rows") or {},
                transactions=int(fields.get("transactions") or 0),
                recovered=bool(fields.get("recovered")),
                healed=int(fields.get("healed") or 0),
                seconds={phase_name(name): float(spent) for name, spent in (fields.get("seconds") or {}).items()},
            )
        )

    def _struck(self, event: Event) -> None:
        fields = event.fields
        step = self._step(fields.get("step"), fields.get("fault"))
        step.fault_ms = event.at_ms
        step.system = str(fields.get("system") or step.system)
        step.request = str(fields.get("request") or step.request)
        step.hit = phase_name(fields.get("phase"))
        step.aimed = phase_name(fields["aimed"]) if fields.get("aimed") else step.aimed
        step.batch, step.driver, step.held = fields.get("batch"), fields.get("driver"), bool(fields.get("held"))


def signal_name(number: int) -> str:
    """Returns ``SIGKILL`` for 9, and words for a number without a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

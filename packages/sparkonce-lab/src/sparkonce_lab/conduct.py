"""Keeps a query running across all of its drivers, brings it to the point of a fault, and records everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.child import Driver, fields_of
from sparkonce_lab.clock import FakeClock, find_faketime
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.faults import ENDS_THE_DRIVER, Fault
from sparkonce_lab.history import EventKind, Recorder
from sparkonce_lab.query import QueryConfig
from sparkonce_lab.schedule import FIRST_BATCH, Step
from sparkonce_lab.watch import note_sizes

_POLL_S = 0.01
_STOP_S = 150.0
_CHECK_EVERY_S = 0.5
"""The time that a driver is held before a fault is injected, in seconds. Readers poll several times a second."""
_SAMPLE_S = 5.0
_BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)
_ARMED_S = 20.0
"""The longest wait for a phase, in seconds. After that, the fault is injected in the driver's current phase."""
_OF_THE_FIRST_BATCH = frozenset(phase.name for phase in FIRST_BATCH)


class StuckError(RunFailedError):
    """Raised if something did not happen before its deadline, which is a finding, not a failure of the verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The longest waits, in seconds, and the maximum number of attempts.

    Attributes:
        start_s: The time from a driver's start to its first batch.
        recover_s: The time from the end of a fault to the next finished batch.
        end_s: The time that a superseded driver takes to end on its own.
        falls: The number of consecutive drivers that may end on their own without finishing a batch.
    """

    start_s: float = 120.0
    recover_s: float = 180.0
    end_s: float = 120.0
    falls: int = 8

    def to_json(self) -> dict[str, float]:
        return asdict(self)


class Conductor:
    """Keeps one query running on its checkpoint, through all of the query's drivers."""

    def __init__(
        self,
        config: QueryConfig,
        *,
        checkpoint: CheckpointFiles,
        module: str,
        folder: Path,
        recorder: Recorder,
        limits: RunLimits,
        check: Callable[[], None],
    ) -> None:
        self.config = config
        self.limits = limits
        self.recorder = recorder
        self.driver: Driver | None = None
        self.finished = 0
        self._checkpoint = checkpoint
        self._module = module
        self._folder = folder
        self._check = check
        self._drivers: list[Driver] = []
        self._unrecovered: list[Step] = []
        self._hold = ""
        self._fell = 0
        self._clock_s: int | None = None
        self._sampled_at = 0.0

    @property
    def started(self) -> int:
        """The number of drivers that were started, which is also the number of the newest driver."""
        return len(self._drivers)

    # --- drivers ------------------------------------------------------------------------------------------------------

    def start(self, *, clock_s: int | None = None, **changed: Any) -> Driver:
        """Starts a driver, in addition to those that are running. Changes to its configuration apply from now on.

        The driver's clock is ``clock_s`` seconds ahead at its start, or the machine's clock if ``clock_s`` is None.
        """
        self._clock_s = clock_s
        self.config = replace(self.config, **changed)
        number = len(self._drivers) + 1
        config = replace(self.config, hold=self._hold)
        library = find_faketime() if clock_s is not None else None
        driver = Driver(
            number,
            config.to_json(),
            log=self._folder / f"driver-{number}.log",
            temporary=Path(config.temporary),
            module=self._module,
            clock=FakeClock(library, self._folder / f"clock-{number}", clock_s or 0) if library is not None else None,
        )
        self._drivers.append(driver)
        self.driver = driver
        self.recorder.note(EventKind.START, driver=number, pid=driver.pid, slots=config.slots, master=config.master)
        return driver

    def kill(self, driver: Driver, *, asked: bool = True) -> None:
        """Kills a driver with all its processes (SIGKILL), or whichever of its processes are left.

        If the verifier did not ask for the driver's end, ``asked`` is False, and the checkers judge why the driver
        ended.
        """
        driver.kill()
        self.hear(driver)
        if not driver.end_noted:
            driver.end_noted = True
            self.recorder.note(EventKind.ENDED, driver=driver.number, code=driver.exit_code(), asked=asked)

    def stop(self) -> Driver | None:
        """Stops the running driver normally or, if it does not stop, by force. Returns the driver."""
        driver, self.driver = self.driver, None
        if driver is not None:
            driver.ask_to_stop()
            give_up_at = time.monotonic() + _STOP_S
            while driver.exit_code() is None and time.monotonic() < give_up_at:
                self.hear(driver)
                time.sleep(_POLL_S)
            self.kill(driver, asked=driver.exit_code() == 0)
        return driver

    def end(self) -> None:
        """Ends every remaining process. If some attempts fail, raises the last error after all attempts."""
        with ExitStack() as stack:
            for driver in self._drivers:
                if not driver.end_noted:
                    stack.callback(driver.kill)
                    stack.callback(driver.resume)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, holds: Callable[[], bool], limit_s: float, *, keep_running: bool = True) -> bool:
        """Waits for a condition. Meanwhile, reads the drivers' events, and restarts the driver if it ended on its own.

        Returns True if the condition became true in time.
        """
        give_up_at = time.monotonic() + limit_s
        while True:
            # Check the condition first, so that the history records it before the events that it causes.
            if holds():
                return True
            self.pump(keep_running)
            if holds():
                return True
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_POLL_S)

    def need(
        self, holds: Callable[[], bool], limit_s: float, what: str, step: int = 0, *, keep_running: bool = True
    ) -> None:
        """Waits like `wait`, for a condition that must become true.

        Raises:
            StuckError: If the condition does not become true, or if one driver after another ends before it does.
        """
        came = False

        def comes_or_never_will() -> bool:
            nonlocal came
            came = holds()
            return came or self._fell >= self.limits.falls

        self.wait(comes_or_never_will, limit_s, keep_running=keep_running)
        if not came:
            fell = self._fell >= self.limits.falls
            why = f"{self._fell} drivers in a row ended on their own" if fell else f"not within {limit_s:.0f} s"
            self.recorder.note(EventKind.STUCK, step=step, what=f"{why}: {what}")
            raise StuckError(f"{why}: {what}", next_step=f"Read the logs in {self._folder}.")

    def pause(self, seconds: float) -> None:
        """Lets time pass while the query is running."""
        self.wait(lambda: False, seconds)

    def pump(self, keep_running: bool = True) -> None:
        self._check()
        for driver in self._drivers:
            if not driver.end_noted:
                self.hear(driver)
                if driver.exit_code() is not None:
                    self.kill(driver, asked=False)  # This kills the driver's remaining processes, and records its end.
        if keep_running and self.driver is not None and self.driver.exit_code() is not None:
            self._restart()
        if time.monotonic() - self._sampled_at > _SAMPLE_S:
            self._sampled_at = time.monotonic()
            self._sample()

    def hear(self, driver: Driver) -> None:
        for event in driver.news():
            fields: Mapping[str, Any] = {"driver": driver.number, **fields_of(event)}
            match event["event"]:
                case "phase":
                    self.recorder.note(EventKind.PHASE, **fields)
                case "batch":
                    self.finished += 1
                    self._fell = 0
                    self.recorder.note(EventKind.BATCH, **fields)
                    for step in self._unrecovered:
                        self.recorder.note(
                            EventKind.RECOVERED, step=step.number, driver=driver.number, batch=event["batch"]
                        )
                    self._unrecovered.clear()
                case "log":
                    self.recorder.note(EventKind.LOG, **fields)
                case "stop" if driver.asked_to_stop:
                    # The driver was stopped during a batch.
                    self.recorder.note(EventKind.LOG, level="ERROR", **fields)
                case "stop" | "failed":
                    self.recorder.note(EventKind.STOPPED, **fields)

    def _restart(self) -> None:
        back_off_s = _BACK_OFF_S[min(self._fell, len(_BACK_OFF_S) - 1)]
        self._fell += 1
        self.driver = None
        self.wait(lambda: False, back_off_s, keep_running=False)
        if self.driver is None:
            self.start(clock_s=self._clock_s)

    def _sample(self) -> None:
        if self.driver is None:
            return
        for used in self.driver.usage():
            self.recorder.note(
                EventKind.RESOURCES,
                driver=self.driver.number,
                role=used.role,
                pid=used.pid,
                rss_mib=used.rss_mib,
                handles=used.handles,
            )
        note_sizes(self.recorder, self._checkpoint)

    # --- steps --------------------------------------------------------------------------------------------------------

    def aim(self, step: Step) -> Driver:
        """Brings the query to the point of a step. Returns the driver at that point, or as close to it as it got."""
        if step.phase not in _OF_THE_FIRST_BATCH or not self._unrecovered:
            self.settle(step.number)
            enough = self.finished + step.batches
            self.need(
                lambda: self.finished >= enough, self.limits.recover_s, f"{step.batches} more batches", step.number
            )
        if step.delay_ms == 0:
            self._bring_to_hold(step.phase)
        else:
            self._wait_at_work(self._comes_to(step.phase))
            self.wait(lambda: False, step.delay_ms / 1000, keep_running=False)
        self._hold = ""
        self.need(lambda: self.driver is not None, self.limits.start_s, "a driver runs", step.number)
        if self.driver is None:
            raise RunFailedError("No driver runs.", next_step=f"Read the logs in {self._folder}.")
        return self.driver

    def expect(self, following: Step | None) -> None:
        """Holds the next driver as soon as it starts, if the next step targets its first batch."""
        aims = following is not None and following.delay_ms == 0 and following.phase in _OF_THE_FIRST_BATCH
        self._hold = following.phase if aims and following is not None else ""

    def settle(self, step: int) -> None:
        """Waits until the query has recovered from all faults so far."""
        self.need(lambda: not self._unrecovered, self.limits.recover_s, "a batch is finished after the fault", step)

    def note_fault(self, step: Step, driver: Driver) -> None:
        """Records where a fault hits. Called directly before the fault is injected."""
        self.recorder.note(
            EventKind.FAULT,
            step=step.number,
            fault=step.fault.value,
            system=step.system,
            request=step.request,
            driver=driver.number,
            phase=driver.held or driver.phase,
            batch=driver.batch,
            aimed=step.phase,
            held=bool(driver.held),
        )

    def note_over(self, step: Step) -> None:
        """Records that a fault is over. From then on, a finished batch means recovery."""
        self.recorder.note(EventKind.OVER, step=step.number)
        self._unrecovered.append(step)

    def note_skipped(self, step: Step, why: str) -> None:
        """Records that a fault could not be injected."""
        self.recorder.note(EventKind.SKIPPED, step=step.number, fault=step.fault.value, why=why)

    def _bring_to_hold(self, phase: str) -> None:
        """Holds the driver at a phase. Gives up once drivers have been active for too long without reaching it."""
        self._hold = phase
        told: Driver | None = None

        def is_held() -> bool:
            nonlocal told
            if self.driver is not None and self.driver is not told:
                told = self.driver
                told.hold_at(phase)  # Drivers that are started later get the phase from their configuration.
            return self.driver is not None and self.driver.held == phase

        if self._wait_at_work(is_held):
            self.pause(_CHECK_EVERY_S)
        elif self.driver is not None:
            self.driver.go()

    def _wait_at_work(self, holds: Callable[[], bool]) -> bool:
        """Waits until the condition is true, or until a driver has been active for too long.

        The time that drivers take to start does not count.
        """
        held = False

        def holds_or_begun() -> bool:
            nonlocal held
            held = holds()
            return held or (self.driver is not None and self.driver.phases > 0)

        self.wait(holds_or_begun, self.limits.start_s)
        return held or self.wait(holds, _ARMED_S)

    def _comes_to(self, phase: str) -> Callable[[], bool]:
        """Returns a function that returns True once the newest driver has reached a phase since this call."""
        before = (self.driver, self.driver.phases if self.driver else 0)

        def comes() -> bool:
            now = self.driver
            return now is not None and (now, now.phases) != before and now.phase == phase

        return comes


def of_next_driver(steps: Sequence[Step]) -> frozenset[Fault]:
    """Returns the faults for the driver that is being started: all up to the one that ends it."""
    found = []
    for step in steps:
        found.append(step.fault)
        if step.fault in ENDS_THE_DRIVER:
            break
    return frozenset(found)

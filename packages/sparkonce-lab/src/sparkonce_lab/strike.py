"""Injects the faults of a schedule, one by one, into a query and its systems. Reports which faults are impossible."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparkonce.errors import ConfigurationError
from sparkonce_lab.child import Driver
from sparkonce_lab.clock import SEEN_WITHIN_S, find_faketime
from sparkonce_lab.conduct import Conductor, of_next_driver
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.faults import OF_REQUESTS, OF_THE_QUERY, STORE, Fault
from sparkonce_lab.query import LOCAL
from sparkonce_lab.rig.disk import SmallDisk, cannot_mount
from sparkonce_lab.schedule import Choice, Step
from sparkonce_lab.systems.base import VerifiedSystem
from sparkonce_lab.systems.injections import Injectable
from sparkonce_lab.systems.kafka import KafkaSystem

_SPRUNG_S = 60.0
_EXPIRY_MARGIN_S = 60.0
_EXPIRY_POLL_S = 1.0
WITH_EXECUTORS = "local-cluster[1,2,1024]"


class Striker:
    """Carries out the steps of a schedule."""

    def __init__(
        self,
        conductor: Conductor,
        systems: Mapping[str, VerifiedSystem],
        *,
        seed: int,
        disk: SmallDisk | None,
        store: Injectable | None = None,
        expiry_s: float,
        every_s: float = 0.0,
    ) -> None:
        self._conductor = conductor
        self._systems = systems
        self._struck: dict[str, Injectable] = {**systems, **({store.name: store} if store else {})}
        self._dice = random.Random(seed)  # noqa: S311 - chooses which worker is killed, not used for secrets
        self._disk = disk
        self._expiry_s = expiry_s
        self._every_s = every_s
        self._strikes = {
            Fault.DRIVER_KILLED: self._kill_driver,
            Fault.OTHER_PARALLELISM: self._kill_driver,
            Fault.EXPIRED: self._let_expire,
            Fault.DRIVER_PAUSED: self._pause_driver,
            Fault.TWO_DRIVERS: self._two_drivers,
            Fault.CLOCK_JUMPED: self._jump_clock,
            Fault.EXECUTOR_KILLED: self._kill_executor,
            Fault.WORKER_KILLED: self._kill_worker,
            Fault.LOG_DISK_FULL: self._fill_disk,
        }

    def carry_out(self, steps: Sequence[Step]) -> None:
        """Carries out all steps, and waits for the recovery from each of them."""
        due = time.monotonic()
        for number, step in enumerate(steps):
            following = steps[number + 1 :]
            self._conductor.pause(due - time.monotonic())
            due = time.monotonic() + self._every_s
            driver = self._conductor.aim(step)
            strike = self._strikes.get(step.fault, self._strike_system)
            strike(step, driver, following)
            driver.go()
        self._conductor.settle(steps[-1].number if steps else 0)

    def start(self, steps: Sequence[Step], slots: int = 0, *, beside: bool = False, clock_s: int = 0) -> Driver:
        """Starts a driver with this number of slots for the following steps.

        If another driver is active (``beside``), the new driver is not held for the next step. Its clock is ``clock_s``
        seconds ahead at its start.
        """
        conductor = self._conductor
        conductor.expect(steps[0] if steps and not beside and not self._every_s else None)
        faults = of_next_driver(steps)
        master = WITH_EXECUTORS if Fault.EXECUTOR_KILLED in faults else LOCAL
        clock = clock_s if clock_s or Fault.CLOCK_JUMPED in faults else None
        return conductor.start(clock_s=clock, master=master, slots=slots)

    # --- the driver ---------------------------------------------------------------------------------------------------

    def _kill_driver(self, step: Step, driver: Driver, following: Sequence[Step]) -> None:
        conductor = self._conductor
        conductor.note_fault(step, driver)
        conductor.driver = None
        conductor.kill(driver)
        slots = step.amount if step.fault is Fault.OTHER_PARALLELISM else conductor.config.slots
        self.start(following, slots, clock_s=step.amount if step.fault is Fault.CLOCK_JUMPED else 0)
        conductor.note_over(step)

    def _let_expire(self, step: Step, driver: Driver, following: Sequence[Step]) -> None:
        """Kills the driver, and starts a new one after the broker has aborted the driver's open transactions."""
        conductor, kafka = self._conductor, self._systems["kafka"]
        conductor.driver = None
        conductor.kill(driver)
        give_up_at = time.monotonic() + self._expiry_s + _EXPIRY_MARGIN_S
        left = _ask(kafka, give_up_at)
        # If the driver has left nothing open, it had not reached the step's phase, so this counts as an ordinary kill.
        conductor.note_fault(step if left else replace(step, fault=Fault.DRIVER_KILLED), driver)
        while left:
            conductor.pause(_EXPIRY_POLL_S)
            left = _ask(kafka, give_up_at)
            if left and time.monotonic() > give_up_at:
                raise RunFailedError(
                    f"Kafka has not ended {left[0]} {self._expiry_s:.0f} s after its driver's end.",
                    next_step="Read the broker's log; perhaps the machine is too slow.",
                )
        self.start(following, conductor.config.slots)
        conductor.note_over(step)

    def _pause_driver(self, step: Step, driver: Driver, following: Sequence[Step]) -> None:
        """Pauses the driver until its successor has finished a batch. One of the two drivers must then end on its own.

        Normally, the paused driver ends. If it was paused before it had claimed the query, its claim is newer than the
        successor's, and the successor must end.
        """
        conductor = self._conductor
        conductor.note_fault(step, driver)
        driver.pause()
        successor = self.start(following, conductor.config.slots, beside=True)
        driver.go()  # The driver receives this command once it resumes.
        conductor.need(
            lambda: conductor.driver is not None and conductor.driver.finished >= 0,
            conductor.limits.start_s,
            "the driver next to the paused one finishes a batch",
            step.number,
        )
        driver.resume()
        self._see_one_end(driver, conductor.driver or successor, step)

    def _two_drivers(self, step: Step, driver: Driver, following: Sequence[Step]) -> None:
        """Starts a second driver. Both run until one has superseded the other."""
        conductor = self._conductor
        conductor.note_fault(step, driver)
        rival = self.start(following, conductor.config.slots, beside=True)
        driver.go()
        self._see_one_end(driver, rival, step)

    def _see_one_end(self, driver: Driver, rival: Driver, step: Step) -> None:
        """Waits until one of two drivers has ended on its own. The other one continues."""
        conductor = self._conductor
        conductor.need(
            lambda: any(one.exit_code() is not None for one in (driver, rival)),
            conductor.limits.end_s,
            "a superseded driver ends on its own",
            step.number,
            keep_running=False,
        )
        conductor.driver = driver if rival.exit_code() is not None else rival
        conductor.note_over(step)

    def _jump_clock(self, step: Step, driver: Driver, following: Sequence[Step]) -> None:
        # Do not set a running driver's clock back: in its JVM, the monotonic clock would also go back, and scheduled
        # events would never run.
        if step.amount < 0:
            self._kill_driver(step, driver, following)
            return
        if driver.clock is None:
            self._conductor.note_skipped(step, "this driver shares the machine's clock")
            return
        self._conductor.note_fault(step, driver)
        driver.clock.jump(step.amount)
        self._conductor.pause(SEEN_WITHIN_S)
        self._conductor.note_over(step)

    def _kill_executor(self, step: Step, driver: Driver, _: Sequence[Step]) -> None:
        self._kill_one(step, driver, driver.executors(), "no executor has its own process now")

    def _kill_worker(self, step: Step, driver: Driver, _: Sequence[Step]) -> None:
        self._kill_one(step, driver, driver.workers(), "no Python worker is alive now")

    def _kill_one(self, step: Step, driver: Driver, candidates: Sequence[int], why: str) -> None:
        try:
            os.kill(self._dice.choice(sorted(candidates)), signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            self._conductor.note_skipped(step, why)
            return
        self._conductor.note_fault(step, driver)
        self._conductor.note_over(step)

    def _fill_disk(self, step: Step, driver: Driver, _: Sequence[Step]) -> None:
        conductor = self._conductor
        if self._disk is None:
            conductor.note_skipped(step, "the checkpoint is not on a disk that can be filled")
            return
        try:
            self._disk.fill()
            conductor.note_fault(step, driver)
            driver.go()
            conductor.pause(step.lasts_ms / 1000)
        except TimeoutError as error:
            conductor.note_skipped(step, str(error))
            return
        finally:
            self._disk.free()
        conductor.note_over(step)

    # --- systems ------------------------------------------------------------------------------------------------------

    def _strike_system(self, step: Step, driver: Driver, _: Sequence[Step]) -> None:
        conductor, system = self._conductor, self._struck[step.system]
        if step.fault in OF_REQUESTS:
            self._strike_request(step, driver, system)
            return
        try:
            lasts = system.inject(step.fault)
        except TimeoutError as error:
            conductor.note_skipped(step, str(error))
            return
        conductor.note_fault(step, driver)
        try:
            driver.go()
            if lasts:
                conductor.pause(step.lasts_ms / 1000)
        finally:
            if lasts:
                system.lift(step.fault)
        conductor.note_over(step)

    def _strike_request(self, step: Step, driver: Driver, system: Injectable) -> None:
        conductor = self._conductor
        system.inject(step.fault, request=step.request)
        try:
            driver.go()
            sprung = conductor.wait(system.sprung, _SPRUNG_S)
            if sprung:
                conductor.note_fault(step, conductor.driver or driver)
                conductor.pause(step.lasts_ms / 1000 if step.fault is Fault.REQUEST_LATE else 0)
        finally:
            late = system.sprung()
            system.lift(step.fault)
        if late and not sprung:
            conductor.note_fault(step, conductor.driver or driver)
        if late:
            conductor.note_over(step)
        else:
            conductor.note_skipped(step, f"no request {step.request!r} came within {_SPRUNG_S:.0f} s")


def _ask(system: VerifiedSystem, give_up_at: float) -> Sequence[str]:
    """Returns the open transactions of a system, retrying while it does not respond."""
    while True:
        try:
            return system.left_open()
        except Exception as error:
            if time.monotonic() > give_up_at:
                raise RunFailedError(
                    f"The system {system.name} does not report what is open: {error}",
                    next_step="Read its log, and run the verifier again.",
                ) from error
        time.sleep(_EXPIRY_POLL_S)


def choices(
    systems: Sequence[VerifiedSystem],
    source: VerifiedSystem,
    *,
    disk: bool,
    wanted: Sequence[Fault] = (),
    store: Injectable | None = None,
) -> list[Choice]:
    """Lists the faults that can be injected into these systems and their query."""
    expires = source in systems and Fault.SERVER_KILLED in source.faults()
    found = [
        Choice(fault=fault)
        for fault in Fault
        if not fault.of_a_system
        and (fault is not Fault.LOG_DISK_FULL or disk)
        and (fault is not Fault.EXPIRED or expires)
        and (fault is not Fault.CLOCK_JUMPED or find_faketime())
    ]
    for system in dict.fromkeys([*systems, source, *([store] if store else [])]):
        for fault, requests in system.faults().items():
            # Leave out aborts: only sweeps send them, so a trap for one would hardly ever be triggered.
            regular = tuple(request for request in requests if request != "abort")
            if system is not source or source in systems or fault not in OF_REQUESTS:
                found.append(Choice(fault=fault, system=system.name, requests=regular))
    return [choice for choice in found if not wanted or choice.fault in wanted]


Hindrances = Mapping[tuple[Fault, str], str]
"""The reasons why faults are impossible, by fault and system name. The name is empty for faults of the query."""
_OF_SERVERS = (Fault.SERVER_KILLED, Fault.SERVER_PAUSED)


def hindrances(
    systems: Sequence[VerifiedSystem], source: VerifiedSystem, *, disk: bool, store: Injectable | None = None
) -> Hindrances:
    """Returns the faults that are impossible in this run, although they are possible elsewhere, with the reasons."""
    ours = source in systems and Fault.SERVER_KILLED in source.faults()
    of_query = {
        Fault.LOG_DISK_FULL: "" if disk else cannot_mount() if store is None else "the checkpoint is in a store",
        Fault.CLOCK_JUMPED: "" if find_faketime() else "libfaketime is not installed",
        Fault.EXPIRED: "" if ours else "it needs the system kafka, with brokers that sparkonce starts",
    }
    found = {(fault, ""): why for fault, why in of_query.items()}
    for system in dict.fromkeys([*systems, source, *([store] if store else [])]):
        for fault in Fault:
            if fault not in OF_THE_QUERY and fault not in system.faults():
                found[fault, system.name] = _why_not(fault, system)
    return {one: why for one, why in found.items() if why}


def _why_not(fault: Fault, system: Injectable) -> str:
    """Returns why a fault is impossible in a system; empty if it never applies to such a system."""
    is_kafka, is_files = isinstance(system, KafkaSystem), system.name in ("files", "delta")
    is_ours = Fault.SERVER_KILLED in system.faults()
    if fault is Fault.COORDINATOR_MOVED:
        return ("there is only one broker: --brokers 3" if is_ours else "it is your own") if is_kafka else ""
    if fault is Fault.TARGET_DISK_FULL:
        return cannot_mount() or "it is your own"
    if is_files:
        return ""
    if fault in _OF_SERVERS:
        return "it is your own"
    if is_kafka:
        return "clients go to the addresses that its brokers advertise"
    return "its connections are encrypted" + (", or not those of S3" if system.name == STORE else "")


def words_of(why: Hindrances) -> str:
    """Describes impossible faults, grouped by reason; empty if there are none."""
    alike: dict[tuple[str, str], list[str]] = {}
    for (fault, system), reason in why.items():
        alike.setdefault((system, reason), []).append(fault.value)
    return "; ".join(
        f"{', '.join(faults)}{' of ' + system if system else ''} ({reason})"
        for (system, reason), faults in alike.items()
    )


def check_steps(steps: Sequence[Step], choices: Sequence[Choice], why: Hindrances) -> None:
    """Rejects a schedule with impossible steps, before any step is carried out.

    Raises:
        ConfigurationError: If there are such steps. The message names each of them, and the reason.
    """
    requests = {(choice.fault, choice.system): choice.requests for choice in choices}
    impossible = []
    for step in steps:
        one = (step.fault, step.system)
        if one not in requests:
            impossible.append(f"step {step.number}, {_named(step)}: {why.get(one, 'there is nothing to strike')}")
        elif step.fault in OF_REQUESTS and step.request not in requests[one]:
            known = ", ".join(requests[one])
            impossible.append(f"step {step.number}, {_named(step)}: its requests are {known}, not {step.request}")
    if impossible:
        raise ConfigurationError(
            f"{len(impossible)} of {len(steps)} steps cannot be injected here: {'; '.join(impossible)}",
            next_step="Give the systems of the run that the schedule was made for, or leave these steps out.",
        )


def _named(step: Step) -> str:
    return f"{step.fault.value} of {step.system}" if step.system else step.fault.value

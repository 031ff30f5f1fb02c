"""The faults that cannot be injected here, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkonce.errors import ConfigurationError
from sparkonce_lab.clock import find_faketime
from sparkonce_lab.faults import OF_REQUESTS, OF_THE_QUERY, STORE, Fault
from sparkonce_lab.rig.disk import cannot_mount
from sparkonce_lab.schedule import Choice, Step
from sparkonce_lab.systems.base import Strikable, VerifiedSystem
from sparkonce_lab.systems.kafka import KafkaSystem

Hindrances = Mapping[tuple[Fault, str], str]
"""The reasons why not, by fault and the system's name, which is empty for faults of the query."""

_OF_SERVERS = (Fault.SERVER_KILLED, Fault.SERVER_PAUSED)


def hindrances(
    systems: Sequence[VerifiedSystem], source: VerifiedSystem, *, disk: bool, store: Strikable | None = None
) -> Hindrances:
    """Returns the faults that cannot be injected here and could be elsewhere, with the reasons.

    Args:
        systems: What the query writes to; they are started.
        source: What it reads from, perhaps one of them.
        disk: Whether the disk of checkpoint and log can be filled.
        store: Of the checkpoint, if that is not on a disk of our own.
    """
    ours = source in systems and Fault.SERVER_KILLED in source.faults()
    of_query = {
        Fault.LOG_DISK_FULL: "" if disk else cannot_mount() if store is None else "the checkpoint is in a store",
        Fault.CLOCK_JUMPED: "" if find_faketime() else "libfaketime is not installed",
        Fault.EXPIRED: "" if ours else "it needs the system kafka, with brokers of our own",
    }
    found = {(fault, ""): why for fault, why in of_query.items()}
    for system in dict.fromkeys([*systems, source, *([store] if store else [])]):
        for fault in Fault:
            if fault not in OF_THE_QUERY and fault not in system.faults():
                found[fault, system.name] = _why_not(fault, system)
    return {one: why for one, why in found.items() if why}


def _why_not(fault: Fault, system: Strikable) -> str:
    """Returns why a system lacks a fault, or an empty string if it never has it."""
    is_kafka, is_files = isinstance(system, KafkaSystem), system.name in ("files", "delta")
    is_ours = Fault.SERVER_KILLED in system.faults()
    if fault is Fault.COORDINATOR_MOVED:
        return ("there is one broker only: --brokers 3" if is_ours else "it is your own") if is_kafka else ""
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
    """Describes them, those with the same reason together. Empty if there are none."""
    alike: dict[tuple[str, str], list[str]] = {}
    for (fault, system), reason in why.items():
        alike.setdefault((system, reason), []).append(fault.value)
    return "; ".join(
        f"{', '.join(faults)}{' of ' + system if system else ''} ({reason})"
        for (system, reason), faults in alike.items()
    )


def check_steps(steps: Sequence[Step], choices: Sequence[Choice], why: Hindrances) -> None:
    """Refuses a schedule of which something cannot be injected, before anything is struck.

    Raises:
        ConfigurationError: naming each such step, and why.
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

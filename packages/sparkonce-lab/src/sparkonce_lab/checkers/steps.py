"""The faults that happened, each with the part of the history in which it explains something."""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce_lab.faults import Fault
from sparkonce_lab.history import EventKind, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that happened.

    Attributes:
        number: The step's.
        fault: What.
        system: The name of the system that it struck; empty for the query.
        driver: The number of the driver that it met.
        since: Place of `EventKind.FAULT` in the history.
        until: Place of `EventKind.RECOVERED` of this step or of a later one; None if it was never recovered from.
    """

    number: int
    fault: Fault
    system: str
    driver: int
    since: int
    until: int | None

    def is_over(self, place: int) -> bool:
        """Tells whether it was recovered from before a place of the history."""
        return self.until is not None and self.until < place


def steps_of(history: History) -> list[Struck]:
    """Lists every fault, in its order."""
    recovered = [(at, event["step"]) for at, event in enumerate(history.events) if event.kind is EventKind.RECOVERED]
    return [
        Struck(
            number=event["step"],
            fault=Fault(event["fault"]),
            system=str(event.fields.get("system") or ""),
            driver=event["driver"],
            since=since,
            until=next((at for at, step in recovered if at > since and step >= event["step"]), None),
        )
        for since, event in enumerate(history.events)
        if event.kind is EventKind.FAULT
    ]

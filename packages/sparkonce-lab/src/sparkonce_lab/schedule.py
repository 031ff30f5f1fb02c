"""The schedule of faults. Their order and timing are drawn from a seed or read from a file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import ENDS_THE_DRIVER, OF_REQUESTS, Fault

EVERY_BATCH = (Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.SWEEPING_OWN, Phase.IDLE)
"""The phases that a schedule targets. Most batches go through all of them."""
FIRST_BATCH = (Phase.READING, Phase.CLAIMING, Phase.SWEEPING, Phase.REPLAYING)
"""The phases of a driver's first batch. A fault can strike there while a driver recovers from the previous step."""
HALFWAY = "HALFWAY"
"""A point in `Phase.FINISHING` where half of a batch's transactions are committed. Only the demo uses it."""

_DRIFTS_MS = (0, 0, 0, 0, 20, 200)
"""The delays after the beginning of a phase, in milliseconds. At 0, the query is held until the fault is injected."""
_LASTS_MS = (*(500, 1_000, 2_000, 4_000) * 4, 20_000, 75_000)
"""Durations of faults. Most are shorter than any timeout. 20 s exceeds the waits at start, 75 s those at a commit."""
_BATCHES = (1, 1, 2, 3)
_SLOTS = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fault of a schedule.

    Attributes:
        number: The step's number, from 1.
        fault: The fault.
        phase: The name of the driver's `Phase` in which the fault is injected, or `HALFWAY`.
        system: The name of the system that the fault strikes; empty for a fault that affects the query's own processes.
        request: The system's request that the fault strikes, for a fault of one request.
        batches: The number of batches to finish after recovering from the previous step.
        delay_ms: The time after the beginning of the phase, in milliseconds. At 0, the query is held at the beginning
            of the phase until the fault is injected.
        lasts_ms: The duration of an outage, a pause, or slowness, in milliseconds.
        amount: A parameter of the fault: the seconds by which the clock jumps, or the number of the new driver's slots.
    """

    number: int
    fault: Fault
    phase: str
    system: str = ""
    request: str = ""
    batches: int = 1
    delay_ms: int = 0
    lasts_ms: int = 1_000
    amount: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fault": self.fault.value}

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Step:
        """Reads the output of `to_json`; raises ConfigurationError if a field is missing, unknown, or invalid."""
        try:
            step = cls(**{**fields, "fault": Fault(fields["fault"])})
            if step.phase != HALFWAY:
                Phase[step.phase]
            step._check()
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"A step of the schedule cannot be read: {fields!r}: {error!r}",
                next_step="Correct it: schedules that were drawn show how steps look.",
            ) from error
        return step

    def _check(self) -> None:
        for name in ("number", "batches", "delay_ms", "lasts_ms", "amount"):
            value = getattr(self, name)
            if type(value) is not int or (value < 0 and name != "amount"):
                raise ValueError(f"{name}={value!r} is not a whole number of 0 or more")
        for name, needed in (("system", self.fault.of_a_system), ("request", self.fault in OF_REQUESTS)):
            value = getattr(self, name)
            if not isinstance(value, str) or bool(value) != needed:
                wants = f"needs a {name}" if needed else f"takes no {name}"
                raise ValueError(f"{name}={value!r}: {self.fault.value} {wants}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A fault that can be injected in this run, into a system or into the query's own processes.

    A fault of one request comes with the names of possible requests.
    """

    fault: Fault
    system: str = ""
    requests: tuple[str, ...] = ()


def draw(seed: int, count: int, choices: Sequence[Choice]) -> list[Step]:
    """Draws a schedule, the same for the same arguments.

    All choices occur equally often, in random order. Phases also take turns. However, phases of a driver's first batch
    are only used after a step that starts a driver, and `Fault.EXPIRED` has its own phases.

    Raises:
        ConfigurationError: If no fault can be injected.
    """
    if not choices:
        raise ConfigurationError("No fault can be injected here.", next_step="Name other systems or other faults.")
    dice = random.Random(seed)  # noqa: S311 - for reproducible schedules, not for secrets
    deck: list[Choice] = []
    phases: list[Phase] = []
    steps: list[Step] = []
    for number in range(1, count + 1):
        deck = deck or dice.sample(choices, len(choices))
        phases = phases or dice.sample(EVERY_BATCH + FIRST_BATCH, len(EVERY_BATCH + FIRST_BATCH))
        choice = deck.pop()
        phase = Phase.FINISHING
        if choice.fault is not Fault.EXPIRED:
            after_restart = bool(steps) and steps[-1].fault in ENDS_THE_DRIVER
            open_to = [one for one in phases if after_restart or one in EVERY_BATCH]
            phase = open_to[0] if open_to else dice.choice(EVERY_BATCH)
            if open_to:
                phases.remove(phase)
        before = next((step.amount for step in reversed(steps) if step.fault is Fault.OTHER_PARALLELISM), 0)
        steps.append(_step(dice, number, choice, phase, before))
    return steps


def _step(dice: random.Random, number: int, choice: Choice, phase: Phase, slots_before: int) -> Step:
    fault = choice.fault
    amount = 0
    if fault is Fault.CLOCK_JUMPED:
        amount = dice.choice((-86_400, -3_600, -60, 60, 3_600, 86_400))
    elif fault is Fault.OTHER_PARALLELISM:
        amount = dice.choice([slots for slots in _SLOTS if slots != slots_before])
    return Step(
        number=number,
        fault=fault,
        phase=phase.name,
        system=choice.system,
        request=dice.choice(choice.requests) if fault in OF_REQUESTS else "",
        batches=0 if phase in FIRST_BATCH else dice.choice(_BATCHES),
        delay_ms=dice.choice(_DRIFTS_MS),
        lasts_ms=dice.choice(_LASTS_MS),
        amount=amount,
    )

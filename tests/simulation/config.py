"""The size of a schedule's world, and the faults that may occur in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

KINDS = ("kafka-v1", "kafka-v2", "postgres", "postgres-staged", "mariadb", "files", "s3", "s3-gateway")
"""The kinds of sinks.

Kafka with `transaction.version` 1 and 2; PostgreSQL with two phases and staged; XA; a local folder; Amazon's S3, and a
gateway that behaves like versitygw.
"""

STAGED = ("rabbitmq-stream", "rabbitmq-queue", "pravega", "delta", "iceberg")
"""Sinks whose rows wait in the checkpoint until their batch is decided. Batches are merged into the tables."""

_HOURS_S = 7_200

COMMIT_DEADLINE_S = 1.5
"""How long a run retries, by the simulated clock."""

FAULTS = (
    "driver killed",
    "task killed",
    "paused",
    "overlap",
    "speculation",
    "request lost",
    "reply lost",
    "request late",
    "refused",
    "put lost",
    "put refused",
    "put unreadable",
    "put repeated",
    "log away",
    "expired",
    "server restarted",
    "connection ended",
    "rows deleted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One world.

    Attributes:
        sinks: The kinds of the unit's sinks, each at most once.
        slots: The number of tasks per batch.
        batches: The number of batches before the fresh run's own.
        runs: How many runs may start before the fresh one.
        faults: The possible faults, from `FAULTS`.
        rate: The probability of a fault at each request.
        events: The probability of a spontaneous event whenever the scheduler has the choice.
        switches: The probability that another party continues before a request.
        keep: How many batches the log retains.
        sweep_every_s: See `sparkonce.driver.run.Timing`.
        deterministic: True if a second execution of a batch returns the same rows.
        keep_ready: True if workers initialize a transactional id for the next task while one is running.
        spreads: True if executions of a batch may have its rows in other slots.
        sweeps_beside: True if a run sweeps in a separate thread, as with `ExactlyOnce`.
        ahead_s: How far executors' clocks are ahead of the servers' and the driver's clocks; negative if they are
            behind.
        long_batches: True if a batch may take as long as transactions live, for sinks whose transactions time out.
        halves: True if batches begin and end in separate processes, as with formats.
        operators: How often an operator resolves what the query has left open.
        power_cuts: How often the machine of all drivers and tasks may lose power.
    """

    sinks: tuple[str, ...]
    slots: int = 1
    batches: int = 1
    runs: int = 2
    faults: frozenset[str] = frozenset(FAULTS)
    rate: float = 0.03
    events: float = 0.1
    switches: float = 0.2
    keep: int = 100
    sweep_every_s: float = 10.0
    deterministic: bool = True
    keep_ready: bool = False
    spreads: bool = False
    sweeps_beside: bool = False
    ahead_s: int = 0
    long_batches: bool = False
    halves: bool = False
    operators: int = 0
    power_cuts: int = 0


def draw(seed: int, kinds: tuple[str, ...] = KINDS) -> Config:
    """The world of a seed: some of the sinks, and some of the faults, each with its own weight."""
    dice = random.Random(~seed)
    drawn = Config(
        sinks=tuple(sorted(dice.sample(kinds, min(len(kinds), dice.choice((1, 1, 1, 2, 2, 3)))))),
        slots=dice.choice((1, 1, 1, 2)),
        batches=dice.choice((1, 1, 1, 1, 2, 3)),
        runs=dice.choice((1, 2, 2, 3)),
        faults=frozenset(fault for fault in FAULTS[:-1] if dice.random() < 0.5),
        rate=dice.choice((0.01, 0.03, 0.1)),
        events=dice.choice((0.03, 0.1, 0.3)),
        switches=dice.choice((0.05, 0.2, 0.5)),
        keep=dice.choice((100, 100, 1, 2)),
        sweep_every_s=dice.choice((10.0, 0.0)),
        deterministic=dice.random() < 0.8,
        keep_ready=dice.random() < 0.5,
        spreads=dice.random() < 0.25,
        ahead_s=dice.choice((0, 0, -_HOURS_S, _HOURS_S)),
        long_batches=dice.random() < 0.25,
        sweeps_beside=dice.random() < 0.5,
    )
    # Drawn last, so that the seeds that existed before this fault was added still produce the same worlds. This fault
    # costs requests at each commit.
    return replace(drawn, faults=drawn.faults | {FAULTS[-1]}) if dice.random() < 0.25 else drawn


def _draw_operated(seed: int) -> Config:
    drawn, dice = draw(seed, (*KINDS, *STAGED)), random.Random(seed)
    halves = dice.random() < 0.6
    sweeps = {"sweeps_beside": False, "sweep_every_s": 0.0} if halves else {}
    return replace(drawn, sinks=drawn.sinks[:1], halves=halves, operators=dice.choice((0, 1, 2)), **sweeps)


def _draw_powered(seed: int) -> Config:
    drawn, dice = draw(seed), random.Random(seed)
    runs, cuts = dice.choice((2, 3, 4)), dice.choice((1, 1, 2))
    return replace(drawn, sinks=drawn.sinks[:1], runs=runs, deterministic=True, power_cuts=cuts)


FAMILIES: Mapping[str, Callable[[int], Config]] = {
    "transactions": draw,
    "staged": lambda seed: draw(seed, STAGED),
    "operated": _draw_operated,
    "powered": _draw_powered,
}
"""Draws worlds of each family.

They have sinks with their own transactions; sinks whose rows wait in the checkpoint; one sink whose batches begin and
end in separate processes, or whose query an operator resolves; or one sink, and a machine that loses power.
"""

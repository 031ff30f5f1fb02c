"""Schedules by seed: one list for everybody, or another one by ``SPARKONCE_SIMULATION_SEED``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from simulation.campaign import explain, walk
from simulation.config import FAMILIES, FAULTS, KINDS, REFUSING, STAGED
from sparkonce.driver import run
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import TRANSITIONS, step
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.state import Phase, State

SCHEDULES = 60_000
DEARER_SCHEDULES = 3_000
"""Of each other family of worlds, whose schedules are longer."""

PIECES = 12
FIRST = int(os.environ.get("SPARKONCE_SIMULATION_SEED", "0"))

FOUND = [("staged", 0), ("staged", 54), ("staged", 1_096), ("reading", 1)]
"""See docs/found.md."""

UNREACHED = {
    # Sinks without transactions do not take part, nobody is told positions, and no model of a server objects. A batch
    # that is too long once all its rows are computed does not come up. A run that has stopped is not asked again.
    (Phase.VALIDATING, on.Objected),
    (Phase.VALIDATING, on.TooOld),
    (Phase.REPORTING, on.Reported),
    (Phase.DELIVERING, on.Prepared),
    (Phase.DELIVERING, on.PrepareFailed),
    (Phase.STOPPED, on.BatchAsked),
}


def no_row_is_doubled_or_lost(family: str, seeds: range, say: Callable[[str], None], folder: Path) -> None:
    began = time.process_time()
    count = walk(seeds, family=family)
    seconds = time.process_time() - began
    say(f"{count.schedules:,} schedules from seed {seeds[0]}, {count.requests:,} requests, {seconds:.1f} s")
    for seed in count.failed:
        failure = explain(seed, family=family)
        path = failure.write(folder)
        pytest.fail(f"seed {seed}: {failure.violation.value}; {path}\n" + "\n".join(failure.told))
    assert count.schedules == len(seeds)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("piece", range(PIECES))
def test_no_schedule_doubles_or_loses_a_row(piece: int, say: Callable[[str], None], tmp_path: Path) -> None:
    each = SCHEDULES // PIECES
    no_row_is_doubled_or_lost("transactions", range(FIRST + piece * each, FIRST + (piece + 1) * each), say, tmp_path)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("family", ["staged", "letters", "reading"])
@pytest.mark.parametrize("piece", range(PIECES))
def test_no_schedule_of_other_worlds_doubles_or_loses_a_row(
    family: str, piece: int, say: Callable[[str], None], tmp_path: Path
) -> None:
    each = DEARER_SCHEDULES // PIECES
    no_row_is_doubled_or_lost(family, range(FIRST + piece * each, FIRST + (piece + 1) * each), say, tmp_path)


@pytest.mark.parametrize(("family", "seed"), FOUND)
def test_a_schedule_that_found_a_fault_breaks_nothing_now(family: str, seed: int) -> None:
    assert walk([seed], family=family).failed == ()


@pytest.mark.parametrize(("family", "kinds"), [("transactions", KINDS), ("staged", STAGED), ("letters", REFUSING)])
def test_the_seeds_draw_every_sink_with_every_other_and_every_fault(family: str, kinds: tuple[str, ...]) -> None:
    worlds = [FAMILIES[family](seed) for seed in range(2_000)]
    pairs = {(one, other) for world in worlds for one in world.sinks for other in world.sinks}
    assert len(pairs) == len(kinds) ** 2
    assert {fault for world in worlds for fault in world.faults} == set(FAULTS)
    assert {(world.batches, world.runs) for world in worlds} >= {(1, 1), (3, 3)}
    assert {world.slots for world in worlds} == ({2} if family == "letters" else {1, 2})


def test_the_schedules_go_through_every_transition() -> None:
    gone_through: set[tuple[Phase, type]] = set()
    outcomes: set[Outcome] = set()

    def noting(state: State, event: on.Event) -> Any:
        gone_through.add((state.phase, type(event)))
        if isinstance(event, on.Finished):
            outcomes.update(event.outcomes)
        return step(state, event)

    with mock.patch.object(run, "step", noting):
        walk(range(1_500))
    assert TRANSITIONS.keys() - gone_through == UNREACHED
    assert outcomes == set(Outcome)

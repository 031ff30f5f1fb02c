"""Schedules by seed: the same for every commit in the first tier, more of them in ``--all``, others by ``--seed``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from simulation.campaign import explain, walk
from simulation.config import FAMILIES, FAULTS, KINDS, STAGED
from sparkonce.driver import run
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import TRANSITIONS, step
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase, State

PIECES = 12
LONG = {"transactions": 60_000, "staged": 3_000, "operated": 6_000, "powered": 6_000}

FOUND = [("staged", 0), ("staged", 54), ("staged", 1_096), ("operated", 3_545), ("powered", 126)]
"""See docs/found.md."""


def no_row_is_doubled_or_lost(family: str, seeds: range, say: Callable[[str], None]) -> None:
    began = time.process_time()
    count = walk(seeds, family=family)
    seconds = time.process_time() - began
    say(f"{count.schedules:,} schedules from seed {seeds[0]}, {count.requests:,} requests, {seconds:.1f} s")
    if count.failed is not None:
        outcome = explain(count.failed, family=family)
        pytest.fail("\n".join([*outcome.told, f"seed {count.failed} of {family}: {outcome.violation}"]))


def test_no_row_is_doubled_or_lost_on_the_way_through_every_transition(say):
    unreached = {
        # Sinks without transactions do not take part, positions are not reported, and a stopped run is not called
        # again.
        (Phase.REPORTING, on.Reported),
        (Phase.DELIVERING, on.Prepared),
        (Phase.DELIVERING, on.PrepareFailed),
        (Phase.STOPPED, on.BatchAsked),
    }
    gone_through: set[tuple[Phase, type]] = set()
    outcomes: set[Outcome] = set()

    def noting(state: State, event: on.Event) -> Any:
        gone_through.add((state.phase, type(event)))
        if isinstance(event, on.HandlesFinished):
            outcomes.update(event.outcomes)
        return step(state, event)

    with mock.patch.object(run, "step", noting):
        no_row_is_doubled_or_lost("transactions", range(3_000), say)
        # The seeds above do not reach this rare case: transactions outlive their batch while it is validated.
        no_row_is_doubled_or_lost("transactions", range(6_847, 6_848), say)
    assert TRANSITIONS.keys() - gone_through == unreached
    assert outcomes == set(Outcome)


@pytest.mark.parametrize("family", ["staged", "operated", "powered"])
def test_no_schedule_doubles_or_loses_a_row(family, say):
    no_row_is_doubled_or_lost(family, range(100), say)


@pytest.mark.slow
@pytest.mark.parametrize("family", LONG)
@pytest.mark.parametrize("piece", range(PIECES))
def test_no_schedule_of_many_doubles_or_loses_a_row(family, piece, say, pytestconfig):
    each = LONG[family] // PIECES
    first = pytestconfig.getoption("--seed") + piece * each
    no_row_is_doubled_or_lost(family, range(first, first + each), say)


@pytest.mark.parametrize(("family", "seed"), FOUND)
def test_a_schedule_that_found_a_fault_breaks_nothing_now(family, seed):
    assert walk([seed], family=family).failed is None


@pytest.mark.parametrize(("family", "kinds"), [("transactions", KINDS), ("staged", STAGED)])
def test_the_seeds_draw_every_sink_with_every_other_and_every_fault(family, kinds):
    worlds = [FAMILIES[family](seed) for seed in range(2_000)]
    pairs = {(one, other) for world in worlds for one in world.sinks for other in world.sinks}
    assert len(pairs) == len(kinds) ** 2
    assert {fault for world in worlds for fault in world.faults} == set(FAULTS)
    assert {(world.batches, world.runs) for world in worlds} >= {(1, 1), (3, 3)}
    assert {world.slots for world in worlds} == {1, 2}

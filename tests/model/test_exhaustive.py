"""Visits every world within a bound once. Crashes and pauses are unlimited; see `model.world`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

import pytest

from model.explore import Found, breadth_first
from model.mutants import cleaning_up
from model.world import Config, Fault, Model
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import TRANSITIONS
from sparkonce.protocol.state import Phase

TWO_SINKS = ("orders", "orders-eu")

SMALL = {
    "1 slot, 5 batches, 1 run, 1 fault, clean-up that keeps two": Config(
        batches=5, runs=1, faults=1, parts=1, cleans_up=True
    ),
    "1 slot, 4 batches, clean-up that keeps two": Config(batches=4, parts=1, cleans_up=True),
    "1 slot, 2 batches, 1 fault, answers nobody can read": Config(
        batches=2, faults=1, kinds=frozenset({Fault.COMMIT, Fault.TIMEOUT})
    ),
    "1 slot, 1 batch, 1 fault, in two parts": Config(faults=1),
    "1 slot, 1 batch, 2 faults of puts": Config(faults=2, parts=1, kinds=frozenset({Fault.PUT, Fault.REFUSED})),
    "1 slot, 1 batch, 2 faults, rows are deleted or time out, and replies are lost": Config(
        faults=2, parts=1, kinds=frozenset({Fault.DAMAGE, Fault.TIMEOUT, Fault.COMMIT, Fault.ABORT, Fault.PUT})
    ),
    "1 slot, 1 batch, 2 faults, objections and batches that are written again": Config(
        faults=2, parts=1, kinds=frozenset({Fault.OBJECTION, Fault.AGAIN, Fault.ABORT})
    ),
}
"""Together they cover every transition. The worlds of `model.mutants` are searched, too, in `test_mutants`."""

LARGER = {
    "2 slots, 1 batch, 1 fault, other rows each time": Config(slots=2, faults=1, parts=1, deterministic=False),
    "1 slot, 2 batches, 3 runs, clean-up": Config(runs=3, batches=2, parts=1, cleans_up=True),
    "1 slot, 1 batch, 2 faults, in two parts": Config(faults=2),
    "1 slot, 2 batches, 1 fault, clean-up at every claim": Config(batches=2, faults=1, cleans_up=True),
    "2 slots, 1 batch, 2 faults, rows are deleted and replies of commits and aborts lost": Config(
        slots=2, faults=2, parts=1, kinds=frozenset({Fault.DAMAGE, Fault.COMMIT, Fault.ABORT, Fault.TIMEOUT})
    ),
    "2 slots, 1 batch, 2 faults, rows are deleted and puts lost or refused": Config(
        slots=2, faults=2, parts=1, kinds=frozenset({Fault.DAMAGE, Fault.PUT, Fault.REFUSED})
    ),
    "2 slots, 1 batch, 2 faults, objections and batches that are written again": Config(
        slots=2, faults=2, parts=1, kinds=frozenset({Fault.OBJECTION, Fault.AGAIN, Fault.ABORT})
    ),
    "2 slots, 1 batch, 2 faults": Config(slots=2, faults=2, parts=1),
    "2 slots, 2 batches, 1 fault": Config(slots=2, batches=2, faults=1, parts=1),
    "1 slot, 2 batches, 2 faults, producers kept ready": Config(batches=2, faults=2, parts=1, keep_ready=True),
    "1 slot, 4 batches, 1 fault, producers kept ready, clean-up": Config(
        batches=4, faults=1, parts=1, keep_ready=True, cleans_up=True
    ),
    "1 slot, 3 batches, 1 fault, clean-up": Config(batches=3, faults=1, cleans_up=True),
    "1 slot, 2 batches, 3 runs, clean-up at every claim": Config(runs=3, batches=2, parts=1, cleans_up=True),
    "1 slot, 1 batch, 2 sinks, 2 faults": Config(faults=2, parts=1, sinks=TWO_SINKS),
    "2 slots, 1 batch, 1 fault, in two parts": Config(slots=2, faults=1),
    "1 slot, 1 batch, 3 runs, 1 fault": Config(runs=3, faults=1, parts=1),
    "1 slot, 4 batches, 2 faults, producers kept ready": Config(batches=4, faults=2, keep_ready=True),
    "2 slots, 2 batches, 2 faults": Config(slots=2, batches=2, faults=2, parts=1),
    "1 slot, 2 batches, 2 faults, clean-up, other rows each time": Config(
        batches=2, faults=2, parts=1, cleans_up=True, deterministic=False
    ),
    "2 slots, 2 batches, 1 fault, in two parts": Config(slots=2, batches=2, faults=1),
    "2 slots, 1 batch, 2 sinks, 1 fault": Config(slots=2, faults=1, parts=1, sinks=TWO_SINKS),
}


@cache
def search(name: str) -> tuple[Found, frozenset[tuple[Phase, type]]]:
    """Searches a world, and returns the coordinator's transitions that the search covered."""
    config = SMALL.get(name) or LARGER[name]
    with ExitStack() as stack:
        if config.cleans_up:
            at_claims = {"keep": 100, "records": 1} if "at every claim" in name else {}
            stack.enter_context(cleaning_up(**{"keep": 2 if "keeps two" in name else 1, **at_claims}))
        model = Model(config)
        found = breadth_first(model, traced=False)
    return found, frozenset(model.transitions())


@pytest.mark.parametrize(
    "name", [*SMALL, *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)]) for name in LARGER)]
)
def test_no_row_is_doubled_or_lost(name, say):
    found, _ = search(name)
    say(f"{name}: {found}")
    assert found.violation is None, f"{name}: {found}; search it with traced=True to see the way"


def test_the_search_goes_through_every_transition():
    unreached = {
        # In the model, every sink has transactions, and transactions have no age: an objection stands for one that is
        # too old. A stopped run is not called again.
        (Phase.VALIDATING, on.TooOld),
        (Phase.DELIVERING, on.Prepared),
        (Phase.DELIVERING, on.PrepareFailed),
        (Phase.STOPPED, on.BatchAsked),
    }
    assert TRANSITIONS.keys() - {transition for name in SMALL for transition in search(name)[1]} == unreached

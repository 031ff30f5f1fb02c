"""In every order of events, a live run sweeps all that losing attempts leave open, but nothing that a batch needs.

A check that finds nothing proves something only if it finds known errors: each mutant removes one rule.
"""

import pytest

from model.sweeps import Broken, Sweeps, search
from mutants.operators import wrong

BOUNDS = {
    "a thread, as it is set by default": Sweeps(faults=1),
    "a thread that looks each second": Sweeps(every_s=1.0),
    "a sweep at the end of each batch": Sweeps(every_s=0.0, in_background=False),
    "no thread": Sweeps(faults=1, in_background=False),
    "one batch, and a sink that is away for long": Sweeps(batches=1, faults=3, late=1),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_losers_leave_open_is_swept_and_nothing_else(bound, say):
    worlds, way, broken = search(BOUNDS[bound])
    say(f"{bound}: {worlds:,} worlds")
    assert broken is None, f"{broken.value}: {'; '.join(way)}"


MUTANTS = {
    "no loser is expected": Broken.LEFT,
    "losers are looked for once": Broken.LEFT,
    "a sweep that began before the losers ended counts": Broken.LEFT,
    "a sweep that failed counts as done": Broken.LEFT,
    "a sweep that failed is not tried again": Broken.LEFT,
    "pauses between sweeps do not grow": Broken.HURRIED,
    "a sweep that fails forgets that losers go on": Broken.LEFT,
    "older runs are swept once": Broken.LEFT,
    "writers go on with names that a late request means": Broken.TAKEN,
    "a run that ends in order does not sweep": Broken.LEFT_AT_END,
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broken_sweeper_is_found(rule, say):
    every_s = 1.0 if "forgets" in rule else 10.0
    with wrong(rule):
        worlds, way, broken = search(Sweeps(every_s=every_s, wanted=frozenset({MUTANTS[rule]})))
    say(f"{rule}: {worlds:,} worlds: {'; '.join(way)}")
    assert broken is MUTANTS[rule]


def test_a_thread_that_does_not_wait_for_the_batch_is_found():
    assert search(Sweeps(locked=False, wanted=frozenset({Broken.TAKEN})))[2] is Broken.TAKEN

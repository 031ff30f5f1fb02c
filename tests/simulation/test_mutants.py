"""A simulation that finds nothing proves something only if it finds known errors."""

import pytest

from mutants.table import slow_if_seen
from simulation.campaign import explain, walk
from simulation.mutants import MUTANTS


@pytest.mark.parametrize("mutant", slow_if_seen("simulation", MUTANTS))
def test_a_wrong_rule_is_found_and_made_small(mutant, say):
    within = 20_000
    count = walk(range(mutant.first_seed, mutant.first_seed + within), mutant)
    assert count.failed is not None, f"not found in {within:,} schedules"
    outcome = explain(count.failed, mutant, most_tries=20)
    say(f"| {mutant.name} | {count.failed:,} | {outcome.violation.value} |")

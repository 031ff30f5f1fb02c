"""A simulation that finds nothing proves something only if it finds what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.campaign import Failure, explain, replay, walk
from simulation.mutants import EVERY_MUTANT, MUTANTS, Mutant

WITHIN = 20_000


@pytest.mark.parametrize("mutant", EVERY_MUTANT, ids=lambda mutant: mutant.name)
def test_a_wrong_rule_is_found_made_small_and_found_again(mutant: Mutant, tmp_path: Path) -> None:
    count = walk(range(mutant.first_seed, WITHIN), mutant)
    assert count.failed, f"not found in {WITHIN:,} schedules"
    failure = explain(count.failed[0], mutant, most_tries=20)
    assert failure.length <= failure.first_length

    kept = Failure.of_json(json.loads(failure.write(tmp_path).read_text()))
    assert kept == failure
    again = replay(kept)
    assert (again.violation, again.digest) == (failure.violation, failure.digest)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", EVERY_MUTANT, ids=lambda mutant: mutant.name)
def test_its_schedule_is_made_as_small_as_it_gets(mutant: Mutant, say: Callable[[str], None]) -> None:
    count = walk(range(WITHIN), mutant)
    failure = explain(count.failed[0], mutant, most_tries=None if mutant.family == "transactions" else 300)
    say(
        f"| {mutant.name} | {count.schedules:,} | {failure.violation.value} | {failure.first_length} | "
        f"{failure.length} | {len(failure.told)} |"
    )
    assert failure.length < failure.first_length


@pytest.mark.parametrize("mutant", MUTANTS[:3], ids=lambda mutant: mutant.name)
def test_without_the_mutation_its_schedule_breaks_nothing(mutant: Mutant) -> None:
    count = walk(range(WITHIN), mutant)
    assert count.failed
    assert walk(count.failed).failed == ()

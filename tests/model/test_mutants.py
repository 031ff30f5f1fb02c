"""A check that finds nothing proves something only if it finds known errors."""

from dataclasses import replace

import pytest

from model.explore import breadth_first
from model.mutants import MUTANTS, SURVIVOR
from model.world import Model
from mutants.table import slow_if_seen

ENOUGH_WORLDS = 300_000


@pytest.mark.parametrize("mutant", slow_if_seen("model", MUTANTS))
def test_a_broken_rule_is_found(mutant, say):
    with mutant.build() as model:
        found = breadth_first(model, limit=ENOUGH_WORLDS)
    say(f"{mutant.name}: {found.summary}")
    assert found.violation is mutant.wanted


@pytest.mark.slow
def test_a_rule_that_another_one_makes_up_for_is_known_as_such():
    with SURVIVOR.build() as model:
        assert breadth_first(model, limit=ENOUGH_WORLDS).violation is None


WORLDS = {(one.config, one.keep, one.tidy_every, one.records): one for one in MUTANTS}


@pytest.mark.parametrize("mutant", WORLDS.values(), ids=lambda mutant: mutant.name)
def test_its_world_is_sound_without_the_mutation(mutant):
    with replace(mutant, wanted=None, rule="", model=Model).build() as model:
        found = breadth_first(model)
    assert found.violation is None, found

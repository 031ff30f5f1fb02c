"""Schedules at random, in worlds too large to visit all. A seed gives the same schedule again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from model.explore import at_random
from model.mutants import cleaning_up
from model.world import Config, Model

BATCH_OF_SCHEDULES = 250


def walk(first_seed: int, schedules: int, say: Callable[[str], None]) -> None:
    moves = 0
    for start in range(first_seed, first_seed + schedules, BATCH_OF_SCHEDULES):
        dice = random.Random(start)
        config = Config(
            slots=dice.randint(1, 3),
            batches=dice.randint(1, 5),
            runs=3,
            faults=dice.randint(0, 5),
            sinks=dice.choice([("orders",), ("orders", "orders-eu")]),
            parts=dice.randint(1, 2),
            keep_ready=dice.random() < 0.5,
            cleans_up=True,
            deterministic=dice.random() < 0.7,
        )
        with cleaning_up(dice.randint(1, 2)):
            model = Model(config)
            for seed in range(start, start + BATCH_OF_SCHEDULES):
                found = at_random(model, seed)
                moves += found.moves
                assert found.violation is None, f"seed {seed} in the worlds of seed {start}, {config}: {found}"
    say(f"{schedules:,} schedules from seed {first_seed} on, {moves:,} moves")


def test_random_schedules_double_and_lose_no_row(say: Callable[[str], None]) -> None:
    walk(int(os.environ.get("SPARKONCE_MODEL_SEED", "0")), 4_000, say)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_many_random_schedules_double_and_lose_no_row(say: Callable[[str], None]) -> None:
    walk(random.SystemRandom().randrange(10**6, 10**9), 100_000, say)

"""The shrinker on toys, of which the smallest failing schedule is known."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.config import Config
from simulation.shrink import Fails, Shrinker

LARGE = Config(sinks=("files", "mariadb", "s3"), slots=2, batches=3, runs=3, keep=1)


def shrunk(fails: Fails, decisions: Sequence[int], most_tries: int = 6_000) -> tuple[Config, tuple[int, ...]]:
    return Shrinker(fails, most_tries).shrink(LARGE, decisions)


def test_only_what_makes_it_fail_is_left() -> None:
    def fails(config: Config, decisions: Sequence[int]) -> bool:
        is_large = "mariadb" in config.sinks and config.runs >= 2 and "paused" in config.faults
        return is_large and sum(1 for one in decisions if one >= 3) >= 2

    smallest = Config(sinks=("mariadb",), runs=2, faults=frozenset({"paused"}))
    assert shrunk(fails, [1, 0, 7, 0, 0, 4, 2, 0, 9, 1, 0]) == (smallest, (3, 3))


def test_places_count_where_they_matter() -> None:
    _, decisions = shrunk(lambda _, decisions: len(decisions) > 4 and decisions[4] >= 1, [0, 3, 0, 2, 6, 8, 0, 1])
    assert decisions == (0, 0, 0, 0, 1)


def test_it_tries_nothing_in_vain_twice_and_gives_up_in_time() -> None:
    tries: list[tuple[object, ...]] = []

    def fails(config: Config, decisions: Sequence[int]) -> bool:
        tries.append((config, *decisions))
        return sum(decisions) >= 7 and decisions[-1] == 2

    assert shrunk(fails, [1, 0, 0, 0, 0, 5, 0, 0, 2])[1] == (5, 2)
    assert len(tries) == len(set(tries))
    tries.clear()
    shrunk(lambda config, decisions: bool(tries.append((config, *decisions))), range(1, 100), 7)  # type: ignore[func-returns-value]
    assert len(tries) == 7

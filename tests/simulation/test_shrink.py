"""The shrinker on toys, of which the smallest failing schedule is known."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.config import FAULTS, Config
from simulation.shrink import Shrinker

LARGE = Config(sinks=("files", "mariadb", "s3"), slots=2, batches=3, runs=3, keep=1)


def shrink(fails: object, decisions: Sequence[int]) -> tuple[Config, list[int]]:
    return Shrinker(fails).shrink(LARGE, decisions)  # type: ignore[arg-type]


def test_only_what_makes_it_fail_is_left() -> None:
    def fails(config: Config, decisions: Sequence[int]) -> bool:
        return "mariadb" in config.sinks and config.runs >= 2 and sum(1 for one in decisions if one >= 3) >= 2

    config, decisions = shrink(fails, [1, 0, 7, 0, 0, 4, 2, 0, 9, 1, 0])
    assert decisions == [3, 3]
    assert (config.sinks, config.slots, config.batches, config.runs) == (("mariadb",), 1, 1, 2)
    assert config.faults == frozenset()


def test_a_fault_that_is_needed_stays() -> None:
    config, decisions = shrink(lambda config, _: "paused" in config.faults, [5] * 40)
    assert (config.faults, decisions) == (frozenset({"paused"}), [])
    assert "paused" in FAULTS


def test_what_cannot_be_smaller_stays_as_it_is() -> None:
    smallest, _ = shrink(lambda *_: True, [])
    assert Shrinker(lambda _, decisions: list(decisions) == [2, 1]).shrink(smallest, [2, 1]) == (smallest, [2, 1])


def test_places_count_where_they_matter() -> None:
    _, decisions = shrink(lambda _, decisions: len(decisions) > 4 and decisions[4] >= 1, [0, 3, 0, 2, 6, 8, 0, 1])
    assert decisions == [0, 0, 0, 0, 1]


def test_it_gives_up_in_time() -> None:
    tries = []

    def fails(config: Config, decisions: Sequence[int]) -> bool:
        tries.append(decisions)
        return True

    Shrinker(fails, most_tries=7).shrink(LARGE, list(range(1, 100)))
    assert len(tries) == 7


def test_nothing_is_tried_in_vain_twice() -> None:
    tries: list[tuple[object, ...]] = []

    def fails(config: Config, decisions: Sequence[int]) -> bool:
        tries.append((config, *decisions))
        return sum(decisions) >= 7 and decisions[-1] == 2

    assert shrink(fails, [1, 0, 0, 0, 0, 5, 0, 0, 2])[1] == [5, 2]
    in_vain = [one for one in tries if not (sum(one[1:]) >= 7 and one[-1] == 2)]  # type: ignore[arg-type]
    assert len(in_vain) > 5
    assert len(set(in_vain)) == len(in_vain)

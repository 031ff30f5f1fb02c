from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from sparkonce.driver.replay import as_recorded, found_again, where_lost
from sparkonce.protocol.handles import Handle


def handles(*evidence: tuple[int, int], sink: str = "a") -> list[Handle]:
    return [
        Handle(sink=sink, slot=slot, rows=rows, fingerprint=fingerprint)
        for slot, (rows, fingerprint) in enumerate(evidence)
    ]


RECORDED = ((2, 7), (2, 8), (0, 0), (2, 7))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_every_order_is_found(order: tuple[int, ...]) -> None:
    recorded = handles(*RECORDED)
    replayed = handles(*(RECORDED[place] for place in order))
    places = found_again(recorded, replayed)
    assert sorted(places.values()) == [0, 1, 2, 3]
    assert sorted(as_recorded(replayed, places)) == recorded


def test_a_slot_that_fits_stays() -> None:
    assert found_again(handles((1, 1), (1, 1), (1, 2)), handles((1, 1), (1, 1), (1, 2))) == {
        ("a", 0): 0,
        ("a", 1): 1,
        ("a", 2): 2,
    }


@pytest.mark.parametrize("replayed", [((2, 7),), ((2, 7), (2, 9)), ((2, 7), (2, 7)), ((2, 7), (2, 8), (0, 0))])
def test_other_rows_are_not_found(replayed: tuple[tuple[int, int], ...]) -> None:
    assert found_again(handles((2, 7), (2, 8)), handles(*replayed)) == {}


def test_sinks_are_looked_at_by_themselves() -> None:
    recorded = [*handles((1, 1), (1, 2)), *handles((5, 5), sink="b")]
    replayed = [*handles((1, 2), (1, 1)), *handles((5, 5), sink="b"), *handles((9, 9), sink="new")]
    places = found_again(recorded, replayed)
    assert places == {("a", 0): 1, ("a", 1): 0, ("b", 0): 0}
    assert sorted(as_recorded(replayed, places)) == sorted([*recorded, *handles((9, 9), sink="new")])


def begun(*evidence: tuple[int, int], sink: str = "a") -> list[Handle]:
    return [replace(handle, transaction=(("id", str(handle.slot)),)) for handle in handles(*evidence, sink=sink)]


def test_of_a_sink_whose_slots_are_not_found_all_is_lost_or_nothing_is_known() -> None:
    recorded = [*begun((2, 7), (2, 8)), *begun((2, 7), (2, 8), sink="b")]
    spread = [*handles((0, 0), (1, 7), (3, 8)), *handles((0, 0), (1, 7), (3, 8), sink="b")]
    assert where_lost({("a", 0), ("a", 1)}, recorded, spread) == {("a", 1), ("a", 2)}
    assert where_lost({("a", 0), ("a", 1), ("b", 1)}, recorded, spread) is None
    moved = [*handles((2, 8), (2, 7)), *handles((0, 0), (1, 7), (3, 8), sink="b")]
    assert where_lost({("a", 0)}, recorded, moved) == {("a", 1)}

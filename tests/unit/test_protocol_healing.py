from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import pytest

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.healing import HealingRefusal, Key, heal

Evidence = tuple[int, int]


def recorded(*evidence: Evidence, sink: str = "a") -> list[Handle]:
    """Returns the handles of a decided batch, in which each slot with rows has one transaction."""
    return [_handle(sink, slot, one, ("before" if one[0] else "")) for slot, one in enumerate(evidence)]


def replayed(*evidence: Evidence, sink: str = "a", written: Iterable[int] = ()) -> list[Handle]:
    """Returns the handles of its second run, in which these slots were written and the others only counted."""
    return [_handle(sink, slot, one, "again" if slot in written else "") for slot, one in enumerate(evidence)]


def _handle(sink: str, slot: int, evidence: Evidence, when: str) -> Handle:
    rows, fingerprint = evidence
    transaction = (("id", f"{sink}-{slot}-{when}"),) if when else ()
    return Handle(sink=sink, slot=slot, rows=rows, fingerprint=fingerprint, transaction=transaction)


@pytest.mark.parametrize("order", list(permutations(range(4))))
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_lost_rows_are_found_in_every_order(order, lost):
    recorded_handles = ((2, 7), (2, 8), (0, 0), (2, 7))
    record, keys = recorded(*recorded_handles), {("a", lost)}
    counted = replayed(*(recorded_handles[place] for place in order))
    (where,) = heal(record, counted, keys, ["a"]).write or ()
    assert recorded_handles[order[where[1]]] == recorded_handles[lost]
    again = replayed(*(recorded_handles[place] for place in order), written=[where[1]])
    plan = heal(record, again, keys, ["a"])
    assert plan.write == {where}, "once the right slots are written, it stays at that"
    assert sorted(one.slot for one in plan.replayed) == [0, 1, 2, 3]
    assert [one.evidence for one in plan.handles] == list(recorded_handles)
    assert [one == other for one, other in zip(plan.handles, record, strict=True)] == [s != lost for s in range(4)]
    assert plan.handles[lost]["id"] == f"a-{where[1]}-again"


def test_sinks_are_looked_at_by_themselves():
    evidence = ((1, 1), (1, 1), (1, 2))
    for lost in range(3):
        assert heal(recorded(*evidence), replayed(*evidence), {("a", lost)}, ["a"]).write == {("a", lost)}

    record = [*recorded((1, 1), (1, 2)), *recorded((5, 5), (6, 6), sink="b")]
    again = [*replayed((1, 2), (1, 1)), *replayed((5, 5), (6, 6), sink="b")]
    assert heal(record, again, {("a", 0), ("b", 1)}, ["a", "b"]).write == {("a", 1), ("b", 1)}

    again = [*replayed((2, 7), (2, 8)), *replayed((9, 9), sink="new")]
    assert heal(recorded((2, 7), (2, 8)), again, {("a", 0)}, ["a"]).write == {("a", 0)}


def test_a_sink_that_is_lost_as_a_whole_may_have_other_slots():
    record = [*recorded((2, 7), (2, 8)), *recorded((2, 7), (2, 8), sink="b")]
    lost: set[Key] = {("a", 0), ("a", 1)}
    spread = [*replayed((0, 0), (1, 7), (3, 8), written=[1, 2]), *replayed((0, 0), (1, 7), (3, 8), sink="b")]
    plan = heal(record, spread, lost, ["a", "b"])
    assert plan.write == {("a", 1), ("a", 2)}, "what has rows"
    assert plan.handles == (*spread[:3], *record[2:]), "all of the sink is replaced"

    record = [*recorded((2, 7), (2, 8)), *recorded((2, 7), (2, 8), sink="b")]
    other = [*replayed((2, 7), (2, 9)), *replayed((2, 7), (2, 8), sink="b")]
    refusal = heal(record, other, {("a", 0), ("a", 1)}, ["a", "b"])
    assert refusal == HealingRefusal(lost=(("a", 0, 2), ("a", 1, 2)), differing=(("a", 1),), same_rows=False)


@pytest.mark.parametrize(
    ("again", "differing", "same_rows"),
    [
        (((2, 7),), [1], False),
        (((2, 7), (2, 9)), [1], False),
        (((2, 7), (2, 7)), [1], False),
        (((2, 7), (2, 8), (0, 0)), [2], True),
        (((4, 15),), [0, 1], True),
        (((2, 8), (2, 7), (1, 1)), [0, 1, 2], False),
    ],
    ids=["a slot less", "other rows", "rows twice", "an empty slot more", "together", "a slot more, in another order"],
)
def test_other_rows_or_slots_are_refused(again, differing, same_rows):
    refusal = heal(recorded((2, 7), (2, 8)), replayed(*again), {("a", 1)}, ["a"])
    assert refusal == HealingRefusal(
        lost=(("a", 1, 2),), differing=tuple(("a", slot) for slot in differing), same_rows=same_rows
    )


def test_of_a_sink_that_is_lost_in_part_every_slot_must_be_found_also_beside_one_that_is_lost_whole():
    record = [*recorded((2, 7), (2, 8)), *recorded((2, 7), (2, 8), sink="b")]
    spread = [*replayed((0, 0), (1, 7), (3, 8)), *replayed((0, 0), (1, 7), (3, 8), sink="b")]
    refusal = heal(record, spread, {("a", 0), ("a", 1), ("b", 1)}, ["a", "b"])
    assert {sink for sink, _ in refusal.differing} == {"b"}
    assert refusal.same_rows


def test_a_sink_that_has_lost_nothing_may_be_spread_otherwise_but_has_the_same_rows():
    record = [*recorded((2, 7), (2, 8)), *recorded((2, 7), (2, 8), sink="b")]
    same = replayed((2, 7), (2, 8))
    assert heal(record, [*same, *replayed((4, 15), sink="b")], {("a", 0)}, ["a", "b"]).write == {("a", 0)}
    refusal = heal(record, [*same, *replayed((4, 16), sink="b")], {("a", 0)}, ["a", "b"])
    assert (refusal.lost, refusal.same_rows) == ((("a", 0, 2),), False)
    assert {sink for sink, _ in refusal.differing} == {"b"}

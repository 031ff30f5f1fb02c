"""What the oracle accepts as a reason to stop, and what it asks for when rows are lost for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from simulation.config import Config
from simulation.dice import Given
from simulation.engine import Broken, Simulation
from simulation.oracle import Oracle, Place, Violation
from sparkonce import errors
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit
from sparkonce.sink import Owner

SINKS = ("a", "b")


def oracle(*, deterministic: bool = False, spreads: bool = False) -> Oracle:
    """Two batches of two sinks are decided. Of the second, only sink a is visible."""
    config = Config(sinks=SINKS, batches=2, deterministic=deterministic, spreads=spreads)
    simulation = Simulation(config, Given([]))
    made = simulation.oracle = Oracle(
        simulation, {name: lambda handle: (handle.sink, handle["name"]) for name in SINKS}
    )
    for batch in (0, 1):
        handles = tuple(Handle(sink=sink, slot=0, rows=1, transaction=(("name", batch),)) for sink in SINKS)
        for one in handles:
            made.prepared(one, batch, (0,))
        made.landed(Commit(token=Token(0, "n"), query="q", batch=batch, offsets=(), handles=handles))
        for sink in SINKS[: 2 - batch]:
            made.shown((sink, batch), (batch, 0, sink, 2))
    return made


def lost(batch: int, *sinks: str, same_rows: bool = False, slot: int = 0) -> errors.TransactionLostError:
    gone = tuple((sink, slot, 1) for sink in sinks)
    return errors.TransactionLostError("lost", batch=batch, lost=gone, same_rows=same_rows)


def claim(run: str) -> Claim:
    return Claim(nonce="n", run=run, query="q", host="h", process=1, library="", location="", sinks=())


def stops(one: Oracle, error: errors.SparkonceError) -> Violation | None:
    with suppress(Broken):
        one.stopped(one.start("run-0"), error)
    return one.violation


def test_rows_are_lost_for_good_only_where_the_system_gave_them_up_and_others_of_the_batch_are_visible() -> None:
    one = oracle()
    assert one.lost_for_good(lost(1, "b")) == frozenset()
    one.lost(("b", 1))
    assert one.lost_for_good(lost(1, "b")) == {(1, 0, "b")}
    assert stops(one, lost(1, "b")) is None
    one.lost(("a", 1))  # a rule that comes after the commit takes nothing away
    assert stops(one, lost(1, "a", "b")) is Violation.WRONG_STOP

    del one.visible[1, 0, "a"]
    assert one.lost_for_good(lost(1, "b")) == frozenset(), "nothing of the batch is visible: it can be written again"
    made_again = oracle(deterministic=True)
    made_again.lost(("b", 1))
    assert made_again.lost_for_good(lost(1, "b")) == frozenset()


def spread() -> Oracle:
    """Of a third batch sink b has row 1 in slot 0, and row 0 in slot 1, which it has given up."""
    made = oracle(deterministic=True, spreads=True)
    handles = tuple(Handle(sink="b", slot=slot, rows=1, transaction=(("name", f"2.{slot}"),)) for slot in (0, 1))
    for one in handles:
        made.prepared(one, 0, (1 - one.slot,))
    made.landed(Commit(token=Token(0, "n"), query="q", batch=2, offsets=(), handles=handles))
    made.lost(("b", "2.1"))
    return made


def test_the_same_rows_in_other_slots_are_lost_for_good_only_to_a_sink_that_shows_others_of_them() -> None:
    one = spread()
    assert one.lost_for_good(lost(2, "b", same_rows=True, slot=1)) == frozenset()
    one.shown(("b", "2.0"), (2, 0, "b", 2))
    assert one.lost_for_good(lost(2, "b", same_rows=True, slot=1)) == {(2, 0, "b")}
    one.lost(("b", 1))
    # Of the second batch sink b has nothing, and sink a has it.
    assert stops(one, lost(1, "b", same_rows=True)) is Violation.WRONG_STOP


def test_a_row_is_seen_twice_in_whatever_slots() -> None:
    one = spread()
    one.shown(("b", "2.0"), (2, 0, "b", 2))
    one.named["b", "again"] = 2
    with pytest.raises(Broken):
        one.shown(("b", "again"), (2, 1, "b", 2))
    assert one.violation is Violation.TWICE


@pytest.mark.parametrize("gone", [(0, 0, "b"), (1, 0, "a")])
def test_all_but_what_is_lost_stays_visible_also_of_the_batch_that_is_lost(gone: Place) -> None:
    one = oracle()
    given_up = frozenset({(1, 0, "b")})
    one.all_done(3, given_up)
    del one.visible[gone]
    with pytest.raises(Broken):
        one.all_done(3, given_up)
    assert one.violation is Violation.MISSING


@pytest.mark.parametrize(("newer", "found"), [("run-0", Violation.WRONG_STOP), ("run-1", None)])
def test_a_run_is_superseded_only_by_another_one_that_claims_after_it_began(
    newer: str, found: Violation | None
) -> None:
    one = oracle()
    one.landed(claim("run-1"))
    start = one.start("run-0")
    one.landed(claim(newer))
    with suppress(Broken):
        one.stopped(start, errors.SupersededError("a newer run has claimed the query"))
    assert one.violation is found


def has_lost_four_times(one: Oracle) -> None:
    for number in range(4):
        one.named["b", number] = 1
        one.lost(("b", number))


def goes_by_for_another_run(one: Oracle) -> None:
    one._simulation.note("long batch")
    one.landed(claim("run-1"))


TOO_OLD = errors.TransactionTooOldError("lost each time", batch=1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.PrepareError("no answer"), lambda one: one._simulation.note("task killed")),
        (errors.UnknownOutcomeError("no answer"), lambda one: one._simulation.note("reply lost")),
        (errors.LogError("record 1 could not be written: full"), lambda one: one._simulation.note("put refused")),
        (errors.StaleBatchError("a later batch is decided", batch=1), lambda one: one.decided.add(2)),
        (TOO_OLD, has_lost_four_times),
        (TOO_OLD, goes_by_for_another_run),
    ],
)
def test_nothing_stops_without_a_reason(error: errors.SparkonceError, reason: Callable[[Oracle], object]) -> None:
    assert stops(oracle(), error) is Violation.WRONG_STOP
    one = oracle()
    reason(one)
    assert stops(one, error) is None


def test_a_run_whose_own_batch_is_long_computes_its_rows_first() -> None:
    one = oracle()
    one.landed(claim("run-0"))
    one._simulation.note("long batch")
    assert stops(one, TOO_OLD) is Violation.WRONG_STOP


RUN = Token(3, "n")
OWN, OLDER = Owner(query="q", token=RUN), Owner(query="q", token=Token(0, "n"))


@pytest.mark.parametrize(
    ("asked", "swept", "found"),
    [
        ((OLDER, OWN), SINKS, None),
        ((OLDER,), SINKS, Violation.UNSWEPT),  # a sweep of older runs is none of a run's own
        ((OLDER, OWN), ("a",), Violation.UNSWEPT),  # what was not swept is asked again after the next batch
    ],
)
def test_a_run_with_a_loser_goes_on_once_each_sink_was_swept(
    asked: Sequence[Owner], swept: Sequence[str], found: Violation | None
) -> None:
    one = oracle()
    one.has_swept(RUN)  # all copies have won
    one.may_have_lost(RUN)
    for sink in SINKS:
        one.sweeps(sink, asked)
    for sink in swept:
        one.swept(sink, asked)
    with suppress(Broken):
        one.has_swept(RUN)
        one.has_swept(RUN)
    assert one.violation is found


@pytest.mark.parametrize(
    ("moves", "waited_s", "found"),
    [
        ("moved again", 2.0, None),
        ("moved again", 0.5, Violation.WRONG_STOP),
        ("moved", 2.0, Violation.WRONG_STOP),
    ],
)
def test_a_coordinator_that_moves_again_and_again_may_use_up_the_time(
    moves: str, waited_s: float, found: Violation | None
) -> None:
    one = oracle()
    one._simulation.config = replace(one._simulation.config, faults=frozenset({"server restarted"}))
    start = one.start("run-0")
    one._simulation.clock_s += waited_s
    one._simulation.note(moves)
    with suppress(Broken):
        one.stopped(start, errors.UnknownOutcomeError("no answer"))
    assert one.violation is found


@pytest.mark.parametrize(("lost_in_time", "found"), [(True, Violation.OUTLIVED), (False, None)])
def test_a_batch_that_took_long_is_not_decided_with_what_was_given_up_by_then(
    lost_in_time: bool, found: Violation | None
) -> None:
    one = oracle()
    handle = Handle(sink="a", slot=0, rows=1, transaction=(("name", 2),))
    if lost_in_time:
        one.lost(("a", 2))
    one.has_taken_long([handle])
    one.lost(("a", 2))
    with suppress(Broken):
        one.landed(Commit(token=Token(0, "n"), query="q", batch=2, offsets=(), handles=(handle,)))
    assert one.violation is found

"""What the oracle accepts as a reason to stop, and what it asks for when rows are lost for good."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from simulation.config import Config
from simulation.dice import Given
from simulation.engine import Broken, Simulation
from simulation.oracle import Oracle, Violation
from sparkonce import errors
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim, Commit
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


def test_rows_are_lost_for_good_only_where_the_system_has_given_them_up() -> None:
    one = oracle()
    assert one.lost_for_good(lost(1, "b")) == frozenset()
    one.lost(("b", 1))
    assert one.lost_for_good(lost(1, "b")) == {(1, 0, "b")}
    assert stops(one, lost(1, "b")) is None


def test_rows_that_are_visible_or_that_nothing_was_given_up_of_are_not_lost() -> None:
    one = oracle()
    one.lost(("b", 1))
    one.lost(("a", 1))  # a rule that comes after the commit takes nothing away
    assert one.lost_for_good(lost(1, "a", "b")) == frozenset()
    assert stops(one, lost(1, "a", "b")) is Violation.WRONG_STOP


def test_a_batch_of_which_nothing_is_visible_can_be_written_again() -> None:
    one = oracle()
    del one.visible[1, 0, "a"]
    one.lost(("b", 1))
    assert one.lost_for_good(lost(1, "b")) == frozenset()


def test_what_can_be_made_again_is_not_lost_for_good() -> None:
    one = oracle(deterministic=True)
    one.lost(("b", 1))
    assert one.lost_for_good(lost(1, "b")) == frozenset()


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
    assert one.visible[2, 1, "b"] == 1
    assert one.lost_for_good(lost(2, "b", same_rows=True, slot=1)) == {(2, 0, "b")}
    one.lost(("b", 1))
    # Of the second batch sink b has nothing, and sink a has it.
    assert one.lost_for_good(lost(1, "b", same_rows=True)) == frozenset()
    assert stops(one, lost(1, "b", same_rows=True)) is Violation.WRONG_STOP


def test_a_row_is_seen_twice_in_whatever_slots() -> None:
    one = spread()
    one.shown(("b", "2.0"), (2, 0, "b", 2))
    one.named["b", "again"] = 2
    with pytest.raises(Broken):
        one.shown(("b", "again"), (2, 1, "b", 2))
    assert one.violation is Violation.TWICE


def test_all_but_what_is_lost_stays_visible() -> None:
    one = oracle()
    given_up = frozenset({(1, 0, "b")})
    one.all_done(3, given_up)
    del one.visible[0, 0, "b"]
    with pytest.raises(Broken):
        one.all_done(3, given_up)
    assert one.violation is Violation.MISSING


def test_the_rest_of_the_batch_that_is_lost_stays_visible_too() -> None:
    one = oracle()
    del one.visible[1, 0, "a"]
    with pytest.raises(Broken):
        one.all_done(3, frozenset({(1, 0, "b")}))


def test_a_run_is_superseded_only_by_another_one_that_claims_after_it_began() -> None:
    superseded = errors.SupersededError("a newer run has claimed the query")
    one = oracle()
    one.landed(claim("run-1"))
    start = one.start("run-0")
    one.landed(claim("run-0"))
    with pytest.raises(Broken):
        one.stopped(start, superseded)
    assert one.violation is Violation.WRONG_STOP

    one = oracle()
    start = one.start("run-0")
    one.landed(claim("run-1"))
    one.stopped(start, superseded)


def test_a_batch_is_stale_only_if_a_later_one_is_decided() -> None:
    assert stops(oracle(), errors.StaleBatchError("a later batch is decided", batch=0)) is None
    assert stops(oracle(), errors.StaleBatchError("a later batch is decided", batch=1)) is Violation.WRONG_STOP


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.PrepareError("no answer"), "task killed"),
        (errors.UnknownOutcomeError("no answer"), "reply lost"),
        (errors.LogError("record 1 could not be written: disk full"), "put refused"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_nothing_fails_or_stays_unknown_by_itself(error: errors.SparkonceError, fault: str) -> None:
    assert stops(oracle(), error) is Violation.WRONG_STOP
    one = oracle()
    one._simulation.note(fault)
    assert stops(one, error) is None


def test_three_healings_are_enough_only_if_each_was_lost() -> None:
    error = errors.TransactionTooOldError("lost each time", batch=1)
    assert stops(oracle(), error) is Violation.WRONG_STOP
    one = oracle()
    for number in range(4):
        one.named["b", f"healed {number}"] = 1
        one.lost(("b", f"healed {number}"))
    assert stops(one, error) is None


RUN = Token(3, "n")
OWN = Owner(query="q", token=RUN)
OLDER = Owner(query="q", token=Token(0, "n"))


def swept(*sinks: str, owner: Owner = OWN) -> Oracle:
    """A batch of whose copies one may have lost; these sinks were swept after it."""
    one = oracle()
    one.may_have_lost(RUN)
    for sink in SINKS:
        one.sweeps(sink, [OLDER, owner])
    for sink in sinks:
        one.swept(sink, [OLDER, owner])
    one.has_swept(RUN)
    return one


def test_a_sink_that_was_not_swept_is_asked_again_after_the_next_batch() -> None:
    swept("a", "b").has_swept(RUN)
    one = swept("a")
    one.sweeps("b", [OWN])
    one.has_swept(RUN)
    with pytest.raises(Broken):
        one.has_swept(RUN)
    assert one.violation is Violation.UNSWEPT


def test_a_sweep_of_older_runs_is_none_of_a_runs_own() -> None:
    one = oracle()
    one.may_have_lost(RUN)
    for sink in SINKS:
        one.sweeps(sink, [OLDER])
        one.swept(sink, [OLDER])
    with pytest.raises(Broken):
        one.has_swept(RUN)
    assert one.violation is Violation.UNSWEPT


def test_a_run_whose_copies_all_won_need_not_sweep() -> None:
    one = oracle()
    one.has_swept(RUN)
    assert one.violation is None


@pytest.mark.parametrize(
    ("moves", "waited_s", "may"),
    [("moved again", 2.0, True), ("moved again", 0.5, False), ("moved", 2.0, False), ("", 2.0, False)],
)
def test_a_coordinator_that_moves_again_and_again_may_use_up_the_time(
    moves: str, waited_s: float, *, may: bool
) -> None:
    one = oracle()
    one._simulation.config = replace(one._simulation.config, faults=frozenset({"server restarted"}))
    start = one.start("run-0")
    one._simulation.clock_s += waited_s
    if moves:
        one._simulation.note(moves)
    with suppress(Broken):
        one.stopped(start, errors.UnknownOutcomeError("no answer"))
    assert (one.violation is None) is may


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


def test_transactions_are_too_old_only_where_the_second_try_may_have_taken_long() -> None:
    error = errors.TransactionTooOldError("too old", batch=2)
    one = oracle()
    assert stops(one, error) is Violation.WRONG_STOP
    one = oracle()
    one.landed(claim("run-0"))
    one._simulation.note("long batch")
    assert stops(one, error) is Violation.WRONG_STOP, "its rows are computed first then"
    one = oracle()
    one.landed(claim("run-1"))
    one._simulation.note("long batch")
    assert stops(one, error) is None, "the time of another run's batch goes by for it, too"

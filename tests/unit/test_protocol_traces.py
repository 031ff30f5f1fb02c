"""Which traces show that a log is not the newest one, and which do not."""

from __future__ import annotations

import pytest

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.traces import Trace, not_in_log
from sparkonce.protocol.view import KEPT_RUNS, Amend, Claim, Commit, Floor, LogView, Record, Void

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
A, B = Token(0, "aaaaaaaa"), Token(1, "bbbbbbbb")


def claim(token: Token) -> Claim:
    return Claim(nonce=token.nonce, run=f"run-{token.nonce}", query=QUERY)


def fields(lane: str, epoch: int) -> tuple[tuple[str, str | int], ...]:
    return (("epoch", epoch), ("id", lane))


def commit(batch: int, *handles: tuple[str, int], token: Token = A) -> Commit:
    made = tuple(Handle(sink="out", slot=slot, rows=1, transaction=fields(*one)) for slot, one in enumerate(handles))
    return Commit(token=token, query=QUERY, batch=batch, offsets=(str(batch),), handles=made)


def on_lane(lane: str, epoch: int, token: Token = A) -> Trace:
    """As Kafka remembers it: the last transaction of an id, without its batch."""
    return Trace(token=token, committed=fields(lane, epoch), lane=("id", lane))


def of_batch(batch: int, name: str) -> Trace:
    """As databases remember it: each transaction with its batch."""
    return Trace(token=A, committed=fields(name, 0), batch=batch)


def fold(*records: Record) -> LogView:
    view = LogView()
    for record in records:
        view = view.apply(view.end, record)
    return view


def tidied(view: LogView, keep: int) -> LogView:
    return view.above(view.raised(keep))


def test_a_run_further_on_than_the_log():
    assert not_in_log(fold(claim(A), commit(0)), [Trace(token=Token(2, "cccccccc"))]) == (
        "run 2-cccccccc has committed rows, its claim is at position 2, and this log ends at 2"
    )

    assert "its claim is at position 0, and this log ends at 0" in not_in_log(LogView(), [Trace(token=A)])

    view = fold(claim(A), commit(0), commit(1))
    other = Token(1, "cccccccc")
    assert not_in_log(view, [Trace(token=A), Trace(token=other)]) == (
        "run 1-cccccccc has committed rows, its claim is at position 1, and something else stands there in this log"
    )
    assert not_in_log(view, [Trace(token=Token(0, "cccccccc"))]) != ""


def test_runs_that_the_log_may_have_forgotten_do_not_count():
    old = Token(1, "cccccccc")
    below_the_floor = tidied(fold(claim(A), commit(0), commit(1), commit(2)), 1)
    assert not_in_log(below_the_floor, [Trace(token=old)]) == ""
    full = fold(*(claim(Token(position, f"{position:08x}")) for position in range(KEPT_RUNS + 2)))
    assert len(full.runs) == KEPT_RUNS
    assert not_in_log(full, [Trace(token=old)]) == ""
    assert not_in_log(full, [on_lane("x", 0, token=old)]) != "", "what it has decided stands above the floor"
    assert not_in_log(full, [Trace(token=Token(2, "cccccccc"))]) != ""


def test_a_commit_that_no_decision_names():
    view = fold(claim(A), commit(0, ("x", 0)))
    more = not_in_log(view, [on_lane("x", 0), on_lane("y", 3), on_lane("z", 4)])
    assert more == "no decision in it names 2 of the committed transactions, for example epoch=4 id=z"
    assert not_in_log(view, [on_lane("x", 1)]) != ""
    assert not_in_log(view, [of_batch(0, "y")]) != ""

    view = fold(claim(A), claim(B), commit(0, ("x", 0), token=B))
    assert not_in_log(view, [on_lane("x", 0, token=B)]) == ""
    assert not_in_log(view, [on_lane("y", 0, token=A)]) != ""
    assert not_in_log(view, [on_lane("y", 0, token=B)]) != ""


def test_what_was_decided_below_the_floor_is_forgotten():
    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    assert not_in_log(view, [on_lane("gone", 0), on_lane("x", 0), on_lane("y", 0)]) == ""
    assert not_in_log(view, [of_batch(0, "gone"), of_batch(1, "x"), of_batch(2, "y")]) == ""

    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1), commit(2)), 2)
    assert not_in_log(view, [on_lane("gone", 0)]) == ""
    assert not_in_log(LogView.at(Floor(5)), [of_batch(9, "gone")]) == "", "a floor that names no batch"

    other = Token(2, "bbbbbbbb")
    view = tidied(fold(claim(A), commit(0, ("x", 0)), claim(other), commit(1, token=other), commit(2, token=other)), 3)
    assert view.floor.position == 1
    assert not_in_log(view, [on_lane("new", 0, token=other)]) != ""


@pytest.mark.parametrize(
    ("strange", "refused"),
    [
        pytest.param(of_batch(3, "new"), True, id="of a batch behind the newest"),
        pytest.param(of_batch(2, "new"), False, id="of the newest batch, as one that was decided anew"),
        pytest.param(on_lane("x", 1), True, id="on a lane that is named"),
        pytest.param(on_lane("new", 0), False, id="on another lane: it may be older or newer"),
    ],
)
def test_what_was_decided_after_the_copy_shows_above_a_floor_too(strange, refused):
    view = tidied(fold(claim(A), commit(0), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    assert (not_in_log(view, [strange]) != "") is refused
    assert (not_in_log(view, [on_lane("y", 0), strange]) != "") is refused


def test_a_batch_that_a_floor_carries():
    """After a night of failed starts, the floor contains one decided batch that no server has committed yet."""
    newer = Token(3, "bbbbbbbb")
    failed = fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), claim(newer))
    view = failed.above(failed.raised_to(newer))
    assert not_in_log(view, [on_lane("gone", 0), of_batch(0, "gone")]) == ""
    assert not_in_log(view, [on_lane("x", 0), of_batch(2, "new")]) != ""
    assert not_in_log(view, [on_lane("x", 1)]) != "", "its lane, used again"


@pytest.mark.parametrize("again", [Amend, Void])
def test_a_batch_that_a_floor_carries_once_it_is_amended_or_void(again):
    """The run that wrote the record may end before the server has committed any of it."""
    newer = Token(3, "bbbbbbbb")
    failed = fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), claim(newer))
    view = failed.above(failed.raised_to(newer))
    made = {name: getattr(commit(1, ("x", 0)), name) for name in ("query", "batch", "offsets", "handles")}
    more = {"void": (("out", 0),)} if again is Void else {}
    view = view.apply(view.end, again(token=newer, **made, **more))
    assert not_in_log(view, [on_lane("gone", 0), of_batch(0, "gone"), of_batch(1, "x")]) == ""


def test_the_log_goes_on_after_the_traces_were_listed():
    """The server shows the last batch that the log forgot. By the time the log is read, it has the next one."""
    before = tidied(fold(claim(A), commit(0, ("x", 0)), commit(1, ("y", 0))), 1)
    after = before.apply(before.end, commit(2, ("x", 1)))
    left = [on_lane("x", 0), on_lane("y", 0)]
    assert not_in_log(before, left) == ""
    assert not_in_log(after, left, before.end) == ""
    assert not_in_log(after, left) != ""

    # Batches below the new floor are older than the listing, and did not use any of the lanes above.
    before = fold(claim(A), commit(0, ("x", 0)), commit(1, ("y", 0)))
    left = [on_lane("x", 0), on_lane("y", 0), of_batch(0, "x"), of_batch(1, "y")]
    after = before.apply(before.end, commit(2, ("x", 1))).apply(before.end + 1, commit(3, ("y", 1)))
    assert not_in_log(tidied(after, 1), left, before.end) == ""

"""Which traces show that a log is not the newest there is, and which do not."""

from __future__ import annotations

import pytest

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Amend, Claim, Commit, Record, Void
from sparkonce.protocol.traces import CLOCKS_DIFFER_MS, Trace, not_in_log
from sparkonce.protocol.view import KEPT_RUNS, LogView

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
A, B = Token(0, "aaaaaaaa"), Token(1, "bbbbbbbb")


HOUR_MS = 3_600_000


def claim(token: Token) -> Claim:
    return Claim(nonce=token.nonce, run=f"run-{token.nonce}", query=QUERY)


def fields(lane: str, epoch: int) -> tuple[tuple[str, str | int], ...]:
    return (("epoch", epoch), ("id", lane))


def commit(batch: int, *handles: tuple[str, int], token: Token = A) -> Commit:
    """Batch N is written N hours after the epoch."""
    made = tuple(
        Handle(sink="out", slot=slot, rows=1, opened_ms=batch * HOUR_MS, transaction=fields(*one))
        for slot, one in enumerate(handles)
    )
    return Commit(token=token, query=QUERY, batch=batch, offsets=(str(batch),), handles=made)


def committed(lane: str, epoch: int, begun_ms: int = 0, token: Token = A) -> Trace:
    return Trace(token=token, committed=fields(lane, epoch), lane=("id", lane), begun_ms=begun_ms)


def fold(*records: Record) -> LogView:
    view = LogView()
    for record in records:
        view = view.apply(view.end, record)
    return view


def tidied(view: LogView, keep: int) -> LogView:
    return view.above(view.raised(keep))


def test_nothing_is_remembered() -> None:
    assert not_in_log(LogView(), []) == ""
    assert not_in_log(fold(claim(A), commit(0, ("x", 0))), []) == ""


def test_what_the_log_names_is_known() -> None:
    view = fold(claim(A), commit(0, ("x", 0), ("y", 0)), commit(1, ("z", 0)))
    assert not_in_log(view, [Trace(token=A), committed("x", 0), committed("y", 0), committed("z", 0)]) == ""


def test_a_run_further_on_than_the_log() -> None:
    assert not_in_log(fold(claim(A), commit(0)), [Trace(token=Token(2, "cccccccc"))]) == (
        "run 2-cccccccc has committed rows, its claim is at position 2, and this log ends at 2"
    )


def test_a_log_that_is_gone() -> None:
    assert "its claim is at position 0, and this log ends at 0" in not_in_log(LogView(), [Trace(token=A)])


def test_two_copies_that_have_both_written() -> None:
    view = fold(claim(A), commit(0), commit(1))
    other = Token(1, "cccccccc")
    assert not_in_log(view, [Trace(token=A), Trace(token=other)]) == (
        "run 1-cccccccc has committed rows, its claim is at position 1, and something else stands there in this log"
    )
    assert not_in_log(view, [Trace(token=Token(0, "cccccccc"))]) != ""


def test_runs_that_the_log_may_have_forgotten_do_not_count() -> None:
    old = Token(1, "cccccccc")
    below_the_floor = tidied(fold(claim(A), commit(0), commit(1), commit(2)), 1)
    assert not_in_log(below_the_floor, [Trace(token=old)]) == ""
    full = fold(*(claim(Token(position, f"{position:08x}")) for position in range(KEPT_RUNS + 2)))
    assert len(full.runs) == KEPT_RUNS
    assert not_in_log(full, [Trace(token=old), committed("x", 0, token=Token(0, "00000000"))]) == ""
    assert not_in_log(full, [Trace(token=Token(2, "cccccccc"))]) != ""


def test_a_commit_that_no_decision_names() -> None:
    view = fold(claim(A), commit(0, ("x", 0)))
    more = not_in_log(view, [committed("x", 0), committed("y", 3, begun_ms=5), committed("z", 4, begun_ms=7)])
    assert more == "what is committed and no decision in it names, in transactions: 2, the last one epoch=4 id=z"
    assert not_in_log(view, [committed("x", 1)]) != ""


def test_a_superseded_run_that_has_gone_on_in_another_copy() -> None:
    view = fold(claim(A), claim(B), commit(0, ("x", 0), token=B))
    assert not_in_log(view, [committed("x", 0, token=B)]) == ""
    assert not_in_log(view, [committed("y", 0, token=A)]) != ""
    assert not_in_log(view, [committed("y", 0, token=B)]) != ""


def test_what_was_decided_below_the_floor_is_forgotten() -> None:
    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    traces = [committed("gone", 0), committed("x", 0, begun_ms=HOUR_MS), committed("y", 0, begun_ms=2 * HOUR_MS)]
    assert not_in_log(view, traces) == ""


@pytest.mark.parametrize(
    ("strange", "refused"),
    [
        pytest.param(committed("new", 0, begun_ms=3 * HOUR_MS), True, id="begun after all that is named"),
        pytest.param(committed("new", 0, begun_ms=2 * HOUR_MS + CLOCKS_DIFFER_MS), False, id="clocks may differ"),
        pytest.param(committed("x", 1, begun_ms=HOUR_MS), True, id="on a lane that is named"),
    ],
)
def test_what_was_decided_after_the_copy_shows_above_a_floor_too(strange: Trace, refused: bool) -> None:
    view = tidied(fold(claim(A), commit(0), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    assert (not_in_log(view, [strange]) != "") is refused
    assert (not_in_log(view, [committed("y", 0, begun_ms=2 * HOUR_MS), strange]) != "") is refused


@pytest.mark.parametrize("behind_h", [3, 24])
def test_the_executors_clock_may_be_hours_behind_the_servers(behind_h: int) -> None:
    """The server has the newest commit of each run, and says by its own clock when that was begun."""
    behind_ms = behind_h * HOUR_MS
    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    gone, newest = committed("gone", 0, begun_ms=behind_ms), committed("y", 0, begun_ms=2 * HOUR_MS + behind_ms)
    assert not_in_log(view, [gone, newest]) == ""
    later = committed("new", 0, begun_ms=3 * HOUR_MS + behind_ms)
    assert not_in_log(view, [gone, newest, later]) != ""


@pytest.mark.parametrize("behind_h", [0, 24])
def test_a_batch_that_a_floor_carries_and_that_is_not_committed_has_the_executors_clock_alone(behind_h: int) -> None:
    """After a night of starts that fail the floor names one decided batch, which the server has not committed."""
    behind_ms = behind_h * HOUR_MS
    failed = fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), claim(Token(3, "bbbbbbbb")))
    view = failed.above(failed.raised_to(Token(3, "bbbbbbbb")))
    gone = committed("gone", 0, begun_ms=behind_ms)
    assert not_in_log(view, [gone]) == ""
    later = committed("new", 0, begun_ms=3 * HOUR_MS + behind_ms)
    assert not_in_log(view, [gone, committed("x", 0, begun_ms=HOUR_MS + behind_ms), later]) != ""
    assert not_in_log(view, [committed("x", 1, begun_ms=2 * HOUR_MS)]) != "", "its lane, used again"


@pytest.mark.parametrize("again", [Amend, Void])
def test_so_it_does_once_it_is_amended_or_void(again: type[Amend] | type[Void]) -> None:
    """The run that did so may end before the server has committed anything of it."""
    newer = Token(3, "bbbbbbbb")
    failed = fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), claim(newer))
    view = failed.above(failed.raised_to(newer))
    made = {name: getattr(commit(1, ("x", 0)), name) for name in ("query", "batch", "offsets", "handles")}
    more = {"void": (("out", 0),)} if again is Void else {}
    view = view.apply(view.end, again(token=newer, **made, **more))
    assert not_in_log(view, [committed("gone", 0, begun_ms=24 * HOUR_MS)]) == ""


def test_with_nothing_to_hold_it_against_a_commit_is_let_pass() -> None:
    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1), commit(2)), 2)
    assert not_in_log(view, [committed("gone", 0, begun_ms=9 * HOUR_MS)]) == ""


def test_a_run_that_claimed_above_the_floor_has_nothing_below_it() -> None:
    other = Token(2, "bbbbbbbb")
    view = tidied(fold(claim(A), commit(0, ("x", 0)), claim(other), commit(1, token=other), commit(2, token=other)), 3)
    assert view.floor.position == 1
    assert not_in_log(view, [committed("new", 0, token=other)]) != ""


def test_a_lane_that_was_used_again_after_the_traces_were_listed() -> None:
    """What was forgotten of it is the last that a server shows; the log has the next one by the time it is read."""
    before = tidied(fold(claim(A), commit(0, ("x", 0)), commit(1, ("y", 0))), 1)
    after = before.apply(before.end, commit(2, ("x", 1)))
    left = [committed("x", 0), committed("y", 0, begun_ms=HOUR_MS)]
    assert not_in_log(before, left) == ""
    assert not_in_log(after, left, before.end) == ""
    assert not_in_log(after, left) != ""

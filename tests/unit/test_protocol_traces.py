"""Which traces show that a log is not the newest there is, and which do not."""

from __future__ import annotations

import pytest

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim, Commit, Record
from sparkonce.protocol.traces import Trace, ahead_of
from sparkonce.protocol.view import LogView

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
A, B = Token(0, "aaaaaaaa"), Token(1, "bbbbbbbb")


def claim(token: Token) -> Claim:
    return Claim(nonce=token.nonce, run=f"run-{token.nonce}", query=QUERY)


def fields(lane: str, epoch: int) -> tuple[tuple[str, str | int], ...]:
    return (("epoch", epoch), ("id", lane))


def commit(batch: int, *handles: tuple[str, int], token: Token = A) -> Commit:
    made = tuple(Handle(sink="out", slot=slot, rows=1, transaction=fields(*one)) for slot, one in enumerate(handles))
    return Commit(token=token, query=QUERY, batch=batch, offsets=(str(batch),), handles=made)


def committed(lane: str, epoch: int, begun: int = 0, token: Token = A) -> Trace:
    return Trace(token=token, committed=fields(lane, epoch), lane=("id", lane), begun=begun)


def fold(*records: Record) -> LogView:
    view = LogView()
    for record in records:
        view = view.apply(view.end, record)
    return view


def tidied(view: LogView, keep: int) -> LogView:
    return view.above(view.raised(keep))


def test_nothing_is_remembered() -> None:
    assert ahead_of(LogView(), []) == ""
    assert ahead_of(fold(claim(A), commit(0, ("x", 0))), []) == ""


def test_what_the_log_names_is_known() -> None:
    view = fold(claim(A), commit(0, ("x", 0), ("y", 0)), commit(1, ("z", 0)))
    assert ahead_of(view, [Trace(token=A), committed("x", 0), committed("y", 0), committed("z", 0)]) == ""


def test_a_run_further_on_than_the_log() -> None:
    view = fold(claim(A), commit(0))
    assert ahead_of(view, [Trace(token=Token(1, "cccccccc"))]) == ""
    assert ahead_of(view, [Trace(token=Token(2, "cccccccc"))]) == (
        "run 2-cccccccc has claimed position 2, and this log ends at 2"
    )


def test_a_log_that_is_gone() -> None:
    assert "has claimed position 0, and this log ends at 0" in ahead_of(LogView(), [Trace(token=A)])


def test_a_stray_copy_that_was_left_behind_does_not_stop_the_one_that_is_ahead() -> None:
    view = fold(claim(A), commit(0), commit(1))
    stray = Token(1, "cccccccc")
    assert ahead_of(view, [Trace(token=stray), committed("s", 0, token=stray)]) == ""


def test_a_commit_that_no_decision_names() -> None:
    view = fold(claim(A), commit(0, ("x", 0)))
    more = ahead_of(view, [committed("x", 0), committed("y", 3, begun=5), committed("z", 4, begun=7)])
    assert more == "2 transactions are committed that no decision in it names, the last one epoch=4 id=z"
    assert ahead_of(view, [committed("x", 1)]) != ""


def test_commits_of_runs_that_were_superseded_are_not_looked_at() -> None:
    view = fold(claim(A), claim(B))
    assert ahead_of(view, [committed("x", 0)]) == ""
    assert ahead_of(view, [committed("x", 0, token=B)]) != ""


def test_what_was_decided_below_the_floor_is_forgotten() -> None:
    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    assert ahead_of(view, [committed("gone", 0, begun=1), committed("x", 0, begun=2), committed("y", 0, begun=3)]) == ""


@pytest.mark.parametrize(
    ("strange", "known"),
    [
        pytest.param(committed("new", 0, begun=4), [committed("y", 0, begun=3)], id="begun after all that is known"),
        pytest.param(committed("x", 1, begun=1), [committed("y", 0, begun=3)], id="on a lane that is named"),
        pytest.param(committed("x", 1, begun=1), [], id="on a lane that is named, and no other commit is left"),
    ],
)
def test_what_was_decided_after_the_copy_shows_above_a_floor_too(strange: Trace, known: list[Trace]) -> None:
    view = tidied(fold(claim(A), commit(0), commit(1, ("x", 0)), commit(2, ("y", 0))), 2)
    assert ahead_of(view, known) == ""
    assert "1 transactions are committed that no decision in it names" in ahead_of(view, [*known, strange])


def test_with_nothing_to_hold_it_against_an_old_commit_is_let_pass() -> None:
    view = tidied(fold(claim(A), commit(0, ("gone", 0)), commit(1), commit(2)), 2)
    assert ahead_of(view, [committed("gone", 0, begun=1)]) == ""


def test_a_run_that_claimed_above_the_floor_has_nothing_below_it() -> None:
    other = Token(2, "bbbbbbbb")
    view = tidied(fold(claim(A), commit(0, ("x", 0)), claim(other), commit(1, token=other), commit(2, token=other)), 3)
    assert view.floor.position == 1
    assert ahead_of(view, [committed("new", 0, token=other)]) != ""

from __future__ import annotations

import pytest

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import KEPT_RUNS, Amend, Claim, Commit, Floor, LogView, LogViolation, Record, Void

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
A, B = Token(0, "aaaaaaaa"), Token(1, "bbbbbbbb")


def claim(token: Token, renews: Token | None = None) -> Claim:
    return Claim(nonce=token.nonce, run=f"run-{token.nonce}", query=QUERY, renews=renews)


def commit(batch: int, token: Token = A, rows: int = 1) -> Commit:
    return Commit(
        token=token, query=QUERY, batch=batch, offsets=(str(batch),), handles=(Handle(sink="out", slot=0, rows=rows),)
    )


def amend(batch: int, token: Token = A, rows: int = 2) -> Amend:
    return Amend(
        token=token, query=QUERY, batch=batch, offsets=(str(batch),), handles=(Handle(sink="out", slot=0, rows=rows),)
    )


def fold(*records: Record, view: LogView | None = None) -> LogView:
    view = view or LogView()
    for record in records:
        view = view.apply(view.end, record)
    return view


def test_the_newest_claim_owns_the_log():
    view = LogView()
    assert (view.end, view.newest_run, view.newest_decision, view.decision(0)) == (0, None, None, None)

    view = fold(claim(A), claim(B))
    assert view.newest_run.token == B
    assert [run.token for run in view.runs] == [A, B]
    assert view.claims_in_a_row == 2

    assert fold(claim(A), claim(B), commit(0, B)).claims_in_a_row == 0

    view = fold(claim(A), claim(A, renews=A))
    assert [run.token for run in view.runs] == [A]
    assert (view.end, view.claims_in_a_row) == (2, 1)


def test_an_amendment_replaces_the_whole_set():
    view = fold(claim(A), commit(0), commit(1), amend(1))
    decided = view.decision(1)
    assert (decided.position, decided.handles[0].rows) == (3, 2)
    assert [known.batch for known in view.decisions] == [0, 1]

    decided = fold(claim(A), commit(0)).apply(2, claim(Token(2, "cccccccc"))).apply(3, amend(0, Token(2, "cccccccc")))
    assert decided.newest_decision.token == Token(2, "cccccccc")


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((commit(0),), "for a run that was superseded"),
        ((claim(A), claim(B), commit(0, A)), "decides batch 0 for a run that was superseded"),
        ((claim(A), claim(B), claim(A, renews=A)), "renews the claim of a run that was superseded"),
        ((claim(A, renews=A),), "renews the claim"),
        ((claim(A), commit(0), commit(0)), "decides batch 0 after batch 0"),
        ((claim(A), commit(1), commit(0)), "decides batch 0 after batch 1"),
        ((claim(A), amend(0)), "amends batch 0, which is not the last decided one"),
        ((claim(A), commit(0), commit(1), amend(0)), "amends batch 0"),
        ((claim(A), commit(0), claim(B), amend(0, A)), "superseded"),
    ],
)
def test_what_no_correct_run_can_have_written_is_refused(records, says):
    with pytest.raises(LogViolation, match=says):
        fold(*records)


def test_the_floor_keeps_the_last_batches_and_who_had_claimed():
    view = fold(claim(A), commit(0), commit(1), commit(2))
    floor = view.raised(2)
    assert floor.position == 2
    assert [run.token for run in floor.runs] == [A]

    whole = fold(claim(A), commit(0), amend(0))
    floor = whole.raised(1)
    assert floor.position == 2
    assert fold(amend(0), view=LogView.at(floor)).decisions == whole.decisions

    runs = fold(claim(A)).runs
    view = LogView.at(Floor(7, runs))
    assert (view.end, view.runs, view.decisions) == (7, runs, ())

    view = LogView()
    for position in range(KEPT_RUNS + 5):
        view = view.apply(position, claim(Token(position, f"{position:08x}")))
    assert len(view.runs) == KEPT_RUNS
    assert view.runs[0].token.position == 5


def test_reading_from_a_floor_gives_what_reading_everything_gives():
    records = (claim(A), commit(0), commit(1), amend(1), commit(2))
    whole = fold(*records)
    for keep in (1, 2, 3):
        floor = whole.raised(keep)
        short = fold(*records[floor.position :], view=LogView.at(floor))
        kept = whole.above(floor)
        assert (short.end, short.runs, short.decisions) == (kept.end, kept.runs, kept.decisions)
        assert [known.batch for known in short.decisions] == [0, 1, 2][-keep:]


def test_what_is_void_is_so_until_it_is_amended():
    def void(batch: int, token: Token = A) -> Void:
        handles = (Handle(sink="out", slot=0, rows=1),)
        return Void(token=token, query=QUERY, batch=batch, offsets=(str(batch),), handles=handles, void=(("out", 0),))

    view = fold(claim(A), commit(0), void(0))
    assert (view.newest_decision.void, view.newest_decision.handles) == ((("out", 0),), commit(0).handles)
    assert len(view.decisions) == 1
    amended = fold(amend(0), view=view).newest_decision
    assert (amended.void, amended.handles) == ((), amend(0).handles)

    with pytest.raises(LogViolation, match="amends batch 0, which is not the last"):
        fold(claim(A), commit(0), commit(1), void(0))
    with pytest.raises(LogViolation, match="superseded"):
        fold(claim(A), commit(0), claim(B), void(0))

    view = fold(claim(A), commit(0), void(0))
    floor = view.raised(keep_batches=1)
    again = LogView.at(floor).apply(floor.position, void(0))
    assert again.newest_decision == view.newest_decision

"""The figures of a query: what they count, by a clock of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import ConfigurationError, TransactionLostError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim
from sparkonce.protocol.state import Finishing, Phase, State, Writing
from sparkonce.protocol.view import Decision
from sparkonce.watch.figures import Figures, InDoubt, in_doubt
from sparkonce.watch.prometheus import register, serve_metrics

QUERY = "0b7d5f6e-0000-4000-8000-00000000abcd"
TOKEN = Token(7, "ab12cd34")
CLAIM = Claim(
    nonce=TOKEN.nonce,
    run="r1",
    query=QUERY,
    host="h",
    process=1,
    library="0",
    location="/l",
    sinks=(("orders", (("transaction_timeout_ms", "900000"),)), ("rows", ())),
)


def handle(slot: int, opened_ms: int = 0) -> Handle:
    return Handle(sink="orders", slot=slot, opened_ms=opened_ms, transaction=(("id", slot),) if opened_ms else ())


def progress(batch: int, **more: Any) -> BatchProgress:
    given = {"rows": {"orders": 5}, "transactions": 2, "recovered": False, "healed": 0, "finished_at_ms": 9_000}
    return BatchProgress(batch=batch, **{**given, "seconds": {Phase.WRITING.value: 0.3, "deciding": 0.1}, **more})


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state() -> SimpleNamespace:
    """The coordinator's state and the count of a run, as somebody sets them."""
    return SimpleNamespace(now=State(claim=CLAIM, token=TOKEN), swept=0)


@pytest.fixture
def figures(clock: Clock, state: SimpleNamespace) -> Figures:
    made = Figures(clock)
    made.name = "totals"
    made.begin_run(QUERY, "r1", lambda: state.now, lambda: state.swept)
    return made


def run(figures: Figures, clock: Clock, batch: int, *phases: tuple[Phase, int]) -> None:
    for phase, took_ms in phases:
        figures.enter(phase, batch)
        clock.now_ms += took_ms
    figures.enter(Phase.IDLE, batch)


def test_a_batch_has_its_phases_in_their_order(figures: Figures, clock: Clock) -> None:
    run(figures, clock, 3, (Phase.CLAIMING, 10), (Phase.WRITING, 200), (Phase.WRITING, 50), (Phase.DECIDING, 5))
    found = figures.done(progress(3))
    assert found.phases == [("claiming", 10), (Phase.WRITING.value, 250), ("deciding", 5)]
    assert (found.began_ms, found.took_ms, found.rows) == (1_000, 265, {"orders": 5})
    clock.now_ms += 10_000  # idle, which is of no batch
    run(figures, clock, 4, (Phase.WRITING, 20))
    assert figures.done(progress(4)).phases == [(Phase.WRITING.value, 20)]


def test_counts_go_on_over_runs(figures: Figures, clock: Clock, state: SimpleNamespace) -> None:
    run(figures, clock, 0, (Phase.WRITING, 20))
    figures.done(progress(0, recovered=True, healed=2))
    state.swept = 3
    figures.end_run()
    state.swept = 100
    figures.begin_run(QUERY, "r2", lambda: state.now, lambda: 1)
    run(figures, clock, 1, (Phase.WRITING, 20))
    figures.done(progress(1, seconds={Phase.WRITING.value: 400.0}))
    totals = figures.watched().totals
    assert (totals.batches, totals.recovered, totals.healed, totals.swept) == (2, 1, 2, 4)
    assert totals.rows == {"orders": 10}
    assert totals.phase_s == {Phase.WRITING.value: 400.3, "deciding": 0.1}
    assert totals.within == (0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)
    assert [one.kind for one in figures.events] == ["started", "recovered", "healed", "started"]


def test_a_stop_is_an_event_with_its_next_step(figures: Figures, clock: Clock) -> None:
    figures.enter(Phase.WRITING, 8)
    clock.now_ms += 7
    figures.stopped(8, TransactionLostError("Rows are lost", next_step="Restore them"))
    watched, event = figures.watched(), figures.events[-1]
    assert (watched.phase, watched.since_ms) == (Phase.STOPPED, 1_007)
    assert (event.kind, event.batch, event.next_step) == ("stopped", 8, "Restore them")
    assert watched.totals.stops == {"TransactionLostError": 1}
    run(figures, clock, 8, (Phase.WRITING, 20))
    assert figures.done(progress(8)).phases == [(Phase.WRITING.value, 20)], "what the stopped run did is not of it"


def test_what_is_in_doubt_is_prepared_and_not_finished() -> None:
    state = State(claim=CLAIM)
    opened = (handle(0, 500), handle(1, 300), handle(2))
    assert in_doubt(None) == in_doubt(state) == InDoubt()
    writing = State(claim=CLAIM, writing=Writing(handles=opened))
    assert in_doubt(writing) == InDoubt(transactions=2, opened_ms=300)
    decision = Decision(position=9, token=TOKEN, query=QUERY, batch=1, offsets=(), handles=opened)
    finishing = State(claim=CLAIM, finishing=Finishing(decision=decision, pending=(handle(0, 500),)))
    assert in_doubt(finishing) == InDoubt(transactions=1, opened_ms=500)


def test_a_run_that_dies_is_seen_as_it_was_at_work(figures: Figures, state: SimpleNamespace) -> None:
    state.now = State(claim=CLAIM, token=TOKEN, writing=Writing(handles=(handle(0, 500),)))
    figures.enter(Phase.DECIDING, 4)
    state.now = State(claim=CLAIM, phase=Phase.STOPPED)
    figures.end_run()
    watched = figures.watched()
    assert watched.phase is Phase.STOPPED
    assert watched.state is not None
    assert watched.state.token == TOKEN
    assert watched.in_doubt == InDoubt(transactions=1, opened_ms=500)


def test_prometheus_reads_them(figures: Figures, clock: Clock, state: SimpleNamespace) -> None:
    run(figures, clock, 3, (Phase.WRITING, 200))
    figures.done(progress(3))
    figures.enter(Phase.FINISHING, 4)
    state.now = State(claim=CLAIM, token=TOKEN, writing=Writing(handles=(handle(0, 500), handle(1, 900))))
    registry = CollectorRegistry()
    register(registry)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.labels.get("query") == QUERY
    }
    assert found["sparkonce_batches_total", QUERY, "totals"] == 1
    assert found["sparkonce_rows_total", QUERY, "orders", "totals"] == 5
    assert found["sparkonce_phase_seconds_total", QUERY, Phase.WRITING.value, "totals"] == 0.3
    assert found["sparkonce_in_doubt_transactions", QUERY, "totals"] == 2
    assert found["sparkonce_oldest_in_doubt_seconds", QUERY, "totals"] > 1e9, "the clock of the test is long ago"
    assert found["sparkonce_transaction_timeout_seconds", QUERY, "orders", "totals"] == 900
    assert found["sparkonce_phase", QUERY, "finishing", "totals"] == 1
    assert sum(value for (name, *_), value in found.items() if name == "sparkonce_phase") == 1
    assert found["sparkonce_batch_seconds_bucket", "+Inf", QUERY, "totals"] == 1
    assert found["sparkonce_batch_seconds_bucket", "0.25", QUERY, "totals"] == 0
    assert found["sparkonce_batch_seconds_bucket", "0.5", QUERY, "totals"] == 1
    assert found["sparkonce_last_batch", QUERY, "totals"] == 3
    assert found["sparkonce_last_batch_timestamp_seconds", QUERY, "totals"] == 1.2


@pytest.mark.parametrize(("port", "host"), [(-1, "127.0.0.1"), (70_000, "127.0.0.1"), (0, "203.0.113.1"), ("x", "::")])
def test_a_place_where_nothing_can_listen_is_refused_by_name(port: Any, host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"port={port!r}"):
        serve_metrics(port, host)

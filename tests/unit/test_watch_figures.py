from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import ConfigurationError, TransactionLostError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Finishing, Phase, Putting, State, Writing
from sparkonce.protocol.view import Claim, Commit, Decision
from sparkonce.watch import figures as watch_figures
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
    """Two clocks that run in step until a test sets the first one."""

    def __init__(self) -> None:
        self.now_ms, self.set_by_ms = 1_000, 0

    def wall_ms(self) -> int:
        return self.now_ms + self.set_by_ms

    def monotonic_s(self) -> float:
        return self.now_ms / 1000


class Run:
    def __init__(self) -> None:
        self.state, self.swept = State(claim=CLAIM, token=TOKEN, transactional=("orders",)), 0
        self.opened_s: float | None = None

    def lifetimes_s(self) -> dict[str, float]:
        return {"orders": 900.0}


@pytest.fixture(autouse=True)
def _no_other_queries(monkeypatch) -> None:
    monkeypatch.setattr(watch_figures, "_known", {})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def figures(clock, run) -> Figures:
    made = Figures(clock.wall_ms, clock.monotonic_s)
    made.start(QUERY, "totals")
    made.begin_run(QUERY, "r1", run)
    return made


def go_through(figures: Figures, clock: Clock, batch: int, *phases: tuple[Phase, int]) -> None:
    for phase, took_ms in phases:
        figures.enter(phase, batch)
        clock.now_ms += took_ms
    figures.enter(Phase.IDLE, batch)


def test_a_batch_has_its_phases_in_their_order(figures, clock):
    go_through(figures, clock, 3, (Phase.CLAIMING, 10), (Phase.WRITING, 200), (Phase.WRITING, 50), (Phase.DECIDING, 5))
    found = figures.done(progress(3))
    assert found.phases == [("claiming", 10), (Phase.WRITING.value, 250), ("deciding", 5)]
    assert (found.began_ms, found.took_ms, found.rows) == (1_000, 265, {"orders": 5})
    clock.now_ms += 10_000  # idle time, which belongs to no batch
    go_through(figures, clock, 4, (Phase.WRITING, 20))
    assert figures.done(progress(4)).phases == [(Phase.WRITING.value, 20)]


def test_counts_go_on_over_runs(figures, clock, run):
    go_through(figures, clock, 0, (Phase.WRITING, 20))
    figures.done(progress(0, recovered=True, healed=2))
    run.swept = 3
    assert [one.kind for one in figures.watched().events] == ["started", "recovered", "healed", "swept"]
    figures.end_run("r1")
    run.swept = 100
    following = Run()
    figures.begin_run(QUERY, "r2", following)
    following.swept = 1
    go_through(figures, clock, 1, (Phase.WRITING, 20))
    figures.done(progress(1, seconds={Phase.WRITING.value: 400.0}))
    totals = figures.watched().totals
    assert (totals.batches, totals.recovered, totals.healed, totals.swept) == (2, 1, 2, 4)
    assert totals.rows == {"orders": 10}
    assert totals.phase_s == {Phase.WRITING.value: 400.3, "deciding": 0.1}
    assert totals.within == (0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)
    assert [one.kind for one in figures.watched().events] == ["started", "swept"], "of this run alone"


def test_a_stop_is_an_event_with_its_next_step(figures, clock, run):
    figures.enter(Phase.WRITING, 8)
    clock.now_ms += 7
    figures.stopped(8, TransactionLostError("Rows are lost" + 9_000 * "!", next_step="Restore them"))
    figures.end_run("r1", "[STREAM_FAILED]: the same error, as Spark has it")
    watched = figures.watched()
    event = watched.events[-1]
    assert (watched.phase, watched.since_ms) == (Phase.STOPPED, 1_007)
    assert (event.kind, event.batch, event.next_step, len(event.text)) == ("stopped", 8, "Restore them", 2_000)
    assert watched.totals.stops == {"TransactionLostError": 1}
    figures.start(QUERY, "totals")
    assert figures.watched().phase is Phase.IDLE, "it is started again, and has no batch yet"
    figures.begin_run(QUERY, "r2", run)
    go_through(figures, clock, 8, (Phase.WRITING, 20))
    assert figures.done(progress(8)).phases == [(Phase.WRITING.value, 20)], "what the stopped run did is not of it"


def test_an_error_of_sparks_own_is_a_stop_and_an_end_in_order_is_none(figures, clock, run):
    go_through(figures, clock, 0, (Phase.WRITING, 20))
    figures.end_run("r1", "the source is away")
    watched = figures.watched()
    assert (watched.phase, watched.totals.stops) == (Phase.STOPPED, {"StreamingQueryException": 1})
    assert watched.events[-1].text == "the source is away"
    figures.begin_run(QUERY, "r2", run)
    figures.end_run("r1", "the first one's end, which came late")
    assert figures.watched().phase is Phase.IDLE
    figures.end_run("r2", "")
    assert figures.watched().events[-1].kind == "ended"
    assert figures.watched().phase is Phase.IDLE
    assert Figures.known() == [figures], "Prometheus may not have read its last batch yet"


def test_a_query_that_somebody_stops_in_a_batch_has_ended_in_order(figures, run):
    figures.enter(Phase.WRITING, 4)
    run.state = State(claim=CLAIM, phase=Phase.STOPPED)
    assert figures.watched().phase is Phase.STOPPED
    figures.end_run("r1")
    watched = figures.watched()
    assert (watched.phase, watched.totals.stops) == (Phase.IDLE, {})
    assert watched.events[-1].kind == "ended"


def test_while_slots_are_prepared_the_oldest_may_be_as_old_as_the_first(figures, clock, run):
    run.state = replace(run.state, phase=Phase.WRITING, writing=Writing())
    run.opened_s = 0.5  # of the previous batch
    figures.enter(Phase.WRITING, 4)
    assert figures.watched().in_doubt == {"orders": InDoubt(opened_ms=1_000)}
    run.opened_s = None  # rows are computed first
    clock.now_ms += 9_000
    assert figures.watched().in_doubt == {}
    run.opened_s = 10.0
    clock.now_ms += 9_000
    assert figures.watched().in_doubt == {"orders": InDoubt(opened_ms=10_000)}
    run.state = State(claim=CLAIM, phase=Phase.STOPPED)
    assert figures.watched().in_doubt == {}


HANDLES = (handle(0, 500), handle(1, 300), handle(2))
COMMIT = Commit(token=TOKEN, query=QUERY, batch=1, offsets=("{}",), handles=HANDLES)


def decided(*pending: Handle) -> Finishing:
    return Finishing(
        decision=Decision(position=9, token=TOKEN, query=QUERY, batch=1, offsets=(), handles=HANDLES), pending=pending
    )


def test_a_run_that_dies_is_seen_as_it_was_at_work(figures, run):
    run.state = replace(run.state, phase=Phase.DECIDING, putting=Putting(record=COMMIT))
    figures.enter(Phase.DECIDING, 4)
    run.state = State(claim=CLAIM, phase=Phase.STOPPED)
    watched = figures.watched()
    assert watched.phase is Phase.STOPPED
    assert watched.state.token == TOKEN
    assert watched.in_doubt == {"orders": InDoubt(transactions=2, opened_ms=300)}


@pytest.mark.parametrize(
    ("phase", "more", "transactions", "opened_ms"),
    [
        (Phase.IDLE, {}, 0, None),
        (Phase.WRITING, {"writing": Writing()}, 0, 800),
        (Phase.VALIDATING, {"writing": Writing(handles=HANDLES)}, 2, 300),
        (Phase.DECIDING, {"putting": Putting(record=COMMIT)}, 2, 300),
        (Phase.CLAIMING, {"putting": Putting(record=CLAIM)}, 0, None),
        (Phase.ABORTING, {"writing": Writing(handles=HANDLES)}, 0, None),
        (Phase.FINISHING, {"finishing": decided(handle(0, 500))}, 1, 500),
        (Phase.WRITING, {"finishing": decided(), "writing": Writing()}, 0, 800),
        (Phase.RESOLVING, {"finishing": decided(handle(0, 500)), "putting": Putting(record=COMMIT)}, 2, 300),
    ],
    ids=lambda value: value.name if isinstance(value, Phase) else "",
)
def test_what_is_in_doubt(phase, more, transactions, opened_ms):
    state = State(claim=CLAIM, transactional=("orders",), phase=phase, **more)
    found = in_doubt(state, 800).get("orders", InDoubt())
    assert found == InDoubt(transactions=transactions, opened_ms=opened_ms)
    assert in_doubt(None, 800) == {}


def test_prometheus_reads_them(figures, clock, run):
    def samples() -> dict[tuple[str, ...], float]:
        registry = CollectorRegistry()
        register(registry)
        return {
            (
                sample.name,
                *(value for label, value in sample.labels.items() if label not in ("query", "name")),
            ): sample.value
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
            if (sample.labels.get("query"), sample.labels.get("name")) == (QUERY, "totals")
        }

    go_through(figures, clock, 3, (Phase.WRITING, 200))
    figures.done(progress(3))
    figures.enter(Phase.DECIDING, 4)
    clock.now_ms += 4_000
    run.state = replace(run.state, phase=Phase.DECIDING, putting=Putting(record=COMMIT))
    found = samples()
    assert found[("sparkonce_batches_total",)] == 1
    assert found["sparkonce_rows_total", "orders"] == 5
    assert found["sparkonce_phase_seconds_total", Phase.WRITING.value] == 0.3
    assert found["sparkonce_in_doubt_transactions", "orders"] == 2
    assert found["sparkonce_oldest_transaction_seconds", "orders"] > 1e9, "the clock of the test is long ago"
    assert found["sparkonce_transaction_timeout_seconds", "orders"] == 900
    assert found["sparkonce_phase", "deciding"] == 1
    assert sum(value for (name, *_), value in found.items() if name == "sparkonce_phase") == 1
    assert found[("sparkonce_phase_age_seconds",)] == 4
    assert found["sparkonce_batch_seconds_bucket", "+Inf"] == 1
    assert found["sparkonce_batch_seconds_bucket", "0.25"] == 0
    assert found["sparkonce_batch_seconds_bucket", "0.5"] == 1
    assert found[("sparkonce_last_batch",)] == 3
    assert found[("sparkonce_last_batch_timestamp_seconds",)] == 1.2


@pytest.mark.parametrize(("port", "host"), [(-1, "127.0.0.1"), (70_000, "127.0.0.1"), (0, "203.0.113.1"), ("x", "::")])
def test_a_place_where_nothing_can_listen_is_refused_by_name(port, host):
    with pytest.raises(ConfigurationError, match=f"port={port!r}"):
        serve_metrics(port, host)

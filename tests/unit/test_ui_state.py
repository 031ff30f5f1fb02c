from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkonce.errors import LogError
from sparkonce.operate.checkpoint import BatchState, CheckpointStatus, LogEntry, NewestBatch, NextStart, RunOfLog
from sparkonce.protocol.state import Phase
from sparkonce.ui.alarms import alarms_of
from sparkonce.ui.state import TOLD_WITHIN_MS, CheckpointReading, PageState, QueryState, show_query
from sparkonce.ui.watcher import BY_THE_LOG, MOST_KEPT, PageTimeline
from sparkonce.watch.figures import InDoubt, WatchedBatch, WatchedEvent
from sparkonce.watch.timeline import RunNow, TimelineSegment

NOW_MS = 1_800_000_000_000
QUERY = "60a1de00-0000-4000-8000-000000000001"
RUN, NEWER = "5-0c5b77b9", "9-1460936b"


def batch(number: int, began_ms: int, took_ms: int = 1000, **more: Any) -> WatchedBatch:
    usual = {"rows": {"kafka": 600}, "transactions": 2, "recovered": False, "healed": 0}
    phases = [(Phase.WRITING.value, took_ms - 100), (Phase.FINISHING.value, 100)]
    return WatchedBatch(batch=number, began_ms=began_ms, phases=phases, **{**usual, **more})


def segment(
    *batches: WatchedBatch, phase: Phase = Phase.IDLE, run: str = RUN, number: int = 0, **more: Any
) -> TimelineSegment:
    now = {"written_ms": NOW_MS - 1000, "batch": 7, "since_ms": NOW_MS - 2000, "in_doubt": InDoubt()}
    now |= {name: more.pop(name) for name in set(now) & set(more)}
    return TimelineSegment(
        run=run,
        number=number,
        query=QUERY,
        spark_run="s",
        name=more.pop("name", "totals"),
        host="driver-3",
        timeout_ms={"kafka": 900_000, "cache": 60_000},
        now=RunNow(phase=phase.value, **now),
        batches=batches,
        **more,
    )


def status(run: str | None = RUN, **more: Any) -> CheckpointStatus:
    usual: dict[str, Any] = {
        "location": "/c/totals",
        "query": QUERY,
        "floor": 0,
        "end": 7,
        "runs": 2,
        "run": None if run is None else RunOfLog(run=run, claimed_ms=NOW_MS - 9000, host="driver-4"),
        "sinks": {},
        "newest": NewestBatch(batch=6, state=BatchState.DONE, rows={"kafka": 5}),
        "next_start": NextStart.RESUMES,
        "says": "Resuming after batch 6.",
    }
    return CheckpointStatus(**{**usual, **more})


def entry(kind: str, at_ms: int, *, run: str = RUN, number: int | None = None, **more: Any) -> LogEntry:
    return LogEntry(position=0, at_ms=at_ms, kind=kind, run=run, batch=number, **more)


def reading(*segments: TimelineSegment, **more: Any) -> CheckpointReading:
    return CheckpointReading(location="/c/totals", segments=segments, **{"status": status(), "read_ms": NOW_MS, **more})


STEADY = tuple(batch(number, NOW_MS - 60_000 + 1000 * number) for number in range(20))


def test_what_a_driver_tells_of_its_end():
    events = [
        WatchedEvent(at_ms=1, kind="stopped", batch=6, text="An older one."),
        WatchedEvent(at_ms=2, kind="stopped", batch=7, text="LogError: it is so.", next_step="start it again."),
        WatchedEvent(at_ms=3, kind="swept", batch=None, text="Some."),
    ]
    shown = show_query(reading(segment(phase=Phase.STOPPED, events=events)), NOW_MS)
    assert (shown.state, shown.says, shown.next_step) == (QueryState.STOPPED, "LogError: it is so.", "Start it again.")

    ended = [WatchedEvent(at_ms=n, kind=kind, batch=7, text=f"{kind}.") for n, kind in enumerate(("started", "ended"))]
    shown = show_query(reading(segment(*STEADY, written_ms=0, events=ended)), NOW_MS)
    assert (shown.state, shown.since_ms, shown.says) == (QueryState.ENDED, 1, "ended.")


@pytest.mark.parametrize(
    ("phase", "silent_ms", "state"),
    [
        (Phase.WRITING, 179_000, QueryState.AT_WORK),
        (Phase.WRITING, 181_000, QueryState.SILENT),
        (Phase.IDLE, 179_000, QueryState.IDLE),
        (Phase.IDLE, 181_000, QueryState.SILENT),
        (Phase.STOPPED, 86_400_000, QueryState.STOPPED),
    ],
)
def test_a_driver_without_a_sign_for_minutes_is_not_heard_of(phase, silent_ms, state):
    shown = show_query(reading(segment(*STEADY, phase=phase, written_ms=NOW_MS - silent_ms)), NOW_MS)
    assert shown.state is state


DECIDED = status(newest=NewestBatch(batch=8, state=BatchState.DECIDED))


@pytest.mark.parametrize(
    ("decided_ago_ms", "state"), [(500, QueryState.IDLE), (TOLD_WITHIN_MS + 1000, QueryState.SILENT)]
)
def test_a_batch_that_a_driver_decided_after_its_last_sign_is_in_doubt(decided_ago_ms, state):
    """Either the driver is dead, or it reports within seconds that it is finishing the batch."""
    before_ms = NOW_MS - decided_ago_ms - 100
    commit = entry("commit", NOW_MS - decided_ago_ms, number=8, transactions={"kafka": 3}, opened_ms=700)
    idle = segment(written_ms=before_ms)
    shown = show_query(reading(idle, status=DECIDED, entries=(commit,), polled_ms=NOW_MS), NOW_MS)
    assert (shown.state, shown.batch) == (state, 8)
    assert shown.in_doubt == InDoubt(transactions=3, opened_ms=700)


def test_what_a_timeline_tells_of_a_decided_batch_counts():
    commit = entry("commit", NOW_MS - 5000, number=8, transactions={"kafka": 3}, opened_ms=700)
    finishing = segment(phase=Phase.FINISHING, in_doubt=InDoubt(transactions=1, opened_ms=800), batch=8)
    for known in (DECIDED, status(newest=NewestBatch(batch=8, state=BatchState.DONE))):
        shown = show_query(reading(finishing, status=known, entries=(commit,)), NOW_MS)
        assert (shown.state, shown.in_doubt.transactions) == (QueryState.AT_WORK, 1)


@pytest.mark.parametrize(
    ("silent_ms", "more", "state"),
    [
        (179_000, (), QueryState.NOT_KNOWN),
        (181_000, (), QueryState.SILENT),
        (181_000, (entry("claim", NOW_MS - 1000, run=NEWER),), QueryState.NOT_KNOWN),  # the same run claims again
        # without a timeline
        (400_000, (entry("commit", NOW_MS - 390_000, run=NEWER, number=7),), QueryState.NOT_KNOWN),
        (181_000, (entry("commit", NOW_MS - 400_000, number=6),), QueryState.SILENT),  # another run's
    ],
)
@pytest.mark.parametrize("segments", [(), (segment(*STEADY, phase=Phase.STOPPED),)])
def test_a_run_that_dies_after_its_claim_is_not_heard_of(silent_ms, more, state, segments):
    entries = (entry("claim", NOW_MS - silent_ms, run=NEWER), *more)
    shown = show_query(reading(*segments, status=status(NEWER), entries=entries), NOW_MS)
    assert (shown.state, shown.run, shown.host) == (state, NEWER, "driver-4")
    if state is QueryState.SILENT:
        assert (shown.since_ms, shown.heard_ms) == (NOW_MS - silent_ms, NOW_MS - silent_ms)
        assert [one.key for one in alarms_of(PageState(now_ms=NOW_MS, queries=[shown]))] == [
            f"silent /c/totals {NEWER}"
        ]


def test_a_checkpoint_without_a_timeline_shows_what_the_log_has():
    shown = show_query(reading(entries=(entry("commit", NOW_MS - 4000, number=6),)), NOW_MS)
    assert (shown.state, shown.name, shown.has_timeline, shown.heard_ms) == (
        QueryState.NOT_KNOWN,
        "totals",
        False,
        NOW_MS - 4000,
    )
    assert shown.took is None
    fresh = show_query(reading(status=status(None, newest=None, next_start=NextStart.BEGINS)), NOW_MS)
    assert (fresh.state, fresh.newest) == (QueryState.NEW, None)

    error = LogError("the log is damaged.", next_step="restore it.")
    shown = show_query(reading(segment(*STEADY), error=error), NOW_MS)
    assert (shown.state, shown.error, shown.error_step) == (QueryState.IDLE, "The log is damaged.", "Restore it.")
    never = show_query(CheckpointReading(location="/c/totals", error=error), NOW_MS)
    assert (never.state, never.says, never.read_ms) == (QueryState.NOT_KNOWN, "It cannot be read.", None)

    assert show_query(replace(reading(segment(name="")), location="s3a://b/jobs/totals/"), NOW_MS).name == "totals"


def test_the_usual_of_a_phase_is_that_of_the_newest_batches_of_all_segments():
    slow = [batch(number, 0, took_ms=9000) for number in range(500)]
    quick = [batch(number, 0) for number in range(500, 1400)]
    shown = show_query(reading(segment(*slow), segment(*quick, number=1)), NOW_MS)
    assert (shown.took.of, shown.took.p50_ms, shown.took.p95_ms) == (1000, 1000, 9000)
    assert shown.usual["preparing every slot"].p50_ms == 900


def test_each_batch_and_event_is_given_once():
    def numbers(kept: PageTimeline, than: int = 0) -> list[int]:
        return [one[0] for part in ("batches", "events") for one in kept.newer(than)[part]]

    kept, event = PageTimeline(), WatchedEvent(at_ms=5, kind="healed", batch=1, text="One.", next_step="look at it")
    kept.add([segment(*STEADY[:2], events=[event])], ())
    first = kept.newer(0)
    assert (len(first["batches"]), first["events"]) == (2, [[3, 5, "healed", 1, "One.", "Look at it."]])
    kept.add([segment(*STEADY[:3], events=[event]), segment(events=[event], number=1)], ())
    assert numbers(kept, first["last"]) == [4]
    assert numbers(kept, 4) == []

    kept = PageTimeline()
    kept.add([segment(batch(4, 10, rows={"a": 1, "b": 2}, recovered=True, healed=3))], ())
    found = kept.newer(0)
    phases = [0, 900, 1, 100]
    assert found["batches"] == [[1, 0, 4, 10, 2, 1, 3, 0, [0, 1, 1, 2], phases]]
    assert (found["runs"], found["sinks"], found["phases"]) == (
        [RUN],
        ["a", "b"],
        ["preparing every slot", "finishing"],
    )


def test_the_log_has_what_is_older_than_the_timeline():
    kept = PageTimeline()
    commits = [entry("commit", 100 + n, number=n, rows={"a": n}, transactions={"a": 2}, opened_ms=90) for n in range(4)]
    kept.add([segment(batch(2, 150), batch(3, 160))], [entry("claim", 80, run="1-0badcafe", host="h"), *commits])
    found = kept.newer(0)
    assert [(one[2], one[7]) for one in found["batches"]] == [(0, 1), (1, 1), (2, 0), (3, 0)]
    by_log = found["batches"][1]
    assert (by_log[3], by_log[9]) == (90, [found["phases"].index(BY_THE_LOG), 11])
    assert [one[4] for one in found["events"]] == ["Run 1-0badcafe begins on h, according to the log."]

    # A new run claims the log and decides a batch shortly before it writes its first segment.
    kept, began = PageTimeline(), WatchedEvent(at_ms=11, kind="started", batch=None, text="Run r begins.")
    log = [entry("claim", 10), entry("commit", 20, number=0)]
    kept.add([], log)
    kept.add([segment(batch(0, 15), batch(1, 30), events=[began])], log)
    found = kept.newer(0)
    assert [one[2] for one in found["batches"]] == [0, 1]
    assert [one[2] for one in found["events"]] == ["started"]


@pytest.mark.parametrize(
    ("has_timeline", "after_ms", "by_log"),
    [
        (True, 1000, [2]),
        (True, TOLD_WITHIN_MS, [2, 3, 5]),
        (False, 1000, [2, 4, 5]),
        (False, TOLD_WITHIN_MS, [2, 3, 4, 5]),
    ],
)
def test_the_log_has_what_a_run_did_not_write_before_it_died(*, has_timeline, after_ms, by_log):
    """This includes decisions of a run without a timeline.

    Events that the newest run's timeline may still add are awaited.
    """
    kept, older = PageTimeline(), "5-0badcafe"
    log = [
        *(entry("commit", 100 + number, number=number, run=older) for number in range(4)),
        entry("claim", 110),
        *(entry("commit", 120 + number, number=number) for number in range(4, 6)),
    ]
    dead = segment(batch(0, 90), batch(1, 91), run=older)
    kept.add([dead, segment(batch(4, 119))] if has_timeline else [dead], log, 125 + after_ms)
    assert [one[2] for one in kept.newer(0)["batches"] if one[7]] == by_log


def test_no_more_than_the_newest_are_kept():
    kept = PageTimeline()
    for number in range(0, MOST_KEPT + 500, 250):
        kept.add([segment(*(batch(number + i, 1000 * (number + i)) for i in range(250)))], ())
    found = kept.newer(0)["batches"]
    assert (len(found), found[-1][2], kept.last) == (MOST_KEPT, MOST_KEPT + 499, MOST_KEPT + 500)

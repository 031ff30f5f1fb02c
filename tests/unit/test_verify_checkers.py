from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkonce_lab.checkers.events import most_log_files
from sparkonce_lab.faults import STORE, Fault
from sparkonce_lab.history import OBSERVED, EventKind
from sparkonce_lab.verdicts import NEEDS_THE_END, Anomaly, passed
from unit.verify_world import SYSTEMS, Row, Run, batch, good_run, noted, resources

KAFKA, POSTGRES = SYSTEMS
RUN = ""
"""The name of the whole run in a verdict."""


def torn_too(system: str, counts: dict[Anomaly, int]) -> dict[tuple[Anomaly, str], int]:
    """Adds the anomalies that always follow if rows of one batch are wrong in one system.

    The batch then also differs from the other system's batch, and the system from the undisturbed query.
    """
    found = {(anomaly, system): count for anomaly, count in counts.items()}
    return {**found, (Anomaly.TORN, RUN): 1, (Anomaly.STATE_DIFFERS, system): sum(counts.values())}


def appended(run: Run, system: str, row: Row, **changed: Any) -> Row:
    again = {**row, **changed}
    if again["offset"] >= 0:
        again["offset"] = len(run.observed[system]) + 1_000
    run.observed[system].append(again)
    return again


def test_a_good_run_passes_and_everything_was_looked_at():
    run = good_run()
    verdicts = run.judge()
    assert run.found() == {}
    assert [verdict for verdict in verdicts if verdict.looked_at == 0] == []
    assert {verdict.anomaly for verdict in verdicts} == set(Anomaly)
    assert passed(verdicts)
    assert any(row["kind"] == "sum" and row["amount"] < 0 for row in run.expected)


def test_missing_rows():
    run = good_run()
    at = next(at for at, row in enumerate(run.observed[KAFKA]) if row["kind"] == "sum" and row["amount"] < 0)
    row = run.observed[KAFKA].pop(at)
    assert run.found() == torn_too(KAFKA, {Anomaly.MISSING: 1})
    assert run.verdict(Anomaly.MISSING, KAFKA).examples == (
        f"sum of key {row['key']} from {row['number']}: {row['amount']} of {row['rows']} rows",
    )

    run = good_run()
    for system in SYSTEMS:
        run.observed[system].pop(3)
    assert (Anomaly.TORN, RUN) not in run.found()
    assert run.found()[Anomaly.MISSING, KAFKA] == run.found()[Anomaly.MISSING, POSTGRES] == 1

    run = good_run()
    run.observed[KAFKA].clear()
    verdict = run.verdict(Anomaly.MISSING, KAFKA)
    assert verdict.count == len(run.expected)
    assert len(verdict.examples) == 5


def test_what_cannot_be_read_as_a_row_is_unexpected_each_time():
    run = good_run()
    nothing = dict.fromkeys(OBSERVED.names)
    run.observed[KAFKA] += [{**nothing, "kind": "strange", "batch": -1, "partition": 1, "offset": 900}] * 2
    assert run.found() == {(Anomaly.UNEXPECTED, KAFKA): 2, (Anomaly.STATE_DIFFERS, KAFKA): 2}
    assert "not a row" in run.verdict(Anomaly.UNEXPECTED, KAFKA).examples[0]
    assert "[no batch, partition 1 offset 900" in run.verdict(Anomaly.UNEXPECTED, KAFKA).examples[0]


def test_rows_out_of_order():
    def neighbours(run: Run) -> tuple[Row, Row]:
        rows = [row for row in run.observed[KAFKA] if row["kind"] == "row" and row["key"] == 1]
        return rows[0], rows[1]

    run = good_run()
    one, two = neighbours(run)
    one["offset"], two["offset"] = two["offset"], one["offset"]
    assert run.found() == {(Anomaly.OUT_OF_ORDER, KAFKA): 1}
    (example,) = run.verdict(Anomaly.OUT_OF_ORDER, KAFKA).examples
    assert example == (
        f"key 1 in partition 1: number 1 (batch 0) is at offset {two['offset']}, before number 0 (batch 0) at offset "
        f"{one['offset']}"
    )

    run = good_run()
    row, _ = neighbours(run)
    row["partition"] = 0
    assert run.found() == {(Anomaly.OUT_OF_ORDER, KAFKA): 1}
    assert "key 1 is in partition 0 and in partition 1" in run.verdict(Anomaly.OUT_OF_ORDER, KAFKA).examples[0]

    run = good_run()
    one, two = neighbours(run)
    run.observed[KAFKA].remove(two)
    one["offset"] += 1  # a transaction marker takes up an offset too
    assert (Anomaly.OUT_OF_ORDER, KAFKA) not in run.found()

    assert [each.system for each in good_run().judge() if each.anomaly is Anomaly.OUT_OF_ORDER] == [KAFKA]


def test_rows_that_are_visible_before_their_batch_is_decided():
    run = good_run()
    at = run.place(EventKind.SEEN, system=POSTGRES, batch=3)
    run.events[at] = noted(EventKind.SEEN, 77, system=POSTGRES, batch=3, decided=2)
    assert run.found() == {(Anomaly.EARLY, POSTGRES): 1}
    assert run.verdict(Anomaly.EARLY, POSTGRES).examples == (
        "at 77 ms a reader saw batch 3, and the newest decided batch was 2",
    )

    run = good_run()
    for system in SYSTEMS:
        for row in run.observed[system]:
            row["batch"] = 4 if row["batch"] == 3 else row["batch"]
    assert run.found() == {(Anomaly.EARLY, KAFKA): 1, (Anomaly.EARLY, POSTGRES): 1}
    assert run.verdict(Anomaly.EARLY, KAFKA).examples == ("batch 4 is there, and the newest batch ever decided is 3",)


def test_transactions_left_open():
    run = good_run()
    run.events[run.place(EventKind.OPEN, system=POSTGRES)] = noted(
        EventKind.OPEN, system=POSTGRES, names=["gid-1", "gid-2"]
    )
    assert run.found() == {(Anomaly.LINGERING, POSTGRES): 2}
    assert run.verdict(Anomaly.LINGERING, POSTGRES).examples == ("gid-1", "gid-2")

    run = good_run()
    run.insert(run.place(EventKind.OPEN), noted(EventKind.OPEN, system=POSTGRES, names=["gid-1"]))
    assert run.found() == {}


BLINDNESS: dict[str, tuple[Callable[[Run], object], Anomaly, str]] = {
    "nobody asked what is open": (lambda run: run.drop(EventKind.OPEN, system=KAFKA), Anomaly.LINGERING, KAFKA),
    "no reader looked meanwhile": (lambda run: run.drop(EventKind.SEEN, system=KAFKA), Anomaly.EARLY, KAFKA),
    "nobody counted state": (lambda run: run.drop(EventKind.STATE), Anomaly.STATE_DIFFERS, RUN),
    "no undisturbed query": (lambda run: setattr(run, "undisturbed", None), Anomaly.STATE_DIFFERS, RUN),
}


@pytest.mark.parametrize("name", BLINDNESS)
def test_a_verdict_on_nothing_does_not_pass(name):
    spoil, anomaly, system = BLINDNESS[name]
    run = good_run()
    spoil(run)
    verdicts = run.judge()
    assert run.found() == {}
    assert [(each.anomaly, each.system) for each in verdicts if each.blank] == [(anomaly, system)]
    assert not passed(verdicts)


def test_of_a_system_that_nobody_has_read_nothing_is_said():
    of_rows = (Anomaly.MISSING, Anomaly.DOUBLED, Anomaly.UNEXPECTED)
    run = good_run()
    run.observed.pop(POSTGRES)
    run.observed[KAFKA].pop(3)
    assert set(run.found()) == {(Anomaly.MISSING, KAFKA), (Anomaly.STATE_DIFFERS, KAFKA)}
    blank = {(each.anomaly, each.system) for each in run.judge() if each.blank}
    assert blank == {(anomaly, POSTGRES) for anomaly in (*of_rows, Anomaly.STATE_DIFFERS)}


def test_state_that_differs_from_the_undisturbed_querys():
    run = good_run()
    lost = run.undisturbed.pop()
    assert run.found() == {(Anomaly.STATE_DIFFERS, name): 1 for name in (RUN, *SYSTEMS)}
    (whole,) = run.verdict(Anomaly.STATE_DIFFERS).examples
    assert f"missing: row {lost['number']} of key {lost['key']}" in whole
    (example,) = run.verdict(Anomaly.STATE_DIFFERS, KAFKA).examples
    assert example.startswith(f"unexpected: row {lost['number']} of key {lost['key']}")

    run = good_run()
    run.undisturbed.pop()
    for system in SYSTEMS:
        run.observed[system].pop(0)
    found = {**{(Anomaly.MISSING, system): 1 for system in SYSTEMS}, (Anomaly.STATE_DIFFERS, RUN): 1}
    assert run.found() == found

    run = good_run()
    run.events[run.place(EventKind.STATE)] = noted(EventKind.STATE, disturbed=13, undisturbed=12)
    assert run.found() == {(Anomaly.STATE_DIFFERS, RUN): 1}
    assert "13 rows of state" in run.verdict(Anomaly.STATE_DIFFERS).examples[0]


def test_a_run_that_is_stuck():
    run = good_run()
    run.events[-1] = noted(EventKind.STUCK, step=1, what="no batch within 300 s")
    assert run.found() == {(Anomaly.STUCK, RUN): 1}
    assert run.verdict(Anomaly.STUCK).examples == ("step 1: no batch within 300 s",)

    run = good_run()
    run.drop(EventKind.FINISHED)
    assert run.found() == {(Anomaly.STUCK, RUN): 1}
    assert "breaks off" in run.verdict(Anomaly.STUCK).examples[0]

    run = good_run()
    run.drop(EventKind.RECOVERED)
    assert run.found() == {(Anomaly.STUCK, RUN): 1}
    assert "step 1 (driver-killed)" in run.verdict(Anomaly.STUCK).examples[0]

    run = good_run()
    fault = noted(EventKind.FAULT, step=2, fault="driver-killed", system="", driver=2, phase="READING", batch=1)
    run.insert(run.place(EventKind.OVER), fault)
    run.events[run.place(EventKind.RECOVERED)] = noted(EventKind.RECOVERED, step=2, driver=3, batch=1)
    assert run.found() == {}


@pytest.mark.parametrize("ends", ["stuck", "stuck, and read all the same", "broken off"])
def test_what_a_run_without_its_end_lacks_is_no_loss(ends):
    run = good_run()
    run.observed[KAFKA].pop()
    run.observed[POSTGRES].pop(0)
    appended(run, POSTGRES, run.observed[POSTGRES][3])
    run.events[run.place(EventKind.OPEN)] = noted(EventKind.OPEN, system=KAFKA, names=["sparkonce.1 Ongoing"])
    assert {one for one, _ in run.found()} == NEEDS_THE_END | {Anomaly.DOUBLED}
    stuck = noted(EventKind.STUCK, step=1, what="no batch within 300 s")
    if ends == "stuck, and read all the same":
        run.insert(len(run.events) - 1, stuck)
    else:
        run.events[-1:] = [stuck] if ends == "stuck" else []
    assert run.found() == {(Anomaly.STUCK, RUN): 1, (Anomaly.DOUBLED, POSTGRES): 1}
    assert {each.anomaly for each in run.judge() if each.blank} == NEEDS_THE_END


def struck(fault: Fault, system: str = "") -> Run:
    run = good_run()
    at = run.place(EventKind.FAULT)
    run.events[at] = noted(
        EventKind.FAULT, step=1, fault=fault.value, system=system, driver=1, phase="WRITING", batch=1
    )
    run.drop(EventKind.ENDED)
    return run


def stopped(driver: int, error: str, message: str = "so it is") -> Any:
    return noted(EventKind.STOPPED, driver=driver, error=error, message=message)


EXPLAINED = [
    ("PrepareError", Fault.CUT),
    ("PrepareError", Fault.WORKER_KILLED),
    ("PrepareError", Fault.TARGET_DISK_FULL),
    ("UnknownOutcomeError", Fault.BLACK_HOLE),
    ("UnknownOutcomeError", Fault.REPLY_LOST),
    ("TransactionTooOldError", Fault.SERVER_PAUSED),
    ("PreflightError", Fault.SERVER_KILLED),
    ("LogError", Fault.LOG_DISK_FULL),
    ("SupersededError", Fault.TWO_DRIVERS),
    ("StaleBatchError", Fault.TWO_DRIVERS),
    ("StreamingQueryException", Fault.SERVER_KILLED),
    ("Py4JJavaError", Fault.COORDINATOR_MOVED),
    ("StreamingQueryException", Fault.LOG_DISK_FULL),
]


@pytest.mark.parametrize(("error", "fault"), EXPLAINED)
def test_a_fault_explains_an_error_while_it_lasts(error, fault):
    run = struck(fault)
    run.insert(run.place(EventKind.FAULT) + 1, stopped(1, error), noted(EventKind.ENDED, driver=1, code=1))
    assert run.found() == {}


@pytest.mark.parametrize(("error", "fault"), EXPLAINED)
def test_no_fault_explains_an_error_before_and_after(error, fault):
    run = struck(fault)
    run.insert(
        run.place(EventKind.RECOVERED) + 1, stopped(1, "SupersededError")
    ) if fault is Fault.TWO_DRIVERS else None
    run.insert(run.place(EventKind.OPEN), stopped(2, error))
    run.insert(run.place(EventKind.FAULT), stopped(1, error))
    assert run.found() == {(Anomaly.STOPPED, RUN): 2}
    assert run.verdict(Anomaly.STOPPED).examples[0] == f"at 1000 ms driver 1: {error}: so it is"


NEVER_EXPLAINED = [
    *("TransactionLostError", "CheckpointMismatchError", "CorruptRecordError", "NewerFormatError", "StaleLogError"),
    *("ConfigurationError", "SchemaError"),
]
UNREAD = "The decision log s3a://b/a/sparkonce cannot be read: timed out."
UNWRITTEN = "the decision of batch 1 could not be written: timed out"
UNASKED = "checkpoint='s3a://b/a': the store could not be asked to show that it can carry a decision log: timed out."


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ConfigurationError", UNASKED),
        ("ConfigurationError", "checkpoint='s3a://b/a' cannot be written to: timed out."),
        ("ConfigurationError", "checkpoint='s3a://b/a': Spark cannot reach that store: timed out."),
        ("LogError", UNREAD),
        ("LogError", UNWRITTEN),
    ],
)
def test_an_outage_of_the_checkpoints_store_explains_that_it_could_not_be_asked(error, message):
    run = struck(Fault.SERVER_KILLED, system=STORE)
    run.insert(run.place(EventKind.FAULT) + 1, stopped(1, error, message), noted(EventKind.ENDED, driver=1, code=1))
    assert run.found() == {}
    run.insert(run.place(EventKind.OPEN), stopped(2, error, message))
    assert run.found() == {(Anomaly.STOPPED, RUN): 1}


@pytest.mark.parametrize(
    ("fault", "system", "error", "message"),
    [
        (Fault.SERVER_KILLED, STORE, "LogError", "The decision log s3a://b/a contradicts itself: two decisions."),
        (Fault.SERVER_KILLED, STORE, "ConfigurationError", "this store cannot carry a decision log: 2 of 2 landed"),
        (Fault.SERVER_KILLED, STORE, "ConfigurationError", "checkpoint='s3a://b/a' holds no query"),
        (Fault.SERVER_KILLED, KAFKA, "LogError", UNREAD),
        (Fault.SERVER_KILLED, KAFKA, "ConfigurationError", UNASKED),
        (Fault.REPLY_LOST, STORE, "LogError", UNWRITTEN),
        (Fault.REQUEST_LATE, STORE, "LogError", UNWRITTEN),
        (Fault.REPLY_LOST, STORE, "ConfigurationError", UNASKED),
        (Fault.DRIVER_KILLED, "", "PrepareError", "so it is"),
        (Fault.DRIVER_KILLED, "", "SupersededError", "so it is"),
        (Fault.CUT, "", "SupersededError", "so it is"),
        (Fault.CUT, "", "LogError", "so it is"),
        (Fault.OTHER_PARALLELISM, "", "UnknownOutcomeError", "so it is"),
        (Fault.EXPIRED, "", "StreamingQueryException", "so it is"),
        (Fault.CLOCK_JUMPED, "", "StreamingQueryException", "so it is"),
        (Fault.SERVER_KILLED, "", "RuntimeError", "so it is"),
        (Fault.LOG_DISK_FULL, "", "OSError", "so it is"),
        (Fault.TWO_DRIVERS, "", "BadTransition", "so it is"),
        *((fault, "", error, "so it is") for fault in Fault for error in NEVER_EXPLAINED),
    ],
)
def test_not_every_fault_explains_every_error(fault, system, error, message):
    run = struck(fault, system=system)
    run.insert(run.place(EventKind.FAULT) + 1, stopped(1, error, message))
    assert run.found() == {(Anomaly.STOPPED, RUN): 1}


PLANNED = (
    "The running query has planned batch 1 with the offsets ['7'], and … ['8']: another driver runs on this checkpoint"
)


@pytest.mark.parametrize(
    ("fault", "checkpoint", "message", "found"),
    [
        (Fault.TWO_DRIVERS, "s3a://bucket/a", PLANNED, 0),
        (Fault.DRIVER_PAUSED, "s3", PLANNED, 0),
        (Fault.TWO_DRIVERS, "", PLANNED, 1),
        (Fault.TWO_DRIVERS, "hdfs://host:8020/a", PLANNED, 1),
        (Fault.TWO_DRIVERS, "/data/s3a", PLANNED, 1),
        (Fault.TWO_DRIVERS, "s3a://bucket/a", "batch 1 was decided with other offsets", 1),
        (Fault.DRIVER_KILLED, "s3a://bucket/a", PLANNED, 1),
    ],
)
def test_two_drivers_may_plan_a_batch_otherwise_in_s3(fault, checkpoint, message, found):
    run = struck(fault)
    began = run.events[run.place(EventKind.BEGAN)]
    run.events[run.place(EventKind.BEGAN)] = noted(EventKind.BEGAN, **{**began.fields, "checkpoint": checkpoint})
    run.insert(run.place(EventKind.FAULT) + 1, stopped(1, "CheckpointMismatchError", message))
    assert run.found().get((Anomaly.STOPPED, RUN), 0) == found


def test_errors_that_spark_has_wrapped():
    run = struck(Fault.SERVER_KILLED)
    traces = "An exception was raised …\nsparkonce.errors.PrepareError: …\nsparkonce.errors.TransactionLostError: …"
    run.insert(run.place(EventKind.FAULT) + 1, stopped(1, "StreamingQueryException", traces))
    assert run.found() == {(Anomaly.STOPPED, RUN): 1}

    run = struck(Fault.CLOCK_JUMPED)
    run.insert(run.place(EventKind.FAULT) + 1, stopped(1, "PrepareError"), stopped(1, "StreamingQueryException"))
    assert run.found() == {}


def test_a_zombie_may_stop():
    run = struck(Fault.DRIVER_PAUSED)
    run.insert(run.place(EventKind.OPEN), stopped(1, "SupersededError"))
    assert run.found() == {}

    run = struck(Fault.DRIVER_PAUSED)
    run.insert(
        run.place(EventKind.RECOVERED) + 1,
        noted(EventKind.ENDED, driver=2, code=-9),
        stopped(1, "PrepareError", "fenced"),
    )
    assert run.found() == {}

    run = struck(Fault.DRIVER_PAUSED)
    run.insert(run.place(EventKind.OPEN), stopped(1, "SupersededError"), stopped(2, "SupersededError"))
    assert run.found() == {(Anomaly.STOPPED, RUN): 1}
    assert "driver 2" in run.verdict(Anomaly.STOPPED).examples[0]


def test_one_of_two_drivers_may_stop():
    run = struck(Fault.TWO_DRIVERS)
    run.insert(run.place(EventKind.OPEN), stopped(2, "StaleBatchError"))
    assert run.found() == {}

    run = struck(Fault.TWO_DRIVERS)
    run.insert(
        run.place(EventKind.OPEN),
        noted(EventKind.FAULT, step=2, fault="driver-killed", system="", driver=2, phase="IDLE", batch=3),
        noted(EventKind.ENDED, driver=2, code=-9),
        noted(EventKind.START, driver=3, pid=13, slots=2, master="local[2]"),
        batch(3, 3),
        noted(EventKind.RECOVERED, step=2, driver=3, batch=3),
        stopped(3, "SupersededError"),
    )
    assert run.found() == {(Anomaly.STOPPED, RUN): 1}


@pytest.mark.parametrize("code", [-11, -9, 0])
@pytest.mark.parametrize("fault", [Fault.SERVER_KILLED, Fault.TWO_DRIVERS, Fault.WORKER_KILLED])
def test_a_driver_that_crashed_is_explained_by_nothing(code, fault):
    run = struck(fault)
    run.insert(run.place(EventKind.FAULT) + 1, noted(EventKind.ENDED, driver=1, code=code, asked=False))
    assert run.found() == {(Anomaly.STOPPED, RUN): 1}


GROWING: dict[str, tuple[Callable[[int], dict[str, Any]], str]] = {
    "memory": (
        lambda at: {"rss_mib": 500 + 10.0 * at, "handles": 90},
        "jvm of driver 2 (process 12): rss_mib 625 at first, 1005 at last",
    ),
    "handles": (lambda at: {"rss_mib": 500.0, "handles": 100 + 3 * at}, "handles 138 at first, 252 at last"),
    "a worker's memory": (
        lambda at: {"rss_mib": 150.0 + at, "handles": 30, "role": "worker"},
        "worker of driver 2 (process 12): rss_mib 162 at first, 200 at last",
    ),
}


@pytest.mark.parametrize("what", GROWING)
def test_a_process_that_grows(what):
    by, example = GROWING[what]
    run = good_run()
    run.drop(EventKind.RESOURCES)
    run.insert(run.place(EventKind.FOLDER), *(resources(sample, **by(sample)) for sample in range(60)))
    assert run.found() == {(Anomaly.GROWING, RUN): 1}
    assert example in run.verdict(Anomaly.GROWING).examples[0]


def test_a_log_that_is_never_tidied():
    def long_run(files: int) -> Run:
        run = good_run()
        run.drop(EventKind.RESOURCES)
        run.insert(
            run.place(EventKind.OPEN),
            *(batch(2, number) for number in range(4, 400)),
            noted(EventKind.FOLDER, 9_000, name="log", files=files, bytes=1),
            noted(EventKind.FOLDER, 9_001, name="checkpoint", files=5_000, bytes=1),
            noted(EventKind.FOLDER, 9_002, name="log", files=8, bytes=1),
        )
        return run

    bound = most_log_files(long_run(1).history())
    assert 121 < bound < 150
    assert long_run(bound).found() == {}
    assert long_run(bound).verdict(Anomaly.GROWING).looked_at == 1
    assert long_run(bound + 1).found() == {(Anomaly.GROWING, RUN): 1}
    assert f"had {bound + 1} files at 9000 ms" in long_run(bound + 1).verdict(Anomaly.GROWING).examples[0]


@given(data=st.data(), rows=st.integers(3, 80), seed=st.integers(0, 1_000), keys=st.integers(1, 7))
@settings(max_examples=50)
def test_one_row_that_was_tampered_with_is_always_found(data, rows, seed, keys):
    run = good_run(rows, seed, keys)
    assert run.found() == {}
    system = data.draw(st.sampled_from(SYSTEMS))
    at = data.draw(st.integers(0, len(run.observed[system]) - 1))
    deed = data.draw(st.sampled_from(["remove", "repeat", "alter"]))
    if deed == "remove":
        run.observed[system].pop(at)
        counts = {Anomaly.MISSING: 1}
    elif deed == "repeat":
        appended(run, system, run.observed[system][at], batch=data.draw(st.sampled_from([0, 1, 2, 3])))
        counts = {Anomaly.DOUBLED: 1}
    else:
        column = data.draw(st.sampled_from(["amount", "rows"]))
        run.observed[system][at][column] += data.draw(st.sampled_from([-1, 1]))
        counts = {Anomaly.UNEXPECTED: 1, Anomaly.MISSING: 1}
    assert run.found() == torn_too(system, counts)

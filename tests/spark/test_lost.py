"""The driver stays away for longer than ``transaction.timeout.ms``, and the broker aborts what it had decided.

Flink logs "data loss" there and goes on. Here the batch is written again, or the query stops and says what is missing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventually import eventually
from spark.harness import Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED, REFUSED
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.view import Decision
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import Record, describe_transactions, read_committed, read_uncommitted
from striking.points import HALFWAY

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS, ROWS_PER_BATCH = 3_000, 1_000
MOODY = "spark.plans:moody"
BATCH = 1
TIMEOUT_MS = 10_000
ABORTED = {"CompleteAbort", "PrepareAbort", "Empty", "Dead"}


def new_job(kafka: Cluster, folder: Path, plan: str = "spark.plans:distinct") -> Job:
    return Job(
        kafka.bootstrap,
        folder,
        rows=ROWS,
        rows_per_batch=ROWS_PER_BATCH,
        plan=plan,
        kafka={"settings": {"transaction.timeout.ms": TIMEOUT_MS}},
        points=(HALFWAY,),
    )


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that was killed while it committed a batch, of which the broker has aborted what was left.

    Attributes:
        job: The job.
        decided: The batch's decision before the next run.
        handles: Its transactions.
        slots: Those that are lost.
        visible: What readers saw before the next run.
    """

    job: Job
    decided: Decision
    handles: tuple[Handle, ...]
    slots: set[int]
    visible: list[Record]


def kill_and_wait_for_the_broker(points: dict[Job, str], log: Path) -> list[Lost]:
    """Kills the jobs while each commits its batch, and waits until the broker has aborted what is left of it."""
    holds = {job: hold_at(point, job, lambda batch: batch == BATCH) for job, point in points.items()}
    run = start_held(holds, list(points.values()), log)
    run.kill()
    return [what_is_lost(job, point) for job, point in points.items()]


def what_is_lost(job: Job, point: str) -> Lost:
    decided = job.log().decision(BATCH)
    assert decided is not None
    handles = tuple(handle for handle in decided.handles if handle.transaction)

    def states() -> dict[int, str]:
        found = describe_transactions(job.bootstrap, [str(handle["transactional_id"]) for handle in handles])
        return {handle.slot: found[str(handle["transactional_id"])].state for handle in handles}

    eventually(lambda: not set(states().values()) & {"Ongoing", "PrepareAbort"}, "the broker has aborted the rest")
    assert set(states().values()) <= ABORTED | {"CompleteCommit"}
    lost = {slot for slot, state in states().items() if state in ABORTED}
    assert len(lost) == (len(handles) // 2 if point == HALFWAY else len(handles)) > 0
    return Lost(job, decided, handles, lost, read_committed(job.bootstrap, job.config.target))


@pytest.fixture(scope="module")
def lost(kafka: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Lost]]:
    """Three jobs that have lost transactions, after one more run of each."""
    folder = tmp_path_factory.mktemp("lost")
    with ExitStack() as stack:
        part, whole, differing = (
            stack.enter_context(new_job(kafka, folder / name, plan))
            for name, plan in (("part", "spark.plans:distinct"), ("whole", MOODY), ("differing", MOODY))
        )
        points = {part: HALFWAY, whole: "FINISHING", differing: HALFWAY}
        found = kill_and_wait_for_the_broker(points, folder / "killed.log")
        start_together(list(points), folder / "next.log").join()
        yield dict(zip(("part", "whole", "differing"), found, strict=True))


def test_what_the_broker_aborted_of_a_decided_batch_is_written_again(lost: dict[str, Lost]) -> None:
    part = lost["part"]
    assert part.job.gate.at(ENDED, failed="")
    verdict = part.job.judge()
    assert verdict.is_exactly_once, verdict
    decision = part.job.log().decision(BATCH)
    assert decision is not None
    after = {handle.slot: handle for handle in decision.handles}
    for handle in part.handles:
        assert (after[handle.slot] == handle) == (handle.slot not in part.slots)
        assert after[handle.slot].evidence == handle.evidence


def test_a_batch_that_is_lost_as_a_whole_is_written_again_whatever_its_rows_are_now(lost: dict[str, Lost]) -> None:
    whole = lost["whole"]
    assert whole.job.gate.at(ENDED, failed="")
    verdict = whole.job.judge()
    assert verdict.is_exactly_once, verdict
    decision = whole.job.log().decision(BATCH)
    assert decision is not None
    assert not set(whole.handles) & set(decision.handles)


def test_a_plan_that_gives_other_rows_stops_with_an_exact_report_and_writes_nothing(lost: dict[str, Lost]) -> None:
    differing = lost["differing"]
    check_report(differing)
    # The report is right: what stands there of the batch is all that it does not name.
    standing = Counter(int((record.value or b"").split()[0]) for record in differing.visible)
    assert standing[BATCH] == sum(each.rows for each in differing.handles if each.slot not in differing.slots)


@pytest.mark.slow
def test_another_start_says_the_same(lost: dict[str, Lost]) -> None:
    differing = lost["differing"]
    assert differing.job.start().join() == 1
    check_report(differing)


def check_report(differing: Lost) -> None:
    job = differing.job
    refused, ended = job.gate.last(REFUSED), job.gate.last(ENDED)
    assert refused is not None
    assert ended is not None
    assert refused.pid == ended.pid == job.runs[-1].pid
    assert (refused.told["kind"], refused.told["batch"]) == ("TransactionLostError", BATCH)
    details = {name: ast.literal_eval(text) for name, text in refused.told["details"].items()}
    lost = tuple(("kafka", each.slot, each.rows) for each in differing.handles if each.slot in differing.slots)
    assert details["lost"] == lost
    assert details["offsets"] == differing.decided.offsets
    assert set(details["differing"]) == {("kafka", each.slot) for each in differing.handles}
    for _, slot, rows in lost:
        assert f"('kafka', {slot}, {rows})" in refused.told["message"]
    assert "TransactionLostError" in ended.told["failed"]
    assert job.log().decision(BATCH) == differing.decided
    assert job.decided() == BATCH
    assert read_committed(job.bootstrap, job.config.target) == differing.visible
    assert job.transactions("Ongoing") == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_while_it_heals_leaves_the_next_one_to_heal(kafka: Cluster, tmp_path: Path) -> None:
    with new_job(kafka, tmp_path / "job") as job:
        kill_and_wait_for_the_broker({job: HALFWAY}, tmp_path / "killed.log")
        for phase in ("JUDGING", "WRITING", "DECIDING"):
            hold = hold_at(phase, job, batch=BATCH)
            run = job.start(points=())
            hold.wait(run.check)
            run.kill()
        # Decided anew, and again nothing of it committed before the broker's patience is over.
        hold = hold_at("DECIDING", job, batch=BATCH)
        run = job.start(points=())
        hold.wait(run.check)
        again = hold_at("FINISHING", job, batch=BATCH)
        hold.release()
        again.wait(run.check)
        run.kill()
        job.await_aborted()
        job.start(points=()).finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        uncommitted = read_uncommitted(kafka.bootstrap, job.config.target)
        assert len(uncommitted) > verdict.rows, "nothing was ever written in vain: the test has not killed anything"

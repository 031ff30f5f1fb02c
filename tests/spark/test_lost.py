"""The driver stays away for longer than ``transaction.timeout.ms``, and the broker aborts what it had decided.

Flink logs "data loss" there and goes on. Here the batch is written again, or the query stops and says what is missing.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from spark.desk import Visit
from spark.faults import HALFWAY
from spark.harness import Job
from spark.pipeline import PHASE, REFUSED
from spark.processes import eventually
from sparkonce.embedded import Cluster
from sparkonce.protocol.handles import Handle
from sparkonce.testing.kafka import describe_transactions, read_committed, read_uncommitted

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 20_000
MOODY = "spark.plans:moody"
BATCH = 1
TIMEOUT_MS = 10_000
ABORTED = {"CompleteAbort", "PrepareAbort", "Empty", "Dead"}
CONFIG = {"rows_per_batch": 5_000, "settings": {"transaction.timeout.ms": TIMEOUT_MS}, "points": (HALFWAY,)}


def kill_and_wait_for_the_broker(job: Job, point: str) -> tuple[tuple[Handle, ...], set[int]]:
    """Kills a run while it commits a batch, and waits until the broker has aborted what was left of it.

    Args:
        job: The job.
        point: HALFWAY, or PHASE for before the first commit.

    Returns:
        The batch's handles as decided, and the slots that are lost.
    """

    def is_the_batch(_: Visit) -> bool:
        now = job.phase()
        return now is not None and now.told["batch"] == BATCH

    finishing = {"phase": "FINISHING"} if point == PHASE else {}
    hold = job.desk.hold(point, when=is_the_batch, **finishing)
    run = job.start()
    hold.wait(run.check)
    decision = job.log().decision(BATCH)
    assert decision is not None
    handles = tuple(handle for handle in decision.handles if handle.transaction)
    run.kill()

    def states() -> dict[int, str]:
        found = describe_transactions(job.bootstrap, [str(handle["transactional_id"]) for handle in handles])
        return {handle.slot: found[str(handle["transactional_id"])].state for handle in handles}

    eventually(lambda: not set(states().values()) & {"Ongoing", "PrepareAbort"}, "the broker has aborted the rest")
    assert set(states().values()) <= ABORTED | {"CompleteCommit"}
    lost = {slot for slot, state in states().items() if state in ABORTED}
    assert len(lost) == (len(handles) - len(handles) // 2 if point == HALFWAY else len(handles)) > 0
    return handles, lost


def test_what_the_broker_aborted_of_a_decided_batch_is_written_again(kafka: Cluster, tmp_path: Path) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, **CONFIG) as job:
        before, lost = kill_and_wait_for_the_broker(job, HALFWAY)
        job.start().finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        decision = job.log().decision(BATCH)
        assert decision is not None
        after = {handle.slot: handle for handle in decision.handles}
        for handle in before:
            assert (after[handle.slot] == handle) == (handle.slot not in lost)
            assert after[handle.slot].evidence == handle.evidence


def test_a_batch_that_is_lost_as_a_whole_is_written_again_whatever_its_rows_are_now(
    kafka: Cluster, tmp_path: Path
) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, plan=MOODY, **CONFIG) as job:
        before, _ = kill_and_wait_for_the_broker(job, PHASE)
        job.start().finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        decision = job.log().decision(BATCH)
        assert decision is not None
        assert not set(before) & set(decision.handles)


def test_a_plan_that_gives_other_rows_stops_with_an_exact_report_and_writes_nothing(
    kafka: Cluster, tmp_path: Path
) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, plan=MOODY, **CONFIG) as job:
        handles, lost = kill_and_wait_for_the_broker(job, HALFWAY)
        visible = read_committed(kafka.bootstrap, job.config.target)
        decided = job.log().decision(BATCH)
        assert decided is not None
        for _ in range(2):  # a second start finds the same, and says the same
            assert job.start().wait() == 1
            refused = job.desk.last(REFUSED)
            assert refused is not None
            assert (refused.told["kind"], refused.told["batch"]) == ("TransactionLostError", BATCH)
            details = {name: ast.literal_eval(text) for name, text in refused.told["details"].items()}
            assert details["lost"] == tuple(("kafka", each.slot, each.rows) for each in handles if each.slot in lost)
            assert details["offsets"] == decided.offsets
            assert set(details["differing"]) == {("kafka", each.slot) for each in handles}
            for _, slot, rows in details["lost"]:
                assert f"('kafka', {slot}, {rows})" in refused.told["message"]
            ended = job.ended()
            assert ended is not None
            assert "TransactionLostError" in ended.told["failed"]
            assert job.log().decision(BATCH) == decided
            assert job.decided() == BATCH
            assert read_committed(kafka.bootstrap, job.config.target) == visible
            assert job.transactions("Ongoing") == {}
        # The report is right: what stands there of the batch is all that it does not name.
        standing = Counter(int((record.value or b"").split()[0]) for record in visible)
        assert standing[BATCH] == sum(each.rows for each in handles if each.slot not in lost)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_while_it_heals_leaves_the_next_one_to_heal(kafka: Cluster, tmp_path: Path) -> None:
    with Job(kafka.bootstrap, tmp_path / "job", rows=ROWS, **CONFIG) as job:
        kill_and_wait_for_the_broker(job, HALFWAY)
        for phase in ("JUDGING", "WRITING", "DECIDING"):
            hold = job.desk.hold(PHASE, phase=phase, batch=BATCH)
            run = job.start(points=())
            hold.wait(run.check)
            run.kill()
        # Decided anew, and again nothing of it committed before the broker's patience is over.
        hold = job.desk.hold(PHASE, phase="DECIDING", batch=BATCH)
        run = job.start(points=())
        hold.wait(run.check)
        again = job.desk.hold(PHASE, phase="FINISHING", batch=BATCH)
        hold.caught[0].answer()
        again.wait(run.check)
        run.kill()
        eventually(lambda: not job.transactions("Ongoing", "PrepareAbort"), "the broker has aborted that, too")
        job.start(points=()).finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        uncommitted = read_uncommitted(kafka.bootstrap, job.config.target)
        assert len(uncommitted) > verdict.rows, "nothing was ever written in vain: the test has not killed anything"

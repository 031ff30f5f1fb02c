"""Queries that group their partitions are killed in a batch, and restarted with other cores. The slots stay the same.

A replay with other slots would look like other rows, and could not be healed.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from eventually import LIMIT_S
from spark.harness import PARTITIONS, Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED
from sparkonce.protocol.handles import Handle
from sparkonce_lab.rig.kafka import Cluster
from striking.points import HALFWAY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROWS, ROWS_PER_BATCH, ROWS_PER_SLOT = 3_000, 1_000, 600
SLOTS = 2
"""The slots of each batch except the first, which has one slot per partition."""
BATCH = 1
SOON_MS, LATE_MS = 10_000, 600_000


def handles(job: Job) -> tuple[Handle, ...]:
    decision = job.log().decision(BATCH)
    assert decision is not None
    return decision.handles


def test_a_killed_batch_has_the_same_slots_when_it_is_run_again(kafka: Cluster, tmp_path: Path) -> None:
    # With this many partitions, Spark may list them in another order after a restart. See `sparkonce.spark.grouping`.
    many = 6

    def widen(job: Job) -> None:
        """Gives the source more partitions. They stay empty."""
        admin = AdminClient({"bootstrap.servers": job.bootstrap})
        (source,) = job.config.sources
        admin.create_partitions([NewPartitions(source, many)])[source].result(LIMIT_S)

    def new_job(kafka: Cluster, folder: Path, plan: str, slots: int, timeout_ms: int) -> Job:
        return Job(
            kafka.bootstrap,
            folder,
            rows=ROWS,
            rows_per_batch=ROWS_PER_BATCH,
            again=False,
            plan=plan,
            slots=slots,
            settings={"transaction.timeout.ms": timeout_ms},
            query={"rows_per_slot": ROWS_PER_SLOT},
            points=(HALFWAY,),
        )

    stateless, stateful = "spark.plans:stateless", "spark.plans:distinct"
    with ExitStack() as stack:
        lost, shuffled, ungrouped, undecided, decided = jobs = [
            stack.enter_context(new_job(kafka, tmp_path / name, plan, slots, timeout_ms))
            for name, plan, slots, timeout_ms in (
                ("lost", stateless, SLOTS, SOON_MS),
                ("shuffled", stateful, many, SOON_MS),
                ("ungrouped", stateless, SLOTS, SOON_MS),
                ("undecided", stateless, SLOTS, LATE_MS),
                ("decided", stateless, SLOTS, LATE_MS),
            )
        ]
        for job in (lost, undecided, decided):
            widen(job)
        half_lost = (lost, shuffled, ungrouped)
        points = dict.fromkeys(half_lost, HALFWAY) | {undecided: "DECIDING", decided: "FINISHING"}
        holds = {job: hold_at(point, job, lambda batch: batch == BATCH) for job, point in points.items()}
        start_held(holds, list(points.values()), tmp_path / "killed.log").kill()
        before = {job: handles(job) for job in (*half_lost, decided)}
        for job in half_lost:
            job.await_aborted()
            assert job.transactions("CompleteAbort")
        start_together(jobs, tmp_path / "next.log", master="local[3]", points=()).join()
        for job in jobs:
            assert job.gate.at(ENDED, failed=""), job.gate.last(ENDED)
            verdict = job.judge()
            assert verdict.is_exactly_once, verdict
        assert handles(decided) == before[decided]
        for job in half_lost:
            assert handles(job) != before[job]
            assert sorted(one.evidence for one in handles(job)) == sorted(one.evidence for one in before[job])
        assert [len(handles(job)) for job in jobs] == [SLOTS, SLOTS, PARTITIONS, SLOTS, SLOTS]

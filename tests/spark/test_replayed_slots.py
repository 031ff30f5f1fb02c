"""Queries are killed in a batch, and the next run could give the batch other slots.

A replay with other slots looks like other rows, and cannot be healed. Grouped partitions keep their slots, no matter
how many cores there are. With adaptive execution, on by default for stateless queries since Spark 4.1, a replay may
have other slots: the first run writes a batch with one slot per shuffle partition, and the next run is allowed to merge
them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pyspark
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from eventually import LIMIT_S
from spark.harness import PARTITIONS, Job, hold_at, start_held, start_together
from spark.pipeline import ENDED, REFUSED
from sparkonce.protocol.handles import Handle
from striking.points import HALFWAY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

BATCH = 1
ROWS: dict[str, Any] = {"rows": 3_000, "rows_per_batch": 1_000, "again": False, "points": (HALFWAY,)}
SOON, LATE = {"transaction.timeout.ms": 10_000}, {"transaction.timeout.ms": 600_000}


def handles(job: Job, batch: int = BATCH) -> tuple[Handle, ...]:
    decision = job.log().decision(batch)
    return decision.handles


def test_a_killed_batch_has_the_same_slots_when_it_is_run_again(kafka, tmp_path):
    # With this many partitions, Spark may list them in another order after a restart. See `sparkonce.spark.grouping`.
    many = 6

    def widen(job: Job) -> None:
        """Gives the source more partitions. They stay empty."""
        admin = AdminClient({"bootstrap.servers": job.bootstrap})
        (source,) = job.config.sources
        admin.create_partitions([NewPartitions(source, many)])[source].result(LIMIT_S)

    stateless, stateful = "spark.plans:stateless", "spark.plans:distinct"
    grouped: dict[str, Any] = {**ROWS, "query": {"rows_per_slot": 600}}
    slots = 2  # the slots of each batch except the first, which has one slot per partition
    with ExitStack() as stack:
        lost, shuffled, ungrouped, undecided, decided = jobs = [
            stack.enter_context(
                Job(kafka.bootstrap, tmp_path / name, plan=plan, slots=shuffled, settings=settings, **grouped)
            )
            for name, plan, shuffled, settings in (
                ("lost", stateless, slots, SOON),
                ("shuffled", stateful, many, SOON),
                ("ungrouped", stateless, slots, SOON),
                ("undecided", stateless, slots, LATE),
                ("decided", stateless, slots, LATE),
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
            assert job.judge() == ""
        assert handles(decided) == before[decided]
        for job in half_lost:
            assert handles(job) != before[job]
            assert sorted(one.evidence for one in handles(job)) == sorted(one.evidence for one in before[job])
        assert [len(handles(job)) for job in jobs] == [slots, slots, PARTITIONS, slots, slots]


@pytest.mark.parametrize(
    "source",
    [
        "files",
        # Only these versions' Kafka connectors can be downloaded.
        *(["kafka"] if pyspark.__version__ in ("4.0.0", "4.1.1", "4.2.0") else []),
    ],
)
def test_a_batch_is_exact_whatever_its_slots_are_in_the_next_run(source, broker, tmp_path):
    merging = "spark.sql.adaptive.coalescePartitions.enabled"
    split, merged = ({"spark.sql.adaptive.enabled": "true", merging: value} for value in ("false", "true"))
    slots = 4

    def new_job(name: str, settings: dict[str, int]) -> Job:
        folder = tmp_path / name
        files = str(folder / "input") if source == "files" else ""
        plan: dict[str, Any] = {"plan": "spark.plans:shuffled", "slots": slots, "sql": split}
        return stack.enter_context(Job(broker.bootstrap, folder, files=files, settings=settings, **plan, **ROWS))

    # Spark 4.0 turns adaptive execution off in streaming queries.
    merged_slots = slots if pyspark.__version__.startswith("4.0.") else 1
    points = {
        "undecided": "DECIDING",
        "decided": "FINISHING",
        "half": HALFWAY,
        # The broker aborts these two jobs' transactions before the next run: all of one job's, and half of the other's.
        "whole": "FINISHING",
        "part": HALFWAY,
    }
    with ExitStack() as stack:
        jobs = {name: new_job(name, SOON if name in ("whole", "part") else LATE) for name in points}
        holds = {jobs[name]: hold_at(point, jobs[name], lambda batch: batch == BATCH) for name, point in points.items()}
        start_held(holds, [*points.values()], tmp_path / "killed.log").kill()
        *at_once, whole, part = jobs.values()
        start_together(at_once, tmp_path / "next.log", sql=merged).finish()

        for job in (whole, part):
            job.await_aborted()
        start_together([whole, part], tmp_path / "late.log", sql=merged).join()
        if merged_slots != slots:
            refused = part.gate.last(REFUSED)
            assert refused.told["kind"] == "TransactionLostError"
            assert "distributed differently" in refused.told["message"]
            part.start(sql={"spark.sql.adaptive.enabled": "false"}).finish()
        assert part.gate.at(ENDED, failed="")

        assert {name: job.judge() for name, job in jobs.items()} == dict.fromkeys(jobs, "")

        def written(job: Job, batch: int = BATCH) -> int:
            return sum(1 for one in handles(job, batch) if one.transaction)

        assert [written(jobs["decided"], batch) for batch in (0, BATCH, BATCH + 1)] == [slots, slots, merged_slots]
        assert [written(jobs["undecided"], batch) for batch in (0, BATCH, BATCH + 1)] == [slots, *[merged_slots] * 2]
        assert written(whole) == merged_slots
        assert written(part) == slots

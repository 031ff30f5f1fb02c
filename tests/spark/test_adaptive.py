"""With adaptive execution, on by default for stateless queries since Spark 4.1, a replay may have other slots.

The first run writes a batch with one slot per shuffle partition. The next run is allowed to merge them, and writes a
single slot.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from spark.harness import Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED, REFUSED
from sparkonce_lab.rig.kafka import Cluster
from striking.points import HALFWAY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

ROWS, ROWS_PER_BATCH, SLOTS = 3_000, 1_000, 4
BATCH, TIMEOUT_MS = 1, 10_000
MERGING = "spark.sql.adaptive.coalescePartitions.enabled"
SPLIT, MERGED = ({"spark.sql.adaptive.enabled": "true", MERGING: value} for value in ("false", "true"))

LOST = ("whole", "part")
"""The jobs whose transactions the broker aborts before the next run: all of one job's, and half of the other's."""

WITH_CONNECTOR = ("4.0.0", "4.1.1", "4.2.0")
"""PySpark versions whose Kafka connector can be downloaded. With other versions, queries read files."""

SOURCES = ["files", *(["kafka"] if pyspark.__version__ in WITH_CONNECTOR else [])]


def slots(job: Job, batch: int) -> int:
    decision = job.log().decision(batch)
    assert decision is not None
    return sum(1 for handle in decision.handles if handle.transaction)


@pytest.mark.parametrize("source", SOURCES)
def test_a_batch_is_exact_whatever_its_slots_are_in_the_next_run(source: str, broker: Cluster, tmp_path: Path) -> None:
    def new_job(broker: Cluster, folder: Path, source: str, *, is_lost: bool) -> Job:
        return Job(
            broker.bootstrap,
            folder,
            rows=ROWS,
            again=False,
            rows_per_batch=ROWS_PER_BATCH,
            slots=SLOTS,
            plan="spark.plans:shuffled",
            files=str(folder / "input") if source == "files" else "",
            settings={"transaction.timeout.ms": TIMEOUT_MS} if is_lost else {},
            sql=SPLIT,
            points=(HALFWAY,),
        )

    # Spark 4.0 turns adaptive execution off in streaming queries.
    merged_slots = SLOTS if pyspark.__version__.startswith("4.0.") else 1
    names = ("undecided", "decided", "half", *LOST)
    points = dict(zip(names, ("DECIDING", "FINISHING", HALFWAY, "FINISHING", HALFWAY), strict=True))
    with ExitStack() as stack:
        jobs = {
            name: stack.enter_context(new_job(broker, tmp_path / name, source, is_lost=name in LOST)) for name in names
        }
        holds = {jobs[name]: hold_at(point, jobs[name], lambda batch: batch == BATCH) for name, point in points.items()}
        start_held(holds, [*points.values()], tmp_path / "killed.log").kill()
        at_once = [jobs[name] for name in names if name not in LOST]
        start_together(at_once, tmp_path / "next.log", sql=MERGED).finish()

        lost = [jobs[name] for name in LOST]
        for job in lost:
            job.await_aborted()
        start_together(lost, tmp_path / "late.log", sql=MERGED).join()
        part = jobs["part"]
        if merged_slots != SLOTS:
            refused = part.gate.last(REFUSED)
            assert refused is not None
            assert refused.told["kind"] == "TransactionLostError"
            assert "spread otherwise" in refused.told["message"]
            part.start(sql={"spark.sql.adaptive.enabled": "false"}).finish()
        assert part.gate.at(ENDED, failed="")

        assert {name: str(job.judge()) for name, job in jobs.items() if not job.judge().is_exactly_once} == {}
        assert [slots(jobs["decided"], batch) for batch in (0, BATCH, BATCH + 1)] == [SLOTS, SLOTS, merged_slots]
        assert [slots(jobs["undecided"], batch) for batch in (0, BATCH, BATCH + 1)] == [SLOTS, *[merged_slots] * 2]
        assert slots(jobs["whole"], BATCH) == merged_slots
        assert slots(part, BATCH) == SLOTS

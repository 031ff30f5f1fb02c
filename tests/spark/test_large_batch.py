"""Two million rows in one batch, to Kafka, PostgreSQL and files as one unit, whose driver is killed in the middle.

::

    pytest -m slow -s tests/spark/test_large_batch.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from postgres_witness import needs_postgres, running
from spark.harness import Job, compared
from spark.kills import hold_at
from spark.targets import Files, Postgres
from sparkonce.rig.kafka import Cluster
from striking.points import HALFWAY, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, needs_postgres]

ROWS, SLOTS = 2_000_000, 4
MIDDLE = (
    (WRITTEN, {"sink": "kafka", "slot": SLOTS - 1}, "KafkaSink", -1),
    (HALFWAY, {"sink": "postgres"}, "PostgresSink", 0),
)
"""Two cores take the slots in turn: the last has begun when others are done. And half-way through the commits.

With each, what must hold something then, and the last batch that is decided.
"""


@pytest.mark.timeout(3600)
def test_a_batch_of_two_million_rows_whose_driver_is_killed_in_its_middle(
    kafka: Cluster, tmp_path: Path, say: Callable[[str], None]
) -> None:
    with (
        running() as server,
        Job(
            kafka.bootstrap,
            tmp_path / "job",
            targets=[Postgres(server, "output", commit="two_phase"), Files(tmp_path / "files", slots=2)],
            rows=ROWS,
            again=False,
            rows_per_batch=ROWS,
            plan="spark.plans:stateless",
            points=(WRITTEN, HALFWAY),
            spark={"spark.driver.memory": "2g"},
        ) as job,
    ):
        for point, told, kind, decided in MIDDLE:
            hold = hold_at(point, job, **told)
            run = job.start()
            hold.wait(run.check, limit_s=900)
            before = job.open()
            run.kill()
            assert job.decided() == decided
            assert before[kind], f"it holds nothing, so the kill proves nothing: {before}"
            say(f"killed at {point} {told}: open {before}, decided {decided}")
        job.start(points=()).finish(limit_s=900)
        decision = job.log().decision(0)
        assert decision is not None
        assert job.decided() == 0, "it was more than one batch"
        assert sum(handle.rows for handle in decision.handles if handle.sink == "kafka") == ROWS
        for kind, found in job.visible().items():
            counts = compared(Counter(key for key, _ in found.elements()), Counter(job.ids))
            say(f"{kind}: {counts}")
            assert counts == {"expected": ROWS, "rows": ROWS, "missing": 0, "doubled": 0, "unexpected": 0}
        assert not any(job.open().values())

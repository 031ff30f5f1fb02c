"""Two million rows in one batch, to Kafka, PostgreSQL and files as one unit, whose driver is killed in the middle.

::

    pytest -m slow -s tests/spark/test_large_batch.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from postgres_witness import ask, needs_postgres, running
from spark.faults import HALFWAY, WRITTEN
from spark.one_unit import FILES, KAFKA, POSTGRES, TABLE, UnitJob
from sparkonce.embedded import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, needs_postgres]

ROWS, SLOTS = 2_000_000, 4
MIDDLE: tuple[tuple[str, dict[str, object], int], ...] = (
    (WRITTEN, {"sink": KAFKA, "slot": SLOTS - 1}, -1),
    (HALFWAY, {"sink": POSTGRES}, 0),
)
"""Two cores take the slots in turn: the last has begun when others are done. And half-way through the commits.

With each, the last batch that is decided then.
"""


@pytest.mark.timeout(3600)
def test_a_batch_of_two_million_rows_whose_driver_is_killed_in_its_middle(
    kafka: Cluster, tmp_path: Path, say: Callable[[str], None]
) -> None:
    with (
        running() as server,
        UnitJob(
            kafka.bootstrap,
            tmp_path / "job",
            server.conninfo(),
            more={"commit": "two_phase"},
            rows=ROWS,
            again=False,
            rows_per_batch=ROWS,
            plan="spark.plans:stateless",
            points=(WRITTEN, HALFWAY),
            spark={"spark.driver.memory": "2g"},
        ) as job,
    ):
        ask(server, f"CREATE TABLE {TABLE} (id text, batch bigint)")
        for point, told, decided in MIDDLE:
            hold = job.desk.hold(point, **told)
            run = job.start()
            hold.wait(run.check, limit_s=900)
            before = job.open()
            run.kill()
            assert job.decided() == decided
            assert before[str(told["sink"])], f"it holds nothing, so the kill proves nothing: {before}"
            say(f"killed at {point} {told}: open {before}, decided {decided}")
        job.start(points=()).finish(limit_s=900)
        decision = job.log().decision(0)
        assert decision is not None
        assert job.decided() == 0, "it was more than one batch"
        assert sum(handle.rows for handle in decision.handles if handle.sink == KAFKA) == ROWS
        ids = set(job.ids)
        for name, rows in job.outputs().items():
            found = {key for _, key in rows}
            missing, doubled, strange = len(ids - found), rows.total() - len(found), len(found - ids)
            say(f"{name}: {rows.total():,} rows; {missing} missing, {doubled} doubled, {strange} that nobody sent")
            assert (name, missing, doubled, strange) == (name, 0, 0, 0)
        assert job.open() == {KAFKA: 0, POSTGRES: 0, FILES: 0}

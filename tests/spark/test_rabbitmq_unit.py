"""RabbitMQ streams are summed into Kafka and PostgreSQL as one unit, while the query is killed again and again.

The long form kills three queries ten times each, at each point in turn::

    pytest -m slow -s tests/spark/test_rabbitmq_unit.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import eventually
from postgres_witness import running
from shared_servers import rabbit_server
from spark.harness import start_together
from spark.kills import Cell, Sight, strike
from spark.pipeline import KAFKA
from spark.processes import Run
from spark.rabbit_job import RabbitJob
from spark.targets import Postgres
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.servers.postgres import find_postgres
from striking.points import BEFORE_CONCLUDE, HALFWAY, PREPARED, WRITTEN

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed"),
]

WITHIN = (WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE)
SHORT: Sequence[Cell] = [(PREPARED, {"sink": "postgres"}), (HALFWAY, {"sink": "kafka"})]
LONG: Sequence[Cell] = [
    (Phase.WRITING.name, {}),
    (WRITTEN, {"sink": "kafka"}),
    (PREPARED, {"sink": "postgres"}),
    (Phase.DECIDING.name, {}),
    (Phase.FINISHING.name, {}),
    (HALFWAY, {"sink": "kafka"}),
    (HALFWAY, {"sink": "postgres"}),
    (BEFORE_CONCLUDE, {"sink": "kafka"}),
    (Phase.SWEEPING_OWN.name, {}),
    (Phase.IDLE.name, {}),
]
ROWS, ROWS_PER_BATCH = 2_000, 200
LONG_JOBS, LONG_ROWS = 3, 8_000


@pytest.mark.drawn(1, "unit of another system")
def test_short_form(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    kill_and_compare(kafka, tmp_path, [SHORT], ROWS, say)


@pytest.mark.slow
def test_long_form(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    """Kills each job at every point. They begin at different ones, so that each point follows another one's kill."""
    turned = [[*LONG[3 * number :], *LONG[: 3 * number]] for number in range(LONG_JOBS)]
    kill_and_compare(kafka, tmp_path, turned, LONG_ROWS, say)


def kill_and_compare(
    kafka: Cluster, folder: Path, schedules: Sequence[Sequence[Cell]], rows: int, say: Callable[[str], None]
) -> None:
    """Kills jobs at their points, lets them end, and compares what the systems have batch by batch."""
    server = rabbit_server()
    with ExitStack() as stack:
        postgres = stack.enter_context(running())
        jobs = [
            stack.enter_context(
                RabbitJob(
                    *(server, kafka.bootstrap, folder / f"job-{number}"),
                    rows=rows,
                    rows_per_batch=ROWS_PER_BATCH,
                    slots=2,
                    points=WITHIN,
                    targets=[Postgres(postgres, f"sums_{number}")],
                )
            )
            for number in range(len(schedules))
        ]
        sights: list[Sight] = []
        for number, cells in enumerate(zip(*schedules, strict=True)):
            cell_of = dict(zip(jobs, cells, strict=True))
            found = strike(cell_of, folder / f"{number}.log", read=True).values()
            for job, sight in zip(jobs, found, strict=True):
                check_sight(job, sight)
            sights += found
            say(f"{len(sights)} kills: {[(sight.point, sight.batch, sight.decided) for sight in found]}")
        for job in jobs:
            job.close_windows()
        last = start_together(jobs, folder / "last.log", rows_per_batch=10 * rows)
        for job in jobs:
            eventually(lambda job=job: has_all(job, last), "all is summed")
        last.kill()
        for _ in range(2):  # Spark 4.0 repeats a batch, or reads new rows, and does not do both
            start_together(jobs, folder / "end.log", rows_per_batch=10 * rows, trigger={"availableNow": True}).finish()
        for job in jobs:
            verdict, parts = job.count(job.expected), job.visible()
            say(f"{verdict}; {len({batch for _, batch in parts[KAFKA]})} batches with rows, of {job.decided() + 1}")
            assert verdict.is_exactly_once, str(verdict)
            assert parts[KAFKA] == parts["PostgresSink"], "the parts of a batch do not agree"
            assert not any(job.open().values())
        assert len(sights) == sum(map(len, schedules))


def has_all(job: RabbitJob, run: Run) -> bool:
    """Tells whether both systems show all sums, while the query runs."""
    run.check()
    found = job.visible()
    return (found[KAFKA] & found["PostgresSink"]).total() >= job.expected.total()


def check_sight(job: RabbitJob, sight: Sight) -> None:
    """Sees that no reader of any system finds a row of a batch that is not decided, or one row twice."""
    for found in (sight.visible, sight.after):
        for rows in found.values():
            assert [batch for _, batch in rows if batch > sight.decided] == []
            assert set(rows.values()) <= {1}
            assert {(key, "") for key, _ in rows} <= job.expected.keys()

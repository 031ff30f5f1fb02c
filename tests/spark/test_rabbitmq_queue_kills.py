"""RabbitMQ queues are copied to Kafka, while the query is killed again and again.

Each job is killed at each point in turn::

    pytest -m slow -s tests/spark/test_rabbitmq_queue_kills.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import eventually
from rabbit_queues import counted
from shared_servers import rabbit_server
from spark.harness import start_together
from spark.kills import Cell, strike
from spark.pipeline import KAFKA
from spark.queue_job import QueueJob
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from striking.points import PREPARED

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

CELLS: Sequence[Cell] = [
    (Phase.WRITING.name, {}),
    (PREPARED, {"sink": "kafka"}),
    (Phase.DECIDING.name, {}),
    (Phase.FINISHING.name, {}),
    (Phase.SWEEPING_OWN.name, {}),
    (Phase.IDLE.name, {}),
]
KINDS = [("classic", "finished"), ("quorum", "stored")]
ROWS, ROWS_PER_BATCH = 600, 200


def test_each_message_is_copied_once(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    server = rabbit_server()
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(
                QueueJob(
                    *(server, kafka.bootstrap, tmp_path / f"job-{number}"),
                    kind=kind,
                    acknowledge=acknowledge,
                    rows_per_batch=ROWS_PER_BATCH,
                    slots=2,
                    points=(PREPARED,),
                )
            )
            for number, (kind, acknowledge) in enumerate(KINDS)
        ]
        kills = 0
        for number in range(len(CELLS)):
            for job in jobs:
                job.publish(ROWS)
            cell_of = {job: CELLS[(number + turn) % len(CELLS)] for turn, job in enumerate(jobs)}
            found = strike(cell_of, tmp_path / f"{number}.log", read=True)
            for job, sight in found.items():
                seen = sight.visible[KAFKA]
                assert [batch for _, batch in seen if batch > sight.decided] == []
                assert set(seen.values()) <= {1}
                assert {(key, "") for key, _ in seen} <= job.expected.keys()
            kills += len(found)
            say(f"{kills} kills: {[(sight.point, sight.batch, sight.decided) for sight in found.values()]}")
        last = start_together(jobs, tmp_path / "last.log")
        for job in jobs:
            eventually(lambda job=job: has_all(job, last), "all is copied")
            eventually(lambda job=job: counted(server, job.queue) == 0, "all is acknowledged")
        last.kill()
        for job in jobs:
            verdict = job.count(job.expected)
            say(f"{verdict}; {job.decided() + 1} batches")
            assert verdict.is_exactly_once, str(verdict)


def has_all(job: QueueJob, run: object) -> bool:
    """Tells whether all is visible, while the query runs."""
    run.check()  # type: ignore[attr-defined]
    return job.visible()[KAFKA].total() >= job.expected.total()

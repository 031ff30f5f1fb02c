"""Queries into MariaDB and PostgreSQL, staged and in two phases, whose driver is killed: each row is there once.

Of the batch that is half committed somebody rolls back what is prepared: it is written again.
All four run in one process and one Spark, which is what takes the time, and are killed while each is at the same point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mariadb_witness import Witness, shared_server
from postgres_witness import needs_postgres, running
from spark.faults import HALFWAY
from spark.harness import start_together
from spark.kills import hold_at
from spark.sql_streams import MySQLJob, PostgresJob, TableJob
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.spark, needs_postgres]

POINTS = (Phase.DECIDING.name, HALFWAY)
UNDECIDED = POINTS[:1]
BATCHES = len(POINTS) + 2


@pytest.fixture
def jobs(kafka: Cluster, tmp_path: Path) -> Iterator[list[TableJob]]:
    witness = Witness(shared_server())
    with running() as server, ExitStack() as stack:
        made: list[TableJob] = []
        for commit in ("staged", "two_phase"):
            made.append(MySQLJob(kafka.bootstrap, tmp_path / f"mysql_{commit}", BATCHES, witness, commit))
            made.append(PostgresJob(kafka.bootstrap, tmp_path / f"postgres_{commit}", BATCHES, server, commit))
        yield [stack.enter_context(job) for job in made]


def test_drivers_that_are_killed_leave_nothing_missing_doubled_or_open(jobs: list[TableJob], tmp_path: Path) -> None:
    for number, point in enumerate(POINTS):
        due = {job.table: job.decided() + 1 for job in jobs}
        holds = [hold_at(point, job, lambda batch, table=job.table, due=due: batch >= due[table]) for job in jobs]  # type: ignore[misc]
        run = start_together(jobs, tmp_path / f"{number}.log")
        for hold in holds:
            hold.wait(run.check)
        for job in jobs:
            assert job.left(), f"{job.table} holds nothing at {point}, so the kill proves nothing"
        run.kill()
        for job in jobs:
            early = {int(batch) for _, batch in job.visible()} - set(range(job.decided() + 1))
            assert (job.table, early) == (job.table, set()), "seen before the decision"
            assert (job.decided() < due[job.table]) == (point in UNDECIDED)
    decided = {job.table: job.log().newest_decision for job in jobs}
    lost = {job.table: job.give_up() for job in jobs}
    assert {table: count > 0 for table, count in lost.items()} == {
        job.table: job.table.endswith("two_phase") for job in jobs
    }
    start_together(jobs, tmp_path / "last.log").finish()
    for job in jobs:
        found = [key for (key, _), count in job.visible().items() for _ in range(count)]
        missing, doubled = set(job.ids) - set(found), len(found) - len(set(found))
        assert (job.table, len(missing), doubled, set(found) - set(job.ids)) == (job.table, 0, 0, set())
        assert (job.table, job.left()) == (job.table, [])
        before = decided[job.table]
        assert before is not None
        after = job.log().decision(before.batch)
        assert after is not None
        assert (job.table, len(set(before.handles) - set(after.handles))) == (job.table, lost[job.table])
        assert [one.evidence for one in after.handles] == [one.evidence for one in before.handles]

"""A driver that writes lost transactions again is killed, too. `test_kills` loses them, and lets the next run end."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.harness import Job
from spark.kills import hold_at
from sparkonce_lab.kafka import read_uncommitted
from sparkonce_lab.rig.kafka import Cluster
from striking.points import HALFWAY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_driver_that_is_killed_while_it_heals_leaves_the_next_one_to_heal(kafka: Cluster, tmp_path: Path) -> None:
    soon = {"transaction.timeout.ms": 10_000}
    with Job(kafka.bootstrap, tmp_path, rows=3_000, rows_per_batch=1_000, settings=soon, points=(HALFWAY,)) as job:
        for phase in (HALFWAY, "JUDGING", "WRITING", "DECIDING"):
            hold = hold_at(phase, job, lambda batch: batch == 1)
            run = job.start()
            hold.wait(run.check)
            run.kill()
            job.await_aborted()
        # Decided again, and again none of it is committed before the broker aborts it.
        again = hold_at("FINISHING", job, lambda batch: batch == 1)
        decided = hold_at("DECIDING", job, lambda batch: batch == 1)
        run = job.start()
        decided.wait(run.check)
        decided.release()
        again.wait(run.check)
        run.kill()
        job.await_aborted()
        job.start(points=()).finish()
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        uncommitted = read_uncommitted(kafka.bootstrap, job.config.target)
        assert len(uncommitted) > verdict.rows, "nothing was ever written in vain: the test has not killed anything"

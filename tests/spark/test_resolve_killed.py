"""``sparkonce transactions resolve`` on queries of a killed driver, and on one whose driver still runs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark.harness import Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED
from sparkonce.cli.main import app
from sparkonce.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROWS, ROWS_PER_BATCH = 1_200, 400
BATCH = 1


def new_job(kafka: Cluster, folder: Path) -> Job:
    return Job(
        kafka.bootstrap, folder, rows=ROWS, again=False, rows_per_batch=ROWS_PER_BATCH, plan="spark.plans:stateless"
    )


def command(job: Job, *words: str) -> Any:
    config = job.folder / "systems.yaml"
    config.write_text(f"systems:\n  kafka: {{bootstrap.servers: '{job.bootstrap}'}}\n")
    done = CliRunner().invoke(app, [*words, "--format", "json", "--config", str(config)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def resolve(job: Job) -> Any:
    return command(job, "transactions", "resolve", str(job.checkpoint), "--yes")


def listed(job: Job) -> list[str]:
    found = command(job, "transactions", "list", "--query", job.query, "--checkpoint", str(job.checkpoint))
    return sorted({one["verdict"] for one in found})


def status(job: Job) -> Any:
    done = CliRunner().invoke(app, ["checkpoint", "show", str(job.checkpoint), "--format", "json"])
    return json.loads(done.stdout)


def batches_seen(job: Job) -> set[int]:
    return {int((one.value or b"").split()[0]) for one in job.records()}


def test_what_a_killed_driver_left_is_ended_by_its_log(kafka: Cluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        decided, undecided, running = jobs = [
            stack.enter_context(new_job(kafka, tmp_path / name)) for name in ("decided", "undecided", "running")
        ]
        points = {decided: "FINISHING", undecided: "DECIDING", running: "DECIDING"}
        holds = {job: hold_at(point, job, batch=BATCH) for job, point in points.items()}
        first = start_held(holds, list(points.values()), tmp_path / "first.log")

        # The driver of this one still runs, and is held before it decides: the claim stops it.
        resolve(running)
        holds[running].release()
        running.gate.wait_for(lambda: bool(running.gate.at(ENDED)), "the query has ended", first.check)
        ended = running.gate.last(ENDED)
        assert ended is not None
        assert "SupersededError" in str(ended.told["failed"])

        first.kill()
        assert [status(job)["next_start"] for job in jobs] == ["commits", "writes again", "writes again"]
        assert (listed(decided), listed(undecided)) == (["commit"], ["under way"])
        done = {job: resolve(job) for job in (decided, undecided)}
        assert (done[decided]["batch"], done[undecided]["batch"]) == (BATCH, None)
        for job in jobs:
            assert not any(job.open().values())
        assert [batches_seen(job) for job in jobs] == [{0, BATCH}, {0}, {0}]

        start_together(jobs, tmp_path / "next.log", points=()).join()
        for job in jobs:
            assert job.gate.at(ENDED, failed=""), job.gate.last(ENDED)
            verdict = job.judge()
            assert verdict.is_exactly_once, verdict

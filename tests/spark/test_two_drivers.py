"""Two drivers on one checkpoint: one is disconnected or paused, another takes over, and the first wakes up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from spark.harness import Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED, REFUSED
from spark.processes import Run
from sparkonce_lab.rig.kafka import Cluster
from striking.points import WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS, ROWS_PER_BATCH = 1_200, 400
BATCH = 1
PLAN = "spark.plans:stateless"

SUPERSEDED = "SupersededError"
STALE = "StaleBatchError"
"""The driver had not claimed yet. It now claims as the newest run, and Spark requests a batch that is already done."""
BY_SPARK = "oncurrent"
"""Spark's own error, if the newer driver has already written the log entry that the older one wants to write."""

STOPPED_BY = {"CLAIMING": STALE, "DECIDING": SUPERSEDED, "FINISHING": BY_SPARK}
"""Where the older driver was when the newer one took over, and the error that stops it when it wakes up."""

AT_ONCE = "both-at-work"


@dataclass(frozen=True, slots=True)
class Drivers:
    """Two processes, each of which has run all jobs."""

    jobs: dict[str, Job]
    first: Run
    second: Run


@pytest.fixture(scope="module")
def drivers(kafka: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The older process is paused with each query in its phase, while the newer one writes everything.

    Then it wakes up.

    For one more query, both drivers have read the same log and then run freely.
    """
    folder = tmp_path_factory.mktemp("drivers")
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(new_job(kafka, folder / name)) for name in (*STOPPED_BY, AT_ONCE)}
        paused = {phase: hold_at(phase, jobs[phase], batch=0 if phase == "CLAIMING" else BATCH) for phase in STOPPED_BY}
        one_batch = hold_at("IDLE", jobs[AT_ONCE], batch=0)
        holds = {jobs[phase]: hold for phase, hold in paused.items()} | {jobs[AT_ONCE]: one_batch}
        first = start_held(holds, [], folder / "first.log")
        first.pause()
        for hold in paused.values():
            hold.release()  # which it will find when it wakes up

        claiming = hold_at("CLAIMING", jobs[AT_ONCE])
        second = start_together(list(jobs.values()), folder / "second.log")
        for phase in STOPPED_BY:
            await_end(jobs[phase], second)
        claiming.wait(second.check)
        first.resume()
        for phase in STOPPED_BY:
            await_end(jobs[phase], first)
        one_batch.release()
        claiming.release()
        assert first.join() == 1
        second.join()
        yield Drivers(jobs, first, second)


def new_job(kafka: Cluster, folder: Path, **config: Any) -> Job:
    return Job(kafka.bootstrap, folder, rows=ROWS, again=False, rows_per_batch=ROWS_PER_BATCH, plan=PLAN, **config)


def await_end(job: Job, run: Run) -> None:
    job.gate.wait_for(lambda: bool(job.gate.at(ENDED, pid=run.pid)), "the query has ended", run.check)


@pytest.mark.parametrize("phase", STOPPED_BY)
def test_a_driver_that_wakes_up_after_another_has_taken_over(drivers: Drivers, phase: str) -> None:
    job = drivers.jobs[phase]
    assert job.gate.at(ENDED, pid=drivers.second.pid, failed="")
    assert STOPPED_BY[phase] in why_it_ended(job, drivers.first)
    verdict = job.judge()
    assert verdict.is_exactly_once, verdict


def test_two_drivers_at_work_at_the_same_time(drivers: Drivers) -> None:
    job = drivers.jobs[AT_ONCE]
    first, second = why_it_ended(job, drivers.first), why_it_ended(job, drivers.second)
    assert SUPERSEDED in first or BY_SPARK in first
    if not job.gate.at(ENDED, pid=drivers.second.pid, failed=""):  # Spark may stop either of the two, or both
        assert BY_SPARK in second or "FileAlreadyExists" in second
        job.start().finish()
    verdict = job.judge()
    assert verdict.is_exactly_once, verdict


@pytest.mark.slow
def test_workers_that_outlive_their_driver_write_into_nothing(kafka: Cluster, tmp_path: Path) -> None:
    def alive(pids: list[int]) -> list[int]:
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    with new_job(kafka, tmp_path / "job", points=(WRITTEN,)) as job:
        hold = job.gate.hold(WRITTEN, batch=BATCH, times=2)
        first = job.start()
        job.gate.wait_for(lambda: len(hold.arrivals) == 2, "two workers are in the middle of their task", first.check)
        zombies = [one.pid for one in hold.arrivals]
        opened = set(job.transactions("Ongoing"))
        assert len(opened) >= 2
        first.kill(spare=zombies)

        swept = hold_at("WRITING", job, batch=BATCH)
        second = job.start(points=())
        swept.wait(second.check)
        assert not opened & set(job.transactions("Ongoing")), "the new driver has swept before it writes"
        # The paused tasks wake up while the batch is written again, and send the rest of their rows.
        hold.release()
        swept.release()
        second.finish()
        eventually(lambda: not alive(zombies), "the orphans have ended")
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def why_it_ended(job: Job, run: Run) -> str:
    """Returns everything that the run logged about its end: our error, and what Spark made of it."""
    return "\n".join(str(one.told) for one in job.gate.at(REFUSED, ENDED, pid=run.pid))

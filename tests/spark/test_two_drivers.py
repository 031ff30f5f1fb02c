"""Two drivers on one checkpoint: one is disconnected or paused, another takes over, and the first wakes up."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import eventually
from spark.harness import Job, Run, hold_at, start_held, start_together
from spark.pipeline import ENDED, REFUSED
from striking.points import WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_of_two_drivers_the_older_one_stops_and_each_row_is_there_once(kafka, tmp_path):
    """The older process is paused with each query in its phase, while the newer one writes everything.

    Then it wakes up. For one more query, both drivers have read the same log and then run freely.
    """

    def await_end(job: Job, run: Run) -> None:
        job.gate.wait_for(lambda: bool(job.gate.at(ENDED, pid=run.pid)), "the query has ended", run.check)

    def why_it_ended(job: Job, run: Run) -> str:
        """Returns everything that the run logged about its end: our error, and what Spark made of it."""
        return "\n".join(str(one.told) for one in job.gate.at(REFUSED, ENDED, pid=run.pid))

    # If the newer driver has already written the log entry that the older one wants to write, Spark raises its own
    # error.
    superseded, by_spark = "SupersededError", "oncurrent"
    # A driver that had not claimed the log yet claims it as the newest run, and Spark then requests a batch that is
    # already done.
    stopped_by = {"CLAIMING": "StaleBatchError", "DECIDING": superseded, "FINISHING": by_spark}
    at_once = "both-at-work"
    with ExitStack() as stack:
        plain = {"rows": 1_200, "again": False, "rows_per_batch": 400, "plan": "spark.plans:stateless"}
        jobs = {
            name: stack.enter_context(Job(kafka.bootstrap, tmp_path / name, **plain)) for name in (*stopped_by, at_once)
        }
        paused = {phase: hold_at(phase, jobs[phase], batch=0 if phase == "CLAIMING" else 1) for phase in stopped_by}
        one_batch = hold_at("IDLE", jobs[at_once], batch=0)
        holds = {jobs[phase]: hold for phase, hold in paused.items()} | {jobs[at_once]: one_batch}
        first = start_held(holds, [], tmp_path / "first.log")
        first.pause()
        for hold in paused.values():
            hold.release()  # which it will find when it wakes up

        claiming = hold_at("CLAIMING", jobs[at_once])
        second = start_together(list(jobs.values()), tmp_path / "second.log")
        for phase in stopped_by:
            await_end(jobs[phase], second)
        claiming.wait(second.check)
        first.resume()
        for phase in stopped_by:
            await_end(jobs[phase], first)
        one_batch.release()
        claiming.release()
        assert first.join() == 1
        second.join()

        for phase, reason in stopped_by.items():
            assert jobs[phase].gate.at(ENDED, pid=second.pid, failed=""), phase
            assert reason in why_it_ended(jobs[phase], first), phase
        both = jobs[at_once]
        assert superseded in why_it_ended(both, first) or by_spark in why_it_ended(both, first)
        if not both.gate.at(ENDED, pid=second.pid, failed=""):  # Spark may stop either driver, or both
            told = why_it_ended(both, second)
            assert by_spark in told or "FileAlreadyExists" in told
            both.start().finish()
        assert {name: job.judge() for name, job in jobs.items()} == dict.fromkeys(jobs, "")


@pytest.mark.slow
def test_workers_that_outlive_their_driver_write_into_nothing(kafka, tmp_path):
    def alive(pids: list[int]) -> list[int]:
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    plain = {"rows": 1_200, "again": False, "rows_per_batch": 400, "plan": "spark.plans:stateless"}
    with Job(kafka.bootstrap, tmp_path / "job", points=(WRITTEN,), **plain) as job:
        hold = job.gate.hold(WRITTEN, batch=1, times=2)
        first = job.start()
        job.gate.wait_for(lambda: len(hold.arrivals) == 2, "two workers are in the middle of their task", first.check)
        zombies = [one.pid for one in hold.arrivals]
        opened = set(job.transactions("Ongoing"))
        assert len(opened) >= 2
        first.kill(spare=zombies)

        swept = hold_at("WRITING", job, batch=1)
        second = job.start(points=())
        swept.wait(second.check)
        assert not opened & set(job.transactions("Ongoing")), "the new driver has swept before it writes"
        # The paused tasks wake up while the batch is written again, and send the rest of their rows.
        hold.release()
        swept.release()
        second.finish()
        eventually(lambda: not alive(zombies), "the orphans have ended")
        assert job.judge() == ""

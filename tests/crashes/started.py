"""Running targets, one at a time, each with a query that continues from cell to cell."""

from __future__ import annotations

from pathlib import Path

from crashes.cells import Cell
from crashes.job import Job
from crashes.target import Target
from crashes.verdict import Verdict
from zygote import Zygote

_OF_EVERY_RUN = ("pandas", "pyarrow.pandas_compat", "encodings.idna", "crashes.child")


class StartedTargets:
    """Keeps one target running. The next one takes over its server if it is of the same kind.

    Args:
        zygote: Forks the runs.
        folder: A new folder.
    """

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote = zygote
        self._folder = folder
        self._number = 0
        self._target: Target | None = None
        self._job: Job | None = None

    def strike(self, target: Target, cell: Cell) -> Verdict:
        """Carries out a cell in the target's job, or in a new one."""
        job = self._job_of(target)
        # A failed cell ends the job, so that the next one is not blamed for what it left behind.
        self._job = None
        try:
            verdict = job.strike(cell)
            if not verdict.violations and not verdict.missed:
                self._job = job
            return verdict
        finally:
            if self._job is None:
                job.close()

    def _job_of(self, target: Target) -> Job:
        if self._target is not target:
            self._change_to(target)
        if self._job is None:
            self._job = Job(target, self._zygote, self._new_folder("job"))
        return self._job

    def _change_to(self, target: Target) -> None:
        self._end_job()
        before, self._target = self._target, None
        if before is None or not target.take_over(before):
            if before is not None:
                before.stop()
            target.start(self._new_folder(target.name))
        self._target = target
        self._zygote.load([*_OF_EVERY_RUN, target.rows.__module__, *target.preload])

    def _new_folder(self, name: str) -> Path:
        self._number += 1
        return self._folder / f"{name}-{self._number}"

    def _end_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def close(self) -> None:
        self._end_job()
        target, self._target = self._target, None
        if target is not None:
            target.stop()

    def __enter__(self) -> StartedTargets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

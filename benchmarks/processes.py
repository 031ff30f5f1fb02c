"""Measures the processes under test: CPU seconds of each kind of process, and the memory of Python workers."""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SAMPLE_EVERY_S = 1.0
KINDS = ("jvm", "python workers", "broker", "driver python")


class CpuClock:
    """Samples the CPU time that each kind of process has used so far."""

    def __init__(self, jvm_pid: int, broker_pid: int) -> None:
        self._jvm = psutil.Process(jvm_pid)
        self._broker = psutil.Process(broker_pid)
        self._driver = psutil.Process(os.getpid())
        self._times: list[float] = []
        self._used: list[tuple[float, ...]] = []
        self._stop = threading.Event()

    def used(self, start_s: float, end_s: float) -> dict[str, float]:
        """Returns the CPU seconds between two times of ``time.time()``, by kind of process."""
        before, after = self._at(start_s), self._at(end_s)
        return {kind: after[number] - before[number] for number, kind in enumerate(KINDS)}

    def _at(self, instant_s: float) -> tuple[float, ...]:
        right = min(max(bisect.bisect(self._times, instant_s), 1), len(self._times) - 1)
        (t0, t1), (u0, u1) = self._times[right - 1 : right + 1], self._used[right - 1 : right + 1]
        share = (instant_s - t0) / (t1 - t0)
        return tuple(a + (b - a) * share for a, b in zip(u0, u1, strict=True))

    def _sample(self) -> None:
        while not self._stop.is_set():
            python = sum(_with_children(daemon) for daemon in daemons(self._jvm.pid))
            used = (_own(self._jvm), python, _own(self._broker), _own(self._driver))
            self._times.append(time.time())
            self._used.append(used)
            self._stop.wait(SAMPLE_EVERY_S)

    @contextmanager
    def ticking(self) -> Iterator[CpuClock]:
        """Samples while the block runs."""
        thread = threading.Thread(target=self._sample, name="cpu-clock", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(10)


def daemons(jvm_pid: int) -> list[psutil.Process]:
    """Returns the processes that fork Spark's Python workers."""
    return [child for child in psutil.Process(jvm_pid).children() if "pyspark.daemon" in _command(child)]


def workers(jvm_pid: int) -> list[psutil.Process]:
    """Returns Spark's Python workers."""
    return [worker for daemon in daemons(jvm_pid) for worker in daemon.children()]


def end_workers(jvm_pid: int) -> None:
    """Ends Spark's Python workers. The next query then begins with new ones, which Spark forks when it needs them."""
    ending = workers(jvm_pid)
    for worker in ending:
        with suppress(psutil.NoSuchProcess):
            worker.terminate()
    _, alive = psutil.wait_procs(ending, timeout=10)
    for worker in alive:
        with suppress(psutil.NoSuchProcess):
            worker.kill()


def memory_mib(pid: int, field: str) -> float:
    """Returns a field of ``/proc/<pid>/status`` in MiB: ``VmRSS`` is the current memory, ``VmHWM`` the peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status has no {field}")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _own(process: psutil.Process) -> float:
    """Returns the CPU time of a process; 0 if it has ended, because its parent then includes its time."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _with_children(daemon: psutil.Process) -> float:
    """Returns the CPU time of the daemon, its workers, and workers that have ended."""
    try:
        times, children = daemon.cpu_times(), daemon.children()
    except psutil.Error:
        return 0.0
    return _own(daemon) + float(times.children_user + times.children_system) + sum(map(_own, children))

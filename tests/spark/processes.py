"""Starts processes of `spark.pipeline`, and ends them with all of their child processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from eventually import LIMIT_S, eventually
from spark.pipeline import Config
from sparkonce_lab.rig.child import Child, session_of
from sparkonce_lab.rig.process import last_lines

TESTS = Path(__file__).parent.parent


def path_of_tests() -> dict[str, str]:
    """Returns the environment in which Python finds the test modules."""
    folders = [str(TESTS), str(TESTS / "spark" / "python_daemon"), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


class Run(Child):
    """One start of the driver of one or more queries, in a process session of its own.

    Args:
        configs: The configurations of the queries.
        log: The file for its output.
        env: Additional environment variables.
    """

    def __init__(self, configs: Sequence[Config], log: Path, env: Mapping[str, str] | None = None) -> None:
        arguments = [config.to_json() for config in configs]
        temporary, own = Path(configs[0].temporary), {**(env or {}), **path_of_tests()}
        super().__init__(arguments, log=log, temporary=temporary, module="spark.pipeline", env=own)

    def check(self) -> None:
        """Raises an error with the end of its log if it has ended."""
        assert not self.has_ended, f"the query ended with {self.exit_code()}:\n{last_lines(self.log, 40)}"

    @property
    def has_ended(self) -> bool:
        return self.exit_code() is not None

    def kill(self, *, spare: Collection[int] = ()) -> None:
        """Kills the driver, the JVM and the workers at once (SIGKILL), and waits until all of them are gone.

        Args:
            spare: Workers that survive as orphans and continue to write.
        """
        if self._is_gone:
            return
        members = [pid for pid in session_of(self.pid) if pid not in spare]
        if spare:  # PySpark's daemon would end its workers when the JVM is gone, so it is killed first
            members.sort(key=lambda pid: b"pyspark.daemon" not in _command(pid))
        for pid in members:
            kill(pid)
        if spare:
            self._process.wait()
            eventually(lambda: set(session_of(self.pid)) <= set(spare), "all but the orphans are gone")
        else:
            super().kill()

    def join(self, *, limit_s: float = LIMIT_S) -> int:
        """Waits until it and all of its child processes have ended on their own, and returns its exit code."""
        self.wait(limit_s)
        eventually(lambda: not session_of(self.pid), f"the processes of session {self.pid} are gone")
        self.kill()
        return self._process.returncode

    def finish(self, *, limit_s: float = LIMIT_S) -> None:
        """Waits until it has written its complete sources and has ended."""
        code = self.join(limit_s=limit_s)
        assert code == 0, f"the query ended with {code}:\n{last_lines(self.log, 40)}"


def kill_executor(worker: int) -> None:
    """Ends the executor of a Python worker, and the daemon that would take the worker along, but not the worker."""
    daemon = _parent(worker)
    jvm = _parent(daemon)
    assert b"CoarseGrainedExecutorBackend" in _command(jvm), _command(jvm)
    kill(daemon)
    kill(jvm)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""

"""Starts processes of `spark.pipeline`, and ends them with all that belongs to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark.pipeline import Config
from sparkonce.embedded.process import freeze, last_lines

TESTS = Path(__file__).parent.parent
LIMIT_S = 240.0
_POLL_S = 0.02

# They would make another Spark, or another way of starting it, than the one that the jars are for.
_UNWANTED = ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON")


def eventually(holds: Callable[[], Any], what: str, *, limit_s: float = LIMIT_S) -> Any:
    """The first answer that is true."""
    give_up_at = time.monotonic() + limit_s
    while not (answer := holds()):
        assert time.monotonic() < give_up_at, f"not after {limit_s:.0f} s: {what}"
        time.sleep(_POLL_S)
    return answer


class Run:
    """One start of a query, or of several in one Spark, in a session of its own: the Python driver, its JVM, PySpark's
    daemon, its workers."""

    def __init__(self, configs: Sequence[Config], log: Path) -> None:
        temporary = configs[0].temporary
        environment = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": temporary,
            "TMPDIR": temporary,
        }
        command = [sys.executable, "-m", "spark.pipeline", *[config.to_json() for config in configs]]
        self._launch(command, {**environment, **own}, log)

    def _launch(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        # The system gives numbers of processes and sessions again. From when all are gone, this one's mean others.
        self._gone = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises, with the end of its log, if it has ended."""
        code = self._process.poll()
        assert code is None, f"the query ended with {code}:\n{last_lines(self.log, 40)}"

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, *, spare: Iterable[int] = ()) -> None:
        """Ends driver and JVM at once (SIGKILL), then the workers, and waits until all are gone.

        Args:
            spare: Workers that survive: orphans that write on behind everybody's back.
        """
        if self._gone:
            return
        spared = frozenset(spare)
        # The daemon would take its workers along when the JVM is gone: it goes first.
        first = self.daemons() if spared else []
        for pid in [*first, *self.jvms()]:
            kill(pid)
        self._process.kill()
        self._process.wait()

        def others_are_gone() -> bool:
            left = [pid for pid in members(self.pid) if pid not in spared]
            for pid in left:
                kill(pid)
            return not left

        eventually(others_are_gone, f"the processes of session {self.pid} are gone")
        self._gone = not spared

    def pause(self) -> None:
        """Stops the clock of driver, JVM, and workers."""
        if not self._gone:
            freeze(lambda: members(self.pid))

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in [] if self._gone else members(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, *, limit_s: float = LIMIT_S) -> int:
        """Its exit code, when it has ended by itself, with all that belongs to it."""
        code = self._process.wait(limit_s)
        eventually(lambda: not members(self.pid), f"the processes of session {self.pid} are gone")
        self._gone = True
        return code

    def finish(self, *, limit_s: float = LIMIT_S) -> None:
        """Waits until it has written all of its source and ended."""
        code = self.wait(limit_s=limit_s)
        assert code == 0, f"the query ended with {code}:\n{last_lines(self.log, 40)}"

    def jvms(self) -> list[int]:
        return [pid for pid in members(self.pid) if "java" in _command(pid)[0]]

    def daemons(self) -> list[int]:
        """PySpark's daemon: the Python process whose parent is the JVM."""
        jvms = set(self.jvms())
        return [pid for pid in members(self.pid) if _stat(pid)[1] in jvms and "daemon" in " ".join(_command(pid))]

    def workers(self) -> list[int]:
        daemons = set(self.daemons())
        return [pid for pid in members(self.pid) if _stat(pid)[1] in daemons]


def kill_executor(worker: int) -> None:
    """Ends the executor of a Python worker, and the daemon that would take the worker along, but not the worker."""
    daemon = _stat(worker)[1]
    jvm = _stat(daemon)[1]
    assert any("CoarseGrainedExecutorBackend" in word for word in _command(jvm)), _command(jvm)
    kill(daemon)
    kill(jvm)


def descendants(pid: int) -> list[int]:
    """The living processes that a process has started, and those that they have started."""
    parents = {int(entry.name): _stat(int(entry.name))[1] for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


def members(session: int) -> list[int]:
    """The living processes of a session, with their parents."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, _, of = _stat(int(entry.name))
            if of == session and state not in "ZX":
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent and session. After the name, which stands in brackets: state, parent, group, session."""
    with suppress(OSError, ValueError, IndexError):
        state, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        return state, int(parent), int(session)
    return "X", -1, -1


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return [""]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

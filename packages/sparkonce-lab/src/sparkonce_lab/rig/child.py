"""A Python program in a separate process. Starts it, reads its events, and ends it with all of its processes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import SparkonceError
from sparkonce_lab.rig.process import POLL_S, freeze

if TYPE_CHECKING:
    from typing_extensions import Self

Event = Mapping[str, Any]
"""One line of the program's standard output, which is JSON. The field ``event`` is its kind."""

_GONE_S = 20.0
_UNWANTED = ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON")
"""Variables that would select a Spark that the jars do not work with, or change how it starts."""


class ChildError(SparkonceError):
    """A child process exited on its own, or cannot be ended."""


class Child:
    """One start of a program. The Python process, its JVM, and the Python workers form a session.

    The program stops when its standard input is closed, so it cannot outlive this process. As a context manager, it is
    killed at the end.
    """

    def __init__(
        self, arguments: Sequence[str], *, log: Path, temporary: Path, module: str, env: Mapping[str, str] | None = None
    ) -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        self.log = log
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(temporary),
            "TMPDIR": str(temporary),
        }
        environment = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environment, **own, **(env or {})},
                start_new_session=True,
            )
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        self._is_gone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self) -> list[Event]:
        """Returns the events that the program has reported since the last call."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._events.get_nowait())
        return found

    def send(self, line: str) -> None:
        """Writes a line to the program's standard input. Does nothing if the program is gone."""
        with suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Closes the program's standard input, which makes it stop normally if it can."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def exit_code(self) -> int | None:
        """Returns the exit code: None while the program is running, and a negative number if a signal ended it."""
        return self._process.poll()

    def wait(self, limit_s: float) -> None:
        """Waits until the program has exited on its own; raises ChildError if it has not after this many seconds."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ChildError(
                f"The query has not ended within {limit_s:.0f} s.", next_step=f"Read {self.log}."
            ) from None

    def pause(self) -> None:
        """Pauses the program (SIGSTOP). On return, no thread of the program, its JVM or its workers is running."""
        freeze(lambda: session_of(self.pid))

    def resume(self) -> None:
        """Continues the program after `pause` (SIGCONT)."""
        for pid in [] if self._is_gone else session_of(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the program (SIGKILL) unless it is already dead, then its JVM and workers. Waits until all are gone.

        Raises:
            ChildError: If a process remains.
        """
        if self._is_gone:
            return  # By now, the operating system may have reused the program's process id.
        give_up_at = time.monotonic() + _GONE_S
        if self.exit_code() is None:
            self._process.kill()
        self._process.wait()
        while members := session_of(self.pid):
            if time.monotonic() > give_up_at:
                raise ChildError(
                    f"The processes {members} of the killed query still run {_GONE_S:g} s after SIGKILL.",
                    next_step="Kill them manually.",
                )
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        self._listening.join(_GONE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # The program never read the last line that was sent.
                    pipe.close()
        self._is_gone = True

    def _listen(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            # Skip other lines, because the JVM may print to the same stream.
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self._events.put(event)


def session_of(leader: int) -> list[int]:
    """Returns the live processes of a session. PySpark's worker daemon leaves the process group, not the session."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            # In this file, the process's name is in brackets and may contain any character. State, parent, group, and
            # session follow it.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found

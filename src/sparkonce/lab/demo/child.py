"""The query's process: started, listened to, and ended with everything that belongs to it."""

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
from typing import Any

from sparkonce.lab.demo.errors import DemoFailedError
from sparkonce.rig.kafka.process import last_lines

Event = Mapping[str, Any]
"""What the pipeline tells: ``event`` names the kind, see `sparkonce.lab.demo.pipeline`."""

POLL_S = 0.05
_LAST_WORDS_S = 2.0
_GONE_S = 20.0
_STOP_S = 30.0
_LOG_LINES = 25

# They would make another Spark, or another way of starting it, than the one that the jars were fetched for.
_UNWANTED = ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON")


class Child:
    """One start of the pipeline, in a session of its own: the Python driver, its JVM, and the Python workers.

    Args:
        arguments: Of the module.
        log: Takes its standard error, appended.
        temporary: For temporary files of Spark and Python; is made.
        module: The pipeline.
        env: More of its environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        temporary: Path,
        module: str = "sparkonce.lab.demo.pipeline",
        env: Mapping[str, str] | None = None,
    ) -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        self._log = log
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
        self._ended_at: float | None = None
        self._is_gone = False

    @property
    def pid(self) -> int:
        """The driver's process id, which is its session's too."""
        return self._process.pid

    def events(self) -> list[Event]:
        """What it has told since the last call."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._events.get_nowait())
        return found

    def exit_code(self) -> int | None:
        """None while the driver runs; negative if a signal ended it."""
        return self._process.poll()

    def wait(self, limit_s: float) -> None:
        """Waits until the driver has ended by itself.

        Raises:
            DemoFailedError: if it has not after so many seconds.
        """
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise DemoFailedError(f"the query has not ended in {limit_s:.0f} s; see {self._log}") from None

    def check_running(self) -> None:
        """Raises `DemoFailedError` with the end of its log if the driver has ended by itself.

        Not at once: what it told last may still be on its way.
        """
        code = self.exit_code()
        if code is None:
            return
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() - self._ended_at > _LAST_WORDS_S:
            raise self._ended(code)

    def kill(self) -> None:
        """Ends the driver (SIGKILL) unless it is dead already, then its JVM and workers, and waits until all are gone.

        Raises:
            DemoFailedError: if a process is left.
        """
        if self._is_gone:
            return  # the system may have given its number to somebody else
        give_up_at = time.monotonic() + _GONE_S
        if self.exit_code() is None:
            self._process.kill()
        self._process.wait()
        while members := session_of(self.pid):
            if time.monotonic() > give_up_at:
                raise DemoFailedError(f"processes {members} of the killed query are still there after {_GONE_S} s")
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        self._listening.join(_GONE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it was told last it never read
                    pipe.close()
        self._is_gone = True

    def stop(self) -> None:
        """Asks the query to stop and waits for it; then sees that nothing is left.

        Raises:
            DemoFailedError: if it does not stop in order.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise DemoFailedError(f"the query did not stop in {_STOP_S:.0f} s") from None
        finally:
            self.kill()
        if code:
            raise self._ended(code)

    def _ended(self, code: int) -> DemoFailedError:
        return DemoFailedError(
            f"the query's process ended with exit code {code}. The end of {self._log}:\n"
            f"{last_lines(self._log, _LOG_LINES)}\n",
            next_step="run it again with --keep DIR and read pipeline.log there.",
        )

    def _listen(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            # The JVM shares the stream and may print there too.
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self._events.put(event)


def session_of(leader: int) -> list[int]:
    """The living processes of a session. PySpark's worker daemon leaves the process group, but not the session."""
    if not Path("/proc/self/stat").exists():
        return _group(leader)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            # After the name, which stands in brackets and may hold anything: state, parent, group, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def _group(leader: int) -> list[int]:
    """Without /proc: the leader's group as one; workers beyond it end by themselves when the JVM is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    return []

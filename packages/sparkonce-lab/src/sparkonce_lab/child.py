"""Controls the query's process from the verifier: one driver with its JVM, executors and Python workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkonce_lab.clock import FakeClock
from sparkonce_lab.rig.child import Child, Event, session_of

_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
_DAEMON = "pyspark.daemon"
"""PySpark's module that forks the Python workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources of one process: resident memory in MiB, and open file handles."""

    role: str
    pid: int
    rss_mib: int
    handles: int


class Driver(Child):
    """One start of the query.

    Attributes:
        number: The number of the start, from 1.
        clock: The process's fake clock, if it has one.
        phase: The name of the last phase that the process reported.
        batch: The batch of that phase; -1 before the first one.
        finished: The last batch that it finished; -1 before the first one.
        phases: The number of phases that it has reported.
        held: The phase at which it is held; empty if it is not held.
        error: The name of the error that stopped its query; empty if there is none.
        state_rows: The number of state rows at the end, if it stopped normally.
        asked_to_stop: True if it was asked to stop.
        end_noted: True if its end has been recorded.
    """

    def __init__(
        self,
        number: int,
        config: str,
        *,
        log: Path,
        temporary: Path,
        module: str = "sparkonce_lab.query",
        clock: FakeClock | None = None,
    ) -> None:
        env = clock.env() if clock is not None else None
        super().__init__([], log=log, temporary=temporary, module=module, env=env)
        self.clock = clock
        self.number = number
        self.phase, self.batch, self.finished = "", -1, -1
        self.phases = 0
        self.held = self.error = ""
        self.state_rows: int | None = None
        self.asked_to_stop = False
        self.end_noted = False
        self.send(config)

    def news(self) -> Iterator[Event]:
        """Yields the events since the last call, and updates the attributes accordingly."""
        for event in self.events():
            match event["event"]:
                case "phase":
                    self.phase, self.batch, self.held = event["phase"], event["batch"], ""
                    self.phases += 1
                case "batch":
                    self.finished = event["batch"]
                case "held":
                    self.held = event["phase"]
                case "stop" | "failed":
                    self.error = self.error or event["error"]
                case "state":
                    self.state_rows = event["rows"]
            yield event

    def command(self, **command: Any) -> None:
        """Sends a command to the process; see `sparkonce_lab.query`. Does nothing if the process is gone."""
        self.send(json.dumps(command))

    def hold_at(self, phase: str) -> None:
        self.command(hold=phase)

    def go(self) -> None:
        """Releases the driver, and does not hold it at any later phase."""
        self.held = ""
        self.command(go=True)

    def ask_to_stop(self) -> None:
        """Closes the driver's standard input, which makes it stop normally if it can."""
        self.asked_to_stop = True
        super().ask_to_stop()

    def executors(self) -> list[int]:
        return [pid for pid, words in self._commands() if any("CoarseGrainedExecutorBackend" in word for word in words)]

    def workers(self) -> list[int]:
        """The process ids of Python workers, which are children of PySpark's daemon."""
        daemons = {pid for pid, words in self._commands() if _DAEMON in words}
        parents = {pid: _parent(pid) for pid in daemons}
        # Workers have the same command line as their daemon, but the daemon's parent is a JVM.
        return [pid for pid, parent in parents.items() if parent in daemons]

    def usage(self) -> list[Usage]:
        """Measures the driver's processes, where the operating system allows it."""
        workers = set(self.workers())
        found = []
        for pid, words in self._commands():
            role = "driver" if pid == self.pid else "jvm" if "java" in words[0] else "worker" if pid in workers else ""
            if not role:
                continue
            with suppress(OSError, ValueError, IndexError):
                rss = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KIB // 1024
                handles = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                found.append(Usage(role=role, pid=pid, rss_mib=rss, handles=handles))
        return found

    def _commands(self) -> list[tuple[int, list[str]]]:
        found = []
        for pid in session_of(self.pid):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                found.append((pid, words))
        return found


def fields_of(event: Event) -> Mapping[str, Any]:
    """Returns the fields of an event without its kind."""
    return {name: value for name, value in event.items() if name != "event"}


def _parent(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1

"""Looks on while the query runs: what readers see, and what processes and folders use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sparkonce.errors import LogError
from sparkonce.lab.history import Kind, Recorder
from sparkonce.lab.systems.base import System
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.view import LogView, LogViolation

_EVERY_S = 0.2
_JOIN_S = 60.0
LOG_FOLDER = "sparkonce"


class Readers:
    """A reader for each system, in a thread of its own.

    Each notes when it first sees rows of a batch, and then what the decision log says of it.

    Args:
        systems: Which.
        checkpoint: With the decision log.
        recorder: Takes what is seen.
    """

    def __init__(self, systems: Sequence[System], checkpoint: Path, recorder: Recorder) -> None:
        self._checkpoint = checkpoint
        self._recorder = recorder
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(system,), daemon=True) for system in systems]

    def start(self) -> None:
        """Begins to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _watch(self, system: System) -> None:
        newest = -1
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(_EVERY_S)  # and one last look, at what is there in the end
            try:
                found = system.newest()
            except Exception:  # noqa: BLE001, S112 - the system does not answer now: what it shows is asked again
                continue
            if found <= newest:
                continue
            # Rows first, then the log: what is not decided now was not when the rows were seen. The other way round, a
            # decision in between would look like none. Rows that are early for less than this takes are not noticed,
            # so drivers are held for longer where rows must not show yet.
            decided = self._decided()
            if decided is not None:
                newest = found
                self._recorder.note(Kind.SEEN, system=system.name, batch=found, decided=decided)

    def _decided(self) -> int | None:
        """The newest decided batch, -1 for none; None if the log cannot be read now."""
        if not (self._checkpoint / LOG_FOLDER).is_dir():
            return -1
        try:
            found = DecisionLog(LocalLogStore(self._checkpoint)).read(LogView()).newest_decision
        except (LogError, LogViolation, OSError):
            return None
        return found.batch if found is not None else -1


def note_violation(recorder: Recorder, checkpoint: Path, driver: int) -> None:
    """Notes whether the decision log holds what no correct run can have written: a new driver would stop there.

    Args:
        recorder: Takes it.
        checkpoint: With the log.
        driver: The newest one's number.
    """
    try:
        DecisionLog(LocalLogStore(checkpoint)).read(LogView())
    except (LogError, LogViolation) as error:
        message = f"the verifier cannot read the decision log: {error}"
        recorder.note(Kind.STOPPED, driver=driver, error=type(error).__name__, message=message)


def note_folder(recorder: Recorder, name: str, folder: Path) -> None:
    """Notes how many files a folder has, and how large they are."""
    files = size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                files, size = files + 1, size + path.stat().st_size
    recorder.note(Kind.FOLDER, name=name, files=files, bytes=size)

"""Observes the query while it runs: the batches that readers see, and the sizes of the log and the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sparkonce.decision_log import FOLDER, DecisionLog
from sparkonce.errors import LogError
from sparkonce.protocol.view import LogView, LogViolation
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.history import EventKind, Recorder
from sparkonce_lab.rig.process import Background
from sparkonce_lab.systems.base import VerifiedSystem

_EVERY_S = 0.2
_STOPS_WITHIN_S = 60.0
_RECORDS = f"{FOLDER}/records"


class Readers:
    """A reader for each system."""

    def __init__(self, systems: Sequence[VerifiedSystem], checkpoint: CheckpointFiles, recorder: Recorder) -> None:
        self._readers = [_Reader(system, checkpoint, recorder) for system in systems]

    def start(self) -> None:
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        for reader in self._readers:
            reader.stopping.set()
        for reader in self._readers:
            reader.stop()


class _Reader(Background):
    """Records when a system first shows rows of a batch, together with the newest decision in the log at that time."""

    def __init__(self, system: VerifiedSystem, checkpoint: CheckpointFiles, recorder: Recorder) -> None:
        super().__init__(f"reader of {system.name}", _STOPS_WITHIN_S)
        self._system = system
        self._checkpoint = checkpoint
        self._view = LogView()
        self._recorder = recorder

    def work(self) -> None:
        newest = -1
        stopping = False
        while not stopping:
            stopping = self.stopping.wait(_EVERY_S)  # After the stop, check once more for rows that have arrived since.
            try:
                found = self._system.newest()
            except Exception:  # noqa: BLE001, S112 - the system does not respond now, and is queried again
                continue
            if found <= newest:
                continue
            # Read the rows first, then the log: a batch that is undecided in the log was also undecided when its rows
            # were seen. In the opposite order, a batch could be decided between the two reads. Even in this order, a
            # violation that is over before the log is read goes unnoticed. In phases in which rows must not be visible
            # yet, drivers are therefore held for longer than the two reads take.
            decided = self._decided()
            if decided is not None:
                newest = found
                self._recorder.note(EventKind.SEEN, system=self._system.name, batch=found, decided=decided)

    def _decided(self) -> int | None:
        """Returns the newest decided batch; -1 if there is none, and None if the log currently cannot be read."""
        try:
            if not has_log(self._checkpoint):
                return -1
            self._view = DecisionLog(self._checkpoint).read(self._view)
        except (LogError, LogViolation, OSError):
            return None
        found = self._view.newest_decision
        return found.batch if found is not None else -1


def has_log(checkpoint: CheckpointFiles) -> bool:
    """Returns True if a decision log exists. Raises OSError if that cannot be determined."""
    return bool(checkpoint.names(_RECORDS))


def note_violation(recorder: Recorder, checkpoint: CheckpointFiles, driver: int) -> None:
    """Records a violation if the decision log contains anything that a correct run cannot have written."""
    try:
        DecisionLog(checkpoint).read(LogView())
    except (LogError, LogViolation) as error:
        message = f"the verifier cannot read the decision log: {error}"
        recorder.note(EventKind.STOPPED, driver=driver, error=type(error).__name__, message=message)


def note_sizes(recorder: Recorder, checkpoint: CheckpointFiles) -> None:
    """Records the sizes of checkpoint and log. If they are not on a disk, records only the number of log files."""
    if isinstance(checkpoint, LocalFiles):
        for name, folder in (("log", checkpoint.folder / FOLDER), ("checkpoint", checkpoint.folder)):
            if folder.is_dir():
                _note_folder(recorder, name, folder)
        return
    with suppress(OSError):
        files = sum(len(checkpoint.names(f"{FOLDER}/{name}")) for name in ("records", "floors"))
        recorder.note(EventKind.FOLDER, name="log", files=files)


def _note_folder(recorder: Recorder, name: str, folder: Path) -> None:
    files = size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                files, size = files + 1, size + path.stat().st_size
    recorder.note(EventKind.FOLDER, name=name, files=files, bytes=size)

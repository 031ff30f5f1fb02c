"""Reads from Spark's checkpoint which batches are finished. Spark records a batch once its sinks have finished it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sparkonce.source import CheckpointFiles, SparkCheckpoint

QUEUE, NEXT = "queue", "next"


@dataclass(frozen=True, slots=True)
class FinishedSegments:
    """The segment numbers that delimit finished batches.

    Attributes:
        below: Segments with lower numbers belong to finished batches.
        spare: Segments with lower numbers belong to batches before the newest finished one, so nothing reads them
            again.
    """

    below: int = 0
    spare: int = 0


class Progress:
    """Reads a query's checkpoint, whose positions of this source contain the identity of the segments' folder."""

    def __init__(self, files: CheckpointFiles, identity: str) -> None:
        self._spark = SparkCheckpoint(files)
        self._identity = identity
        self._batch = -1
        self._found = FinishedSegments()

    def poll(self) -> FinishedSegments:
        """Returns which segments are finished by now. Raises OSError if the store is unavailable."""
        newest = self._batch
        if newest < 0:
            newest = self._spark.finished()
        while self._spark.is_finished(newest + 1):
            newest += 1
        if newest > self._batch:
            before = self._end(newest - 1) if newest > self._batch + 1 else self._found.below
            self._found = FinishedSegments(max(self._end(newest), self._found.below), max(before, self._found.spare))
            self._batch = newest
        return self._found

    def _end(self, batch: int) -> int:
        """Returns the end of a batch; 0 if the batch has none for this source."""
        return next(filter(None, (self._next(line) for line in self._spark.source_lines(batch))), 0)

    def _next(self, line: str) -> int:
        try:
            said = json.loads(line)
        except ValueError:
            return 0
        return said[NEXT] if isinstance(said, dict) and said.get(QUEUE) == self._identity else 0

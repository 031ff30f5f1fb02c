"""The decision log's store, which may lose, reject or delay a put. The product's `DecisionLog` reads it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from sparkonce.decision_log import DecisionLog, Landed, Taken
from sparkonce.protocol import codec
from sparkonce.storage.files import CheckpointFiles, PutUnknownError

if TYPE_CHECKING:
    from simulation.engine import Simulation


_REFUSALS = ((errno.ENOSPC, "disk full"), (errno.EROFS, "disk read-only"))
"""A run waits for space, and stops if the store is permanently unwritable."""


class ModelLog(DecisionLog):
    """The store that all drivers share.

    Args:
        simulation: The schedule.
    """

    location = "the log"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.records: dict[int, bytes] = {}
        self.floors: dict[int, bytes] = {}

    def decides_for(self, checkpoint: CheckpointFiles) -> None:
        """Makes Spark's files in this checkpoint durable before each decision, as the log of a run does."""
        self._checkpoint, self._decides = checkpoint, True

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        simulation = self._simulation
        simulation.stop_here()
        if simulation.chance("put lost"):
            kind = simulation.dice.pick(3)
            simulation.say("puts", position, "->", ("reply lost", "request lost", "request late")[kind])
            if kind == 0:
                self._put(position, data)
            elif kind == 2:
                simulation.flights.append((("put", position), lambda: self._put(position, data)))
            raise PutUnknownError("no reply")
        if simulation.chance("put refused"):
            number, words = _REFUSALS[simulation.dice.pick(len(_REFUSALS))]
            simulation.say("puts", position, "->", words)
            raise OSError(number, words)
        answer = self._put(position, data)
        if simulation.chance("put unreadable"):
            # As with NFS: the request was sent twice, and the second one finds the first one's record but cannot read
            # it.
            simulation.say("puts", position, "-> sent again: taken, and cannot be read")
            raise self.unreadable()
        if simulation.chance("put repeated"):
            # As with S3A: the request was sent twice, and the second one finds the first one's record.
            simulation.say("puts", position, "-> sent again: taken by its own bytes")
            return Taken(standing=self.records[position])
        return answer

    def _stop_here(self) -> None:
        """Stops before a read, to which the store may not respond."""
        self._simulation.stop_here()
        if self._simulation.chance("log away"):
            self._simulation.say("the log's store is away")
            raise OSError(errno.ETIMEDOUT, "no answer from the store")

    @staticmethod
    def unreadable() -> Exception:
        """Returns the error that `DecisionLog` raises if the position is taken by a record that cannot be read."""
        return PutUnknownError("it stands already, and could not be read")

    def _put(self, position: int, data: bytes) -> Landed | Taken:
        standing = self.records.get(position)
        if standing is not None:
            self._simulation.say("puts", position, "-> taken")
            return Taken(standing=standing)
        self.records[position] = data
        record = codec.decode_record(data)
        self._simulation.say("puts", position, type(record).__name__)
        if position >= max(self.floors, default=0):
            self._simulation.oracle.landed(record)
        return Landed()

    def read_bytes(self, position: int) -> list[bytes]:
        found: list[bytes] = []
        while True:
            self._stop_here()
            if (data := self.records.get(position + len(found))) is None:
                return found
            found.append(data)

    def floor_bytes(self) -> bytes | None:
        self._stop_here()
        return self.floors[max(self.floors)] if self.floors else None

    def raise_floor_bytes(self, position: int, data: bytes) -> None:
        simulation = self._simulation
        simulation.stop_here()
        if simulation.chance("put lost"):
            if simulation.dice.pick(2):
                self.floors.setdefault(position, data)
            raise PutUnknownError("no reply")
        simulation.say("raises the floor to", position)
        self.floors.setdefault(position, data)

    def delete_below(self, position: int) -> None:
        self._simulation.stop_here()
        self._simulation.say("deletes below", position)
        highest = max(self.floors, default=0)
        self.records = {place: data for place, data in self.records.items() if place >= position}
        self.floors = {place: data for place, data in self.floors.items() if place >= highest}

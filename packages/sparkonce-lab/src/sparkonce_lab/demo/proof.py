"""Asks the broker and the decision log how far a killed query had come. None of it asks the query."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparkonce.log import DecisionLog, FilesLogStore
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.demo.halfway import HALFWAY
from sparkonce_lab.kafka import describe_transactions, list_transactions


class CrashPoint(Enum):
    """The point at which a driver is killed. The value is the name of the phase or point where it is held."""

    PREPARED = Phase.DECIDING.name
    DECIDED = Phase.FINISHING.name
    HALFWAY = HALFWAY

    @property
    def words(self) -> str:
        """The same for people."""
        return _WORDS[self]


_WORDS = {
    CrashPoint.PREPARED: "between prepare and decide",
    CrashPoint.DECIDED: "between decide and commit",
    CrashPoint.HALFWAY: "half-way through the commits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The progress of a batch of sparkonce when its driver died.

    Attributes:
        batch: Spark's batch id.
        decided: Whether the log holds its decision.
        ended: How many of its transactions the broker has ended.
        open: How many of them the broker has open; for an undecided batch, how many are open at all.
    """

    batch: int
    decided: bool
    ended: int
    open: int

    def proves(self, point: CrashPoint) -> bool:
        """Tells whether the kill was at this point."""
        if point is CrashPoint.PREPARED:
            return not self.decided and self.open > 0
        if point is CrashPoint.DECIDED:
            return self.decided and self.open > 0 and self.ended == 0
        return self.decided and self.open > 0 and self.ended > 0

    @property
    def words(self) -> str:
        """The same for people."""
        log = "decided" if self.decided else "not decided"
        return f"log: {log}; broker: {self.open} transactions open, {self.ended} committed"


def standing(bootstrap: str, checkpoint: CheckpointFiles, batch: int) -> Standing:
    """Asks the decision log and the broker how far a batch has come."""
    decision = DecisionLog(FilesLogStore(checkpoint)).read(LogView()).decision(batch)
    if decision is None:
        left = list_transactions(bootstrap, states=["Ongoing"])
        return Standing(batch=batch, decided=False, ended=0, open=len(left))
    ids = [str(handle["transactional_id"]) for handle in decision.handles if handle.transaction]
    states = [found.state for found in describe_transactions(bootstrap, ids).values()]
    still_open = states.count("Ongoing")
    return Standing(batch=batch, decided=True, ended=len(states) - still_open, open=still_open)

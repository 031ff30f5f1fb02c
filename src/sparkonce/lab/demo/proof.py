"""Asks the broker, the decision log and Spark's checkpoint where a killed query stood. None of it asks the query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkonce.lab.demo.crash import CrashPoint
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.view import LogView
from sparkonce.testing.kafka import describe_transactions, list_transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a batch of sparkonce stood when its driver died.

    Attributes:
        batch: Spark's batch id.
        decided: Whether the log holds its decision.
        ended: Transactions of it that the broker has ended.
        open: Transactions of it that the broker has open; for a batch that is not decided, all that are open.
    """

    batch: int
    decided: bool
    ended: int
    open: int

    def proves(self, point: CrashPoint) -> bool:
        """Whether the kill was where it was meant to be."""
        if point is CrashPoint.PREPARED:
            return not self.decided and self.open > 0
        if point is CrashPoint.DECIDED:
            return self.decided and self.open > 0 and self.ended == 0
        return self.decided and self.open > 0 and self.ended > 0

    @property
    def words(self) -> str:
        """For people."""
        log = "decided" if self.decided else "not decided"
        return f"log: {log}; broker: {self.open} transactions open, {self.ended} committed"


def standing(bootstrap: str, checkpoint: Path, batch: int) -> Standing:
    """Where a batch stands, from the decision log and the broker."""
    decision = DecisionLog(LocalLogStore(checkpoint)).read(LogView()).decision(batch)
    if decision is None:
        left = list_transactions(bootstrap, states=["Ongoing"])
        return Standing(batch=batch, decided=False, ended=0, open=len(left))
    ids = [str(handle["transactional_id"]) for handle in decision.handles if handle.transaction]
    states = [found.state for found in describe_transactions(bootstrap, ids).values()]
    still_open = states.count("Ongoing")
    return Standing(batch=batch, decided=True, ended=len(states) - still_open, open=still_open)

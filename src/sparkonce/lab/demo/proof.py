"""Asks the broker, the decision log and Spark's checkpoint where a killed query stood. None of it asks the query."""

from __future__ import annotations

import json
from contextlib import suppress
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


class SparkCheckpoint:
    """What Spark itself has recorded: ``offsets/N`` before batch N runs, ``commits/N`` after it.

    Args:
        folder: The query's checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begun(self) -> int:
        """The newest batch that has begun, -1 if none has."""
        return self._newest("offsets")

    def finished(self) -> int:
        """The newest batch that Spark has recorded as done, -1 if none is."""
        return self._newest("commits")

    def is_unrecorded(self, batch: int) -> bool:
        """Whether a batch has begun and is not recorded as done."""
        return (self._folder / "offsets" / str(batch)).exists() and not (self._folder / "commits" / str(batch)).exists()

    def finished_watermark_ms(self) -> int:
        """The watermark of the newest batch recorded as done, in milliseconds since the epoch: all before it is out."""
        with suppress(FileNotFoundError, IndexError, KeyError, ValueError):
            lines = (self._folder / "offsets" / str(self.finished())).read_text().splitlines()
            return int(json.loads(lines[1])["batchWatermarkMs"])
        return 0

    def _newest(self, log: str) -> int:
        folder = self._folder / log
        if not folder.is_dir():
            return -1
        return max((int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()), default=-1)

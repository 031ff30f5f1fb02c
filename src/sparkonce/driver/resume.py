"""Finds the point at which a query resumes, by its checkpoint and its log alone."""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.protocol.coordinator import refusal
from sparkonce.protocol.effects import Stop
from sparkonce.protocol.state import Batch, State
from sparkonce.protocol.view import Claim, LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The point at which a query resumes, by its checkpoint and its log.

    Attributes:
        checkpoint: Spark's checkpoint, as it was when the query was started.
        view: The content of its decision log.
        batch: The newest batch that Spark has planned; -1 if there is none.
        is_done: True if Spark has recorded that this batch is done, or there is none.
    """

    checkpoint: SparkCheckpoint
    view: LogView
    batch: int
    is_done: bool

    @classmethod
    def of(cls, checkpoint: CheckpointFiles, view: LogView) -> ResumePoint:
        """Reads the checkpoint with these files."""
        kept = SparkCheckpoint(checkpoint)
        batch = kept.begun()
        return cls(checkpoint=kept, view=view, batch=batch, is_done=batch < 0 or kept.is_finished(batch))

    @property
    def awaits_commit(self) -> bool:
        """True if the newest batch was decided and may not be finished. It is committed first, and needs no input."""
        return not self.is_done and self.view.decision(self.batch) is not None

    def description(self) -> str:
        """Describes it for people; empty for a new query."""
        if self.batch < 0:
            return ""
        if self.is_done:
            return f"Resuming after batch {self.batch}."
        if self.awaits_commit:
            return f"Batch {self.batch} was decided and may not be finished: it is committed first."
        return f"Batch {self.batch} was not decided: its open transactions are aborted, and it is written again."

    def refusal(self, location: str, *, moved: bool = False) -> Stop | None:
        """Returns the reason for which the log refuses the next start's first batch; None if it takes it.

        A batch that Spark has not planned yet may have any offsets, so its own are not compared.

        Args:
            location: The log's, see `sparkonce.log.base.LogStore.location`.
            moved: True as for ``checkpoint_moved=True``.
        """
        query = self.checkpoint.query_id() or "no query"
        claim = Claim(nonce="", run="", query=query, location=location)
        return refusal(State(claim=claim, moved=moved, view=self.view, batch=self.next_batch()))

    def next_batch(self) -> Batch:
        """Returns the batch that Spark asks for next. One that it has not planned has the offsets of its decision."""
        number = self.batch + 1 if self.is_done else self.batch
        before = self.checkpoint.input_offsets(number - 1) if number else None
        offsets = None if self.is_done else self.checkpoint.input_offsets(number)
        newest = self.view.newest_decision
        if offsets is None:  # not planned yet, or half written: Spark plans it anew
            offsets = newest.offsets if newest is not None and newest.batch == number else ()
        return Batch(number=number, offsets=offsets, previous_offsets=before)

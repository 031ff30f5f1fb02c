"""The part of a format that runs in a task: it prepares one slot, or throws the rows of a decided batch away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from sparkonce.driver.halves import Handover
from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.protocol.handles import Handle
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.formats.fingerprints import fingerprints
from sparkonce.spark.shipped import acknowledge_at_once
from sparkonce.spark.worker import lighten_worker

_FINGERPRINT = "__sparkonce_fingerprint"


@dataclass(frozen=True, kw_only=True)
class SlotWritten(WriterCommitMessage):  # type: ignore[misc]
    """A task's answer.

    Attributes:
        handle: What it has prepared; None if the batch was decided before.
        tried: How often the slot was tried before.
        handover: For the process that ends the batch, from one of the tasks; None from the others.
    """

    handle: Handle | None
    tried: int = 0
    handover: Handover | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """The task of every slot.

    Attributes:
        sink: The sink.
        columns: The columns to write, in order.
        handover: What was begun; None if the batch is decided.
        batch: Spark's batch id, as the checkpoint has it.
        query: Spark's query id, as the checkpoint has it; None for a job without a query.
    """

    sink: TwoPhaseCommitSink
    columns: tuple[str, ...]
    handover: Handover | None
    batch: int
    query: str | None

    def write(self, rows: Iterable[pa.RecordBatch]) -> SlotWritten:
        """Writes one slot.

        Raises:
            PrepareError: if the sink did not take all rows.
            ConfigurationError: if the checkpoint is not that of the query that runs this task.
        """
        context = TaskContext.get()
        if context is None:
            raise PrepareError("Rows are written inside a Spark task only.")
        self._check_query(context)
        acknowledge_at_once()
        if self.handover is None:
            for _ in rows:
                pass  # a stateful query's state store needs the version, so its plan has to run
            return SlotWritten(handle=None)
        part = SinkTask(
            sink=self.sink,
            owner=self.handover.owners[self.sink.name],
            columns=self.columns,
            fingerprint=_FINGERPRINT,
        )
        task = SlotTask(batch=self.batch, sinks=(part,), only=self.handover.effect.only)
        slot, attempt = context.partitionId(), context.attemptNumber()
        copy = f"{context.stageId()}.{context.taskAttemptId()}.{attempt}"
        (handle,) = write_slot(_hashed(rows, self.columns), task, slot=slot, copy=copy, attempt=attempt)
        lighten_worker()
        return SlotWritten(handle=handle, tried=attempt, handover=self.handover if slot == 0 else None)

    def _check_query(self, context: TaskContext) -> None:
        """Compares the checkpoint that was read before the tasks with what Spark says to its tasks."""
        if self.query is None:
            return
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if (query, batch) != (self.query, str(self.batch)):
            raise ConfigurationError(
                f"checkpointLocation holds batch {self.batch} of query {self.query}, and Spark runs batch {batch} of "
                f"query {query}.",
                next_step="Give the option checkpointLocation itself, and no asyncProgressTrackingEnabled: the sink "
                "reads there which batch runs.",
                setting="checkpointLocation",
            )


def _hashed(rows: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        yield batch.append_column(_FINGERPRINT, fingerprints(batch, columns))

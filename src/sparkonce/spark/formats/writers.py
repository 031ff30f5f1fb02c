"""The writers that Spark calls before and after a batch's tasks: one for a query's batches, one for a batch job.

Spark's checkpoint shows which batch of a query is running. A batch job is decided once per job name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

from sparkonce.driver.start import read_log
from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.protocol.events import BatchAsked
from sparkonce.spark.formats.ends import Ends
from sparkonce.spark.formats.task import BatchTask, SlotWritten
from sparkonce.storage.spark import SparkCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa

    _Base: Any = object
else:
    # PySpark 4.0 has no Arrow writer for streams, but passes Arrow batches to a writer that is also a batch writer.
    _arrow = getattr(datasource, "DataSourceStreamArrowWriter", None)
    _Base = _arrow or type("_Base", (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """The batch that Spark is running on a checkpoint: the latest one that has offsets."""

    checkpoint: SparkCheckpoint

    def query(self) -> str:
        """Returns the query's id."""
        query = self.checkpoint.query_id()
        if query is None:
            raise ConfigurationError(
                f"checkpointLocation={self.checkpoint.files.location!r} holds no query.",
                next_step="Give the query's own checkpoint as this option.",
                setting="checkpointLocation",
            )
        return query

    def number(self) -> int:
        """Returns Spark's batch id."""
        batch = self.checkpoint.begun()
        if not self.checkpoint.is_unrecorded(batch):
            raise ConfigurationError(
                f"checkpointLocation={self.checkpoint.files.location!r} has no batch that runs: Spark writes offsets/N "
                "before it runs batch N.",
                next_step="Give the query's own checkpoint as this option, and no asyncProgressTrackingEnabled.",
                setting="checkpointLocation",
            )
        return batch

    def asked(self, batch: int) -> BatchAsked:
        """Returns a batch with its input offsets."""
        offsets = self.checkpoint.input_offsets(batch)
        if offsets is None:
            raise ConfigurationError(
                f"checkpointLocation={self.checkpoint.files.location!r} has no offsets/{batch}, and Spark runs it.",
                next_step="Give the query's own checkpoint as this option.",
                setting="checkpointLocation",
            )
        return BatchAsked(batch=batch, offsets=offsets, previous_offsets=self.checkpoint.input_offsets(batch - 1))


class FormatStreamWriter(_Base):  # type: ignore[misc]
    """Writes the batches of a query. Each batch has one object for its start and tasks, and another for its end.

    Args:
        begins: True before the tasks; False after them, when the batch has already started.
    """

    def __init__(self, ends: Ends, running: RunningBatch, columns: Sequence[str], *, begins: bool) -> None:
        self._task: BatchTask | None = None
        if begins:
            batch = running.number()
            handover = ends.begin(running.asked(batch))
            self._task = BatchTask(
                sink=ends.sink, columns=tuple(columns), handover=handover, batch=batch, query=ends.query
            )
        else:
            self._ends, self._running = ends, running

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SlotWritten:
        """Writes one slot. Spark calls it in a task."""
        if self._task is None:
            raise PrepareError("A task was given the writer that ends a batch.")
        return self._task.write(iterator)

    def commit(self, messages: Sequence[SlotWritten | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Decides and commits the batch.

        Spark calls it after the tasks, and again for the same batch after a restart.
        """
        written = all_of(messages)
        handover = next((one.handover for one in written if one.handover is not None), None)
        if handover is None:
            self._ends.check_decided(batchId)
        elif handover.batch != batchId:
            raise PrepareError(f"Batch {handover.batch} was written, and Spark commits batch {batchId}.")
        else:
            self._ends.finish(handover, written)

    def abort(self, messages: Sequence[SlotWritten | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Aborts the batch, unless it is decided. Spark calls it after any failure, including a failure of `commit`."""
        handover = next((one.handover for one in messages if one is not None and one.handover is not None), None)
        self._ends.abort(self._running.asked(batchId), handover)


def all_of(messages: Sequence[SlotWritten | None]) -> list[SlotWritten]:
    """Returns the messages of all tasks."""
    written = [one for one in messages if one is not None]
    if not messages or len(written) != len(messages):
        raise PrepareError(f"{len(written)} of {len(messages)} tasks have reported what they prepared.")
    return written


logger = logging.getLogger("sparkonce")

_BATCH = 0
"""The only batch of a job."""


class FormatJobWriter(datasource.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a job's rows. If a job with this name is already decided, finishes that one and writes nothing.

    Raises:
        ConfigurationError: If a job with this name has started to write elsewhere.
    """

    def __init__(self, ends: Ends, job: str, target: str, columns: Sequence[str]) -> None:
        self._ends = ends
        self._asked = BatchAsked(batch=_BATCH, offsets=(target,), previous_offsets=None)
        run = read_log(ends.log).newest_run
        if run is not None and run.query != ends.query:
            raise ConfigurationError(
                f"job={job!r} has written to another target, and now it should write to {target}.",
                next_step="Give each job its own name: a job that is decided is never written again.",
                setting="job",
            )
        self._handover = ends.begin(self._asked)
        if self._handover is None:
            logger.warning(
                "job=%r has already been decided: its rows are not written again. Next: Give each run a new name.", job
            )
        self._task = BatchTask(
            sink=ends.sink, columns=tuple(columns), handover=self._handover, batch=_BATCH, query=None
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SlotWritten:
        """Writes one slot. Spark calls it in a task."""
        return self._task.write(iterator)

    def commit(self, messages: Sequence[SlotWritten | None]) -> None:
        """Decides and commits the job. Spark calls it after the tasks."""
        if self._handover is None:
            self._ends.check_decided(_BATCH)
        else:
            self._ends.finish(self._handover, all_of(messages))

    def abort(self, messages: Sequence[SlotWritten | None]) -> None:  # noqa: ARG002 - the log knows more
        """Aborts the job, unless it is decided. Spark calls it after any failure, including a failure of `commit`."""
        if self._handover is not None:
            self._ends.abort(self._asked, self._handover)

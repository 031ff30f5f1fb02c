"""The writer of a batch job: one decision for each name of a job."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter

from sparkonce.driver.start import read_log
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.events import BatchAsked
from sparkonce.spark.formats.ends import Ends
from sparkonce.spark.formats.stream import all_of
from sparkonce.spark.formats.task import BatchTask, SlotWritten

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("sparkonce")

_BATCH = 0
"""The one batch of a job."""


class FormatJobWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a job's rows, unless a job of this name is decided: then it finishes that one, and writes nothing.

    Args:
        ends: The ends of the batch.
        job: The job's name.
        target: Where its rows go, as a canonical text.
        columns: The columns to write.

    Raises:
        ConfigurationError: if a job of this name has begun to write elsewhere.
    """

    def __init__(self, ends: Ends, job: str, target: str, columns: Sequence[str]) -> None:
        self._ends = ends
        self._asked = BatchAsked(batch=_BATCH, offsets=(target,), previous_offsets=None)
        run = read_log(ends.log).newest_run
        if run is not None and run.query != ends.query:
            raise ConfigurationError(
                f"job={job!r} has written to another target, and now it is to write to {target}.",
                next_step="Give each job a name of its own: a job that is decided is never written again.",
                setting="job",
            )
        self._handover = ends.begin(self._asked)
        if self._handover is None:
            logger.warning("job=%r is decided already: its rows are not written again. Next: name each run anew.", job)
        self._task = BatchTask(
            sink=ends.sink, columns=tuple(columns), handover=self._handover, batch=_BATCH, query=None
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SlotWritten:
        """Writes one slot. Called by Spark, in a task."""
        return self._task.write(iterator)

    def commit(self, messages: Sequence[SlotWritten | None]) -> None:
        """Decides and commits the job. Called by Spark after the tasks."""
        if self._handover is None:
            self._ends.check_decided(_BATCH)
        else:
            self._ends.finish(self._handover, all_of(messages))

    def abort(self, messages: Sequence[SlotWritten | None]) -> None:  # noqa: ARG002 - the log knows more
        """Undoes the job, unless it is decided. Called by Spark after any failure, of `commit` too."""
        if self._handover is not None:
            self._ends.abort(self._asked, self._handover)

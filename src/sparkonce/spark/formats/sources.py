"""The data sources that Spark calls, one per format, and `register`, which adds them to a session.

Spark calls a source's writer before and after a batch's tasks. There is one for a query's batches, and one for a batch
job. Spark's checkpoint shows which batch of a query is running. A batch job is decided once per job name.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkonce.arguments import nonempty
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.start import check_log, read_log
from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.protocol.events import BatchAsked
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.formats.ends import Ends, run_key
from sparkonce.spark.formats.options import FORMATS, Settings, SparkFormat, open_files, session_settings
from sparkonce.spark.formats.task import BatchTask, SlotWritten
from sparkonce.spark.views import arrow_schema
from sparkonce.storage.files import CheckpointFiles, prove
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa

    _Base: Any = object
else:
    # PySpark 4.0 has no Arrow writer for streams, but passes Arrow batches to a writer that is also a batch writer.
    _arrow = getattr(datasource, "DataSourceStreamArrowWriter", None)
    _Base = _arrow or type("_Base", (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter), {})

logger = logging.getLogger("sparkonce")

CHECKPOINT, JOB, LOG = "checkpointlocation", "job", "log"

MOVED, PATIENCE = "checkpoint_moved", "outage_patience_s"

_OURS = (CHECKPOINT, JOB, LOG, MOVED, PATIENCE, "queryname")  # Spark passes queryName("…") as the last one

_JOBS = uuid.UUID("6c7d6b0e-5f0a-4b56-9a6e-0a3f5b1f7f11")
"""The UUID namespace in which a job's id is derived from its name."""

_BATCH = 0
"""The only batch of a job."""


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


class FormatSource(DataSource):  # type: ignore[misc]
    """A format. `sources` creates a subclass for each."""

    of: SparkFormat
    stores: Settings | None = None
    """The session's settings for stores."""
    _begins = True

    @classmethod
    def name(cls) -> str:
        """Returns the format's name."""
        return cls.of.name

    def __reduce__(self) -> tuple[Callable[..., FormatSource], tuple[Any, ...]]:
        """Pickles the format for the process after the tasks.

        For the process before the tasks, Spark creates the format from its class.
        """
        return _after_tasks, (type(self), dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> FormatJobWriter:
        """Begins a job. Spark calls it before the job's tasks."""
        self._refuse_overwriting(overwrite)
        options = self._lower_options()
        job = nonempty(JOB, options.get(JOB, ""), example="the name of this job, such as 'totals-2026-11-24'")
        folder = nonempty(LOG, options.get(LOG, ""), example="a folder for the decision logs of jobs")
        target = json.dumps({"job": job, "format": self.of.name, **self.of.target_of(options)}, sort_keys=True)
        # Derive the id from the target as well, because the server's traces of the id are compared with this log.
        query = str(uuid.uuid5(_JOBS, target))
        sink = self._sink(options)
        columns = sink.columns(arrow_schema(schema))
        logs = open_files(LOG, folder, self.stores)
        prove(logs)
        log = self._log_at(logs.inside(str(uuid.uuid5(_JOBS, job))))
        ends = Ends(sink=sink, log=log, query=query, moved=_flag(options, MOVED), patience_s=_patience(options))
        return FormatJobWriter(ends, job, target, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FormatStreamWriter:  # noqa: N802 - PySpark's name
        """Begins a query's batch. Spark calls it before the batch's tasks, and again after them."""
        self._refuse_overwriting(overwrite)
        options = self._lower_options()
        location = nonempty(
            "checkpointLocation", options.get(CHECKPOINT, ""), example="the query's checkpoint, absolute"
        )
        files = open_files("checkpointLocation", location, self.stores)
        if self._begins:
            prove(files)
            check_log(files)
        running = RunningBatch(checkpoint=SparkCheckpoint(files))
        sink = self._sink(options)
        columns = sink.columns(arrow_schema(schema))
        ends = Ends(
            sink=sink,
            log=self._log_at(files),
            query=running.query(),
            run_key=run_key({**options, "format": self.of.name}),
            moved=_flag(options, MOVED),
            patience_s=_patience(options),
        )
        return FormatStreamWriter(ends, running, columns, begins=self._begins)

    def _lower_options(self) -> dict[str, str]:
        return {str(name).lower(): str(value) for name, value in dict(self.options).items()}

    def _sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink:
        return self.of.sink({name: value for name, value in options.items() if name not in _OURS})

    def _log_at(self, files: CheckpointFiles) -> DecisionLog:
        return DecisionLog(files, decides=True)

    def _refuse_overwriting(self, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                f"Format {self.of.name} adds rows, and mode('overwrite') and outputMode('complete') replace them.",
                next_step="Use mode('append'), or outputMode('append') or 'update'.",
                setting="mode",
            )


def _after_tasks(source: type[FormatSource], options: Mapping[str, str]) -> FormatSource:
    made = source(options)
    made._begins = False
    return made


def _flag(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _patience(options: Mapping[str, str]) -> float:
    try:
        return float(options.get(PATIENCE, "300"))
    except ValueError:
        raise ConfigurationError(
            f"{PATIENCE}={options[PATIENCE]!r} is not a number.", next_step="Give seconds.", setting=PATIENCE
        ) from None


def sources(stores: Settings | None) -> Iterator[type[FormatSource]]:
    """Yields all formats, as classes that carry a session's store settings to Spark's processes."""
    for one in FORMATS:
        yield type(one.name, (FormatSource,), {"of": one, "stores": stores})


def register(spark: Any) -> None:
    """Registers ``sparkonce-kafka``, ``-postgres``, ``-mysql``, ``-redis`` and ``-files`` as formats of a session.

    After that, ``df.writeStream.format("sparkonce-kafka")`` and ``df.write.format("sparkonce-kafka")`` write exactly
    once. See docs/formats.md.

    Args:
        spark: The session.
    """
    for source in sources(session_settings(spark)):
        spark.dataSource.register(source)

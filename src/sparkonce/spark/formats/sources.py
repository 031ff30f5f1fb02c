"""The data sources that Spark calls, one per format, and `register`, which adds them to a session."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkonce.arguments import nonempty
from sparkonce.driver.start import check_log
from sparkonce.errors import ConfigurationError
from sparkonce.log import DecisionLog
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.formats.ends import Ends, run_key
from sparkonce.spark.formats.options import FORMATS, Settings, SparkFormat, open_files, session_settings
from sparkonce.spark.formats.writers import FormatJobWriter, FormatStreamWriter, RunningBatch
from sparkonce.spark.views import arrow_schema
from sparkonce.storage.files import CheckpointFiles, prove
from sparkonce.storage.spark import SparkCheckpoint

CHECKPOINT, JOB, LOG = "checkpointlocation", "job", "log"

MOVED, PATIENCE = "checkpoint_moved", "outage_patience_s"

_OURS = (CHECKPOINT, JOB, LOG, MOVED, PATIENCE, "queryname")  # the last one is what Spark makes of queryName("…")

_JOBS = uuid.UUID("6c7d6b0e-5f0a-4b56-9a6e-0a3f5b1f7f11")
"""The UUID namespace in which a job's id is derived from its name."""


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
        # Derive the id also from the target, because a server's traces of the id are compared with this log.
        query = str(uuid.uuid5(_JOBS, target))
        sink = self._sink(options)
        columns = sink.columns(arrow_schema(schema))
        logs = open_files(LOG, folder, self.stores)
        prove(logs)
        log = self._log_at(logs.inside(str(uuid.uuid5(_JOBS, job))))
        ends = Ends(
            sink=sink,
            log=log,
            query=query,
            moved=_flag(options, MOVED),
            patience_s=_patience(options),
        )
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

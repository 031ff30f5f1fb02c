"""Runs a Spark Connect query: the checks on the client, and the run in the Python process next to the server.

Spark pickles the function that is passed to ``foreachBatch``, and calls it in one process next to the Connect server
for as long as the query runs (``pyspark.sql.connect.streaming.worker.foreach_batch_worker``). That process has no JVM,
so this module uses only PySpark's public API. Spark kills the process when the query ends, possibly in the middle of a
batch. The next run recovers, as it does after a killed driver.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.driver.outage import Outage
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.start import check_log
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.executor import SlotTask
from sparkonce.jvm import JvmCache
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.sweeping import LOSERS_END_WITHIN_S
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.source import SourceFacts, all_registered, registered
from sparkonce.sources.offsets import rows_read
from sparkonce.spark.arrow_batches import BYTES, WANTED_BYTES, ArrowBatches
from sparkonce.spark.grouping import Grouping, slots_decided
from sparkonce.spark.plans import sources_of_client
from sparkonce.spark.settings import QuerySettings
from sparkonce.spark.shipped import Needs, build_of
from sparkonce.spark.show.failures import message_and_next
from sparkonce.spark.slot_tasks import answers_through_connect
from sparkonce.spark.start.checks import input_offsets
from sparkonce.spark.start.executors import check_executors
from sparkonce.spark.work import SparkWork, check_plans
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce.version import __version__
from sparkonce.watch.listener import QueryListener

logger = logging.getLogger("sparkonce")

_TOLD_WITHIN_S = 2.0
_SERVER = "On the server of Spark Connect install the same sparkonce as on the client, with the extras of the sinks"


def check_can_connect(sinks: Sequence[TwoPhaseCommitSink], rows_per_slot: int | None) -> None:
    """Rejects sinks and settings that need the driver's JVM."""
    for sink in sinks:
        if sink.writes_with_session:
            raise ConfigurationError(
                f"Sink {sink.name!r} is a {type(sink).__name__}, which writes with a classic Spark session, and this "
                "query is one of Spark Connect.",
                next_step="Use a classic session for this query, or another sink; docs/connect.md lists them.",
                setting="sinks",
            )
    if rows_per_slot not in (None, 1):
        raise ConfigurationError(
            f"rows_per_slot={rows_per_slot}: Spark Connect does not show how many partitions a batch has, so its "
            "partitions cannot be grouped the same way again.",
            next_step="Leave it out: each partition is a slot. Fewer partitions (spark.sql.shuffle.partitions, or "
            "minPartitions of the source) make fewer slots.",
            setting="rows_per_slot",
        )


def start_on_server(
    writer: DataStreamWriter, df: DataFrame, settings: QuerySettings, commit: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """Starts a query on the server. Checks its columns; the first batch checks the rest there.

    Raises:
        SchemaError: If a sink rejects the columns.
        PreflightError: If the server's Python cannot load the code that commits the batches.
    """
    check_plans(settings.check_columns(df), ConnectWork)
    settings.sources = sources_of_client(df)
    try:
        return writer.foreachBatch(commit).start()
    except PySparkException as error:
        if "STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE" not in str(error):
            raise
        message, next_step = message_and_next(error)
        if "No module named" in message:
            next_step = f"{_SERVER}, for the Python that PYSPARK_PYTHON names there. See docs/connect.md."
        raise PreflightError(
            f"The server of Spark Connect cannot load this query. {message}", next_step=next_step
        ) from None


class ConnectWork(SparkWork):
    """Runs one batch's plan with PySpark's public API only. See `sparkonce.driver.work.BatchWork`.

    A collected result is never silently truncated. Spark ends it with ``ResultComplete`` (``ExecuteThreadRunner``), and
    PySpark's client reattaches until it has received that. Without reattachable execution, gRPC's status ends it.
    """

    is_alive: Callable[[], bool] = staticmethod(lambda: True)
    """Returns False once the query has been stopped. The run sets it."""

    def is_stopped(self) -> bool:
        """Returns True if the query is no longer running. Usually Spark has killed this process by then."""
        return not self.is_alive()

    def _described(self, _purpose: str) -> AbstractContextManager[None]:
        return nullcontext()

    def _cancel_if_stopped(self) -> None:
        """Does nothing: Spark kills a stopped query's process, and `ConnectRun` then interrupts its jobs."""

    def _let_tasks_end(self) -> None:
        """Waits long enough for Spark to kill the other tasks of a failed batch, which cannot be observed from here."""
        time.sleep(LOSERS_END_WITHIN_S)

    def _kinds(self, df: DataFrame) -> str:
        return str(df.schema.json())

    def _selected(self, df: DataFrame, key: Hashable, columns: Callable[[], Sequence[Column]]) -> DataFrame:
        return df.select(*self._cache.get(key, columns))

    def _master(self) -> str:
        return str(self._cache.get("master", lambda: self._df.sparkSession.conf.get("spark.master", "")))

    def _speculates(self) -> bool:
        return self._cache.get("speculates", super()._speculates)

    def _answers(self, rows: DataFrame, task: SlotTask, needs: Needs) -> tuple[Sequence[Row], int]:
        answers = answers_through_connect(rows, task, needs).collect()
        return answers, len(answers) // max(1, len(task.sinks))

    def _was_resubmitted(self, answers: Sequence[Row]) -> bool:
        """Returns True if other tasks may have run between the batch's own, as they do when a stage is resubmitted.

        Spark numbers the tasks of all jobs in one sequence, so a resubmitted stage leaves a gap. If all tasks of a
        stage ran again, there is no gap. The next sweep then finds the first tasks' transactions, within
        ``sweep_every_s`` seconds.
        """
        numbers = {answer["task"] for answer in answers}
        return bool(numbers) and max(numbers) - min(numbers) >= len(numbers)


class ConnectRun:
    """The run of a query in the process next to the server. A process has exactly one run."""

    def __init__(self, df: DataFrame, batch: int, settings: QuerySettings, listener: QueryListener) -> None:
        self._session = session = df.sparkSession
        self._settings, self._patience_s = settings, settings.timing.outage_patience_s
        self._cache = JvmCache()
        files = settings.open(session)
        self._checkpoint = SparkCheckpoint(files)
        self._query, self.run_id = self._running_query()
        offsets = self._offsets(batch)
        # Tasks keep running after the process that started them is killed. Interrupt an earlier run's tasks in this
        # session.
        session.interruptTag(tag := f"sparkonce-{self._query}")
        session.addTag(tag)
        self._limited = _LimitedByBytes()
        _tidy_at_end(session, tag, self._limited)
        check_plans(settings.check_columns(df), ConnectWork)
        check_log(files, Outage(self._patience_s))
        check_executors(session, tuple(settings.sinks.values()))
        sources = settings.sources
        kafka = [source for source in sources or () if source.format == "kafka"]
        before = input_offsets(self._checkpoint, batch - 1, self._patience_s)
        # If the sources are unknown, any registered source may have produced the offsets.
        made_by = [registered(source.format) for source in sources or ()]
        self._others = [one for one in made_by if one] if sources else [source for _, source in all_registered()]
        self.driver, self._topics = settings.begin_run(listener, self.run_id, self._query, files, kafka, offsets)
        if kafka:
            from sparkonce.sources.topics import check_names  # imports kafka-python

            is_decided = self.driver.state.view.decision(batch) is not None
            check_names(kafka, before or offsets, batch if is_decided else None)

    def commit(self, df: DataFrame, batch: int) -> BatchProgress:
        """Commits a batch."""
        offsets = self._offsets(batch)
        before = input_offsets(self._checkpoint, batch - 1, self._patience_s)
        rows = rows_read(before, offsets, self._others)
        decision = self.driver.state.view.decision(batch)
        if self._topics is not None and decision is None:
            self._topics.check_same()
        # A run in a classic session may have decided the batch as one slot.
        is_one = slots_decided(decision) == 1
        grouping = Grouping(1, merges=True) if is_one else None
        settings = self._settings
        work = ConnectWork(df, batch, settings.shares, grouping, settings.max_refused, self._limited, self._cache)
        work.is_alive = self._is_alive
        asked = BatchAsked(batch=batch, offsets=offsets, previous_offsets=before)
        return self.driver.run_batch(asked, work, rows)

    def end(self) -> None:
        """Ends the run."""
        self.driver.end()

    def _offsets(self, batch: int) -> tuple[str, ...]:
        if (offsets := input_offsets(self._checkpoint, batch, self._patience_s)) is None:
            raise missing_offsets(self._checkpoint.files.location, batch)
        return offsets

    def _running_query(self) -> tuple[str, str]:
        """Returns the id of the checkpoint's query and the id of its run."""
        found = self._checkpoint.query_id()
        running = {str(query.id): str(query.runId) for query in self._session.streams.active}
        if found is None or found not in running:
            raise ConfigurationError(
                f"checkpoint={self._checkpoint.files.location!r} holds {f'query {found}' if found else 'no query'}, "
                f"and this session runs {', '.join(running) or 'none'}.",
                next_step="Give ExactlyOnce the same folder as the query's option checkpointLocation, on a store that "
                "the server of Spark Connect reaches under the same name.",
                setting="checkpoint",
            )
        return found, running[found]

    def _is_alive(self) -> bool:
        try:
            found = self._session.streams.get(self._query)
            return found is not None and str(found.runId) == self.run_id
        except Exception as error:  # noqa: BLE001 - after any error, the wait still has its deadline
            logger.debug("Whether query %s still runs is not known: %s", self._query, error)
            return True


def missing_offsets(location: str, batch: int) -> ConfigurationError:
    """Returns the error for a checkpoint that lacks the offsets of a running batch."""
    return ConfigurationError(
        f"checkpoint={location!r} has no offsets/{batch}, which Spark writes before it runs a batch.",
        next_step="Give ExactlyOnce the same folder as the query's option checkpointLocation.",
    )


class _LimitedByBytes(ArrowBatches):
    """Limits Arrow batches by bytes, but only during a write, because the client uses the same session."""

    _is_set = False

    def bind(self, frames: Sequence[DataFrame], *, may_fail: bool) -> Sequence[DataFrame]:  # noqa: ARG002
        if frames and (conf := frames[0].sparkSession.conf).get(BYTES, None) is None:
            conf.set(BYTES, str(WANTED_BYTES))
            self._is_set = True
        return frames

    def release(self, session: SparkSession) -> None:
        if not self._is_set:
            return
        self._is_set = False
        try:
            session.conf.unset(BYTES)
        except Exception as error:  # noqa: BLE001 - if the server is gone, so is the session
            logger.debug("The session keeps %s: %s", BYTES, error)


def _tidy_at_end(session: SparkSession, tag: str, limited: ArrowBatches) -> None:
    """Ends the run's jobs and restores the session when Spark ends this process.

    Correctness does not depend on this, since the rows of those jobs are never committed.
    """

    def tidy() -> None:
        session.interruptTag(tag)
        limited.release(session)

    def end(number: int, _frame: Any) -> None:
        tidying = threading.Thread(target=tidy, daemon=True)
        tidying.start()
        tidying.join(_TOLD_WITHIN_S)
        os._exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def pickled(
    kind: Callable[..., Any], arguments: Mapping[str, Any], sources: tuple[SourceFacts, ...] | None
) -> tuple[object, ...]:
    """Returns the result of ``ExactlyOnce.__reduce__``, which `unpickled` reads on the server."""
    return unpickled, (kind, __version__, build_of("sparkonce"), cloudpickle.dumps((arguments, sources)))


def unpickled(kind: Callable[..., Any], version: str, build: str, data: bytes) -> Any:
    """Returns an `ExactlyOnce` with the settings that a Spark Connect client has pickled."""
    if (version, build) != (here := (__version__, build_of("sparkonce"))):
        raise ConfigurationError(
            f"The client has sparkonce {version} (build {build}), and the server of Spark Connect {here[0]} (build "
            f"{here[1]}).",
            next_step="Install the same on both.",
        )
    arguments, sources = cloudpickle.loads(data)
    made = kind(**arguments)
    made._settings.sources = sources
    return made

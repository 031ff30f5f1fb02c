"""Runs a batch's plan: the JVM feeds each task Arrow batches, which the task writes to the sinks in Python."""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from pyspark import StorageLevel, inheritable_thread_target
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from sparkonce.driver.work import LargerRowsError
from sparkonce.errors import PrepareError, SchemaError, SparkonceError, one_line
from sparkonce.executor import SinkTask, SlotTask
from sparkonce.guarantees import Guarantee
from sparkonce.jvm import JvmCache, quoted, types_inside
from sparkonce.protocol.codec import decode_handle
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.spark.arrow_batches import ArrowBatches
from sparkonce.spark.grouping import Grouping
from sparkonce.spark.python_worker import needs_of
from sparkonce.spark.shipped import Needs
from sparkonce.spark.show.failures import short_error
from sparkonce.spark.slot_tasks import answers_of
from sparkonce.spark.views import Share, ShareSample, arrow_schema, computed_once

if TYPE_CHECKING:
    from pyspark import StatusTracker

logger = logging.getLogger("sparkonce")

_FINGERPRINT = "__sparkonce_fingerprint_{}"
_MARK = "__sparkonce_refused_{}"
_CHECK_EVERY_S = 0.5
_CHECK_TASKS_EVERY_S = 0.1
_TASKS_END_WITHIN_S = 15.0
_QUIET_CHECKS = 2
_NEWEST_JOBS = 200
"""The number of recent jobs that are checked.

Spark retains a thousand. Each check costs a few calls, and older ones have ended.
"""
_ENDED = frozenset({"SUCCEEDED", "FAILED"})
_Written: TypeAlias = tuple[Sequence[Handle], bool]
"""The handles of a job; True if another attempt of one of its slots may have written, too."""
_Planned: TypeAlias = tuple[DataFrame, Sequence[SinkTask]]
"""The rows of a job, and the sinks that they are written to."""
_Result = TypeVar("_Result")


class SparkWork:
    """Runs one batch's plan. See `sparkonce.driver.work.BatchWork`.

    Args:
        grouping: Groups the partitions into fewer slots; None leaves them as they are.
        max_refused: The number of the batch's rows that may go to a dead-letter sink.
        arrow: The limits for Arrow batches, derived from earlier batches.
        cache: JVM objects that earlier batches have created.
    """

    def __init__(
        self,
        df: DataFrame,
        batch: int,
        shares: Sequence[Share],
        grouping: Grouping | None = None,
        max_refused: int = 0,
        arrow: ArrowBatches | None = None,
        cache: JvmCache | None = None,
    ) -> None:
        self._df = df
        self._cache = cache or JvmCache()
        self._arrow = arrow or ArrowBatches()
        self._sent: list[tuple[int, int]] = []
        self._grouping = grouping
        self._batch = batch
        self._shares = shares
        self._max_refused = max_refused

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        """Runs the plan with one Spark job per view, all at the same time."""
        asked = [share for share in self._shares if share.sinks.keys() & sinks.keys()]
        if unwritten := sinks.keys() - {name for share in asked for name in share.sinks}:
            raise PrepareError(
                f"No part of the batch is written to sinks {sorted(unwritten)}: their rows would be lost."
            )
        exact = all(sink.guarantee is Guarantee.EXACTLY_ONCE for share in asked for sink in share.sinks.values())
        purpose = f"writing batch {self._batch} to {', '.join(sinks)}"
        try:
            with self._described(purpose), computed_once(self._df, asked) as batch:
                planned = [self._plan(share, share.of(batch), sinks) for share in asked]
                written = self._write_planned(planned, only, computed, may_fail=exact)
        except Exception as error:
            if any(sink.guarantee is Guarantee.EXACTLY_ONCE for share in asked for sink in share.sinks.values()):
                self._let_tasks_end()
            if self._arrow.met_large_rows(error):
                logger.info("Batch %d has larger rows than the batch before, and is written once more.", self._batch)
                raise LargerRowsError("A row is larger than those of the batch before.") from None
            if isinstance(error, SparkonceError):
                raise
            raise short_error(error) from None
        finally:
            self._arrow.release(self._df.sparkSession)
        return [handle for handles, _ in written for handle in handles], any(again for _, again in written)

    def _write_planned(
        self,
        planned: Sequence[_Planned],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None,
        *,
        may_fail: bool,
    ) -> Sequence[_Written]:
        frames: Sequence[DataFrame] = self._arrow.bind([rows for rows, _ in planned], may_fail=may_fail)
        self._sent = []
        if computed is not None:
            frames = self._run([partial(rows.localCheckpoint, storageLevel=StorageLevel.DISK_ONLY) for rows in frames])
            computed()
        tasks = [each for _, each in planned]
        jobs = [partial(self._write_rows, rows, each, only) for rows, each in zip(frames, tasks, strict=True)]
        written = self._run(jobs)
        self._arrow.learn(self._sent)
        return written

    def _described(self, purpose: str) -> AbstractContextManager[None]:
        """Describes the jobs inside in Spark's UI."""
        return described(self._df.sparkSession, purpose)

    def _run(self, jobs: Sequence[Callable[[], _Result]]) -> Sequence[_Result]:
        """Runs the jobs in parallel. Raises the first error once all have ended, so that no task is writing anymore."""
        if len(jobs) == 1:
            return [jobs[0]()]
        # Spark finds a stopped query's jobs by local properties of the query's thread. So each job's thread gets its
        # own copy of these properties; a shared one would not work, because running jobs change some of them.
        session = self._df.sparkSession
        with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
            futures = [pool.submit(inheritable_thread_target(session)(job)) for job in jobs]
            while wait(futures, timeout=_CHECK_EVERY_S).not_done:
                self._cancel_if_stopped()
        return [future.result() for future in futures]

    def is_stopped(self) -> bool:
        """Returns True if the query is being stopped: Spark interrupts its thread."""
        return bool(self._df.sparkSession.sparkContext._jvm.java.lang.Thread.currentThread().isInterrupted())

    def _cancel_if_stopped(self) -> None:
        """Cancels jobs that began after Spark had cancelled the stopped query's jobs, which it does only once."""
        context = self._df.sparkSession.sparkContext
        if self.is_stopped():
            group = context.getLocalProperty("spark.jobGroup.id")
            context._jsc.sc().cancelJobGroup(group, f"because query {group} was stopped")

    def _let_tasks_end(self) -> None:
        """Waits for the other tasks of a failed batch, which Spark cancels without waiting for them.

        After the wait, the next sweep finds all transactions that these tasks have started. If a Python worker has not
        exited after ``spark.python.task.killTimeout`` (2 s), Spark kills it within another 2 s. A worker whose task
        ended while it was receiving rows may live a moment longer: it notices that its input has ended early, and
        aborts.
        """
        give_up_at = time.monotonic() + _TASKS_END_WITHIN_S
        try:
            context = self._df.sparkSession.sparkContext
            group = context.getLocalProperty("spark.jobGroup.id")
            # If a query is stopped just before it submits a job, it still submits the job, but does not wait for it.
            context._jsc.sc().cancelJobGroup(group, "because its batch has failed")
            quiet = 0
            while quiet < _QUIET_CHECKS:
                quiet = quiet + 1 if _tasks_have_ended(context.statusTracker(), group) else 0
                if time.monotonic() >= give_up_at:
                    logger.warning(
                        "Tasks of batch %d had not ended %.0f s after its job failed. The query's next start aborts "
                        "the transactions that they still open.",
                        self._batch,
                        _TASKS_END_WITHIN_S,
                    )
                    return
                time.sleep(_CHECK_TASKS_EVERY_S)
        except Exception:
            # Spark may be gone by now. Raise the job's own error instead.
            logger.debug("The running tasks of batch %d are unknown.", self._batch, exc_info=True)

    def _plan(self, share: Share, df: DataFrame, sinks: Mapping[str, Owner]) -> _Planned:
        """Plans a view's job: its columns, a fingerprint for each sink, and the sinks' tasks."""
        # A view or the user's own function may return different columns in each batch.
        kinds = self._kinds(df)
        schema = self._cache.get(("schema", kinds), lambda: arrow_schema(df.schema))
        tasks: list[SinkTask] = []
        hashed: list[tuple[str, tuple[str, ...]]] = []
        marks: list[str] = []
        for number, name in enumerate(name for name in sinks if name in share.sinks):
            sink, dead_letters, mark = share.sinks[name], share.dead_letters.get(name, ""), ""
            dead_letters = dead_letters if dead_letters in sinks else ""  # a replay has only its decision's sinks
            columns = share.columns(sink, schema)
            if share.is_for_dead_letters(name):
                tasks.append(SinkTask(sink=sink, owner=sinks[name], columns=columns))
                continue
            checked = sink.checked(df, column := _MARK.format(number) if dead_letters else "")
            if checked is not df:
                df, mark = checked, column if column and column in checked.columns else ""
            fingerprint = _FINGERPRINT.format(number)
            hashed.append((fingerprint, columns))
            marks += [mark] if mark else []
            tasks.append(
                SinkTask(
                    sink=sink,
                    owner=sinks[name],
                    columns=columns,
                    fingerprint=fingerprint,
                    dead_letters=dead_letters,
                    mark=mark,
                )
            )
        needed = {column: None for task in tasks if task.fingerprint for column in task.columns}
        names = (*needed, *marks)
        rows = self._selected(
            df,
            (kinds, names, *hashed),
            lambda: [*map(_column, names), *(row_hash(some, df.schema).alias(name) for name, some in hashed)],
        )
        if self._grouping is not None and self._grouping.is_worth_it(rows):
            rows = self._grouping.grouped(rows)
        return rows, tasks

    def _kinds(self, df: DataFrame) -> str:
        """Returns a string that identifies the columns and their types."""
        return str(df._jdf.schema().json())

    def _selected(self, df: DataFrame, key: Hashable, columns: Callable[[], Sequence[Column]]) -> DataFrame:
        """Returns these columns of the rows. The key contains everything that the columns depend on."""
        return DataFrame(df._jdf.select(self._cache.get(key, lambda: df._jcols(*columns()))), df.sparkSession)

    def _write_rows(
        self, rows: DataFrame, tasks: Sequence[SinkTask], only: frozenset[tuple[str, int]] | None
    ) -> _Written:
        needs = needs_of([task.sink for task in tasks], self._master())
        if any(task.sink.guarantee is Guarantee.AT_MOST_ONCE for task in tasks):
            # After losing shuffle files, Spark resubmits a stage whose tasks may already have written, and numbers
            # their attempts from 0 again, so a task cannot tell that it is a repeat. Compute the rows first: with no
            # shuffle upstream, Spark never resubmits the stage. It only retries tasks, and a task can tell that from
            # its attempt number.
            rows = rows.localCheckpoint()
            # Do not check the addresses. The client waits for an unreachable server, but after a failed check, the
            # driver would not write these rows again.
            needs["addresses"] = []
        task = SlotTask(batch=self._batch, sinks=tuple(tasks), only=only, max_refused=self._max_refused)
        answers, slots = self._answers(rows, task, needs)
        if any(answer["batch"] != self._batch for answer in answers):
            raise PrepareError(f"Spark's tasks wrote batch {self._batch} as another one.")
        handles = [decode_handle(answer["handle"]) for answer in answers]
        self._sent.append((sum(answer["rows"] for answer in answers), sum(answer["size"] for answer in answers)))
        counts = {part.sink.name: sum(handle.sink == part.sink.name for handle in handles) for part in tasks}
        if any(count != slots for count in counts.values()):
            raise PrepareError(f"The batch has {slots} slots, but the handles returned are {counts} by sink.")
        self._check_refused(handles, [part.sink.name for part in tasks if not part.fingerprint])
        again = any(answer["attempt"] > 0 for answer in answers)
        return handles, again or self._speculates() or self._was_resubmitted(answers)

    def _master(self) -> str:
        return str(self._df.sparkSession.sparkContext.master)

    def _speculates(self) -> bool:
        return str(self._df.sparkSession.conf.get("spark.speculation", "false")).lower() == "true"

    def _answers(self, rows: DataFrame, task: SlotTask, needs: Needs) -> tuple[Sequence[Row], int]:
        """Writes the rows. Returns the tasks' answers, and the number of tasks, which reveals a truncated result."""
        written = answers_of(rows, task, needs, self._cache)
        answers = written.collect()
        return answers, _slots_of(written)

    def _check_refused(self, handles: Sequence[Handle], dead_letters: Sequence[str]) -> None:
        for name in dead_letters:
            refused = sum(handle.rows for handle in handles if handle.sink == name)
            if refused > self._max_refused:
                raise PrepareError(
                    f"{refused} rows of batch {self._batch} are refused, and max_refused is {self._max_refused}.",
                    next_step=f"Correct the rows, or raise max_refused if so many may go to sink {name!r}.",
                )

    def _was_resubmitted(self, answers: Sequence[Row]) -> bool:
        """Returns True if Spark resubmitted one of the tasks' stages, or no longer knows about a stage.

        Spark resubmits a stage when it loses an executor along with its shuffle files, and may notice that only after
        this call. Task attempts are then numbered from 0 again, and a Python `TaskContext` does not expose the stage's
        attempt.
        """
        # PySpark's own status tracker reads far more about a stage
        tracker = self._df.sparkSession.sparkContext._jsc.statusTracker()
        found = [tracker.getStageInfo(stage) for stage in {answer["stage"] for answer in answers}]
        return any(stage is None or stage.currentAttemptId() > 0 for stage in found)

    def run_into_nothing(self) -> None:
        """Runs the plan into Spark's ``noop`` sink."""
        try:
            with self._described(f"running batch {self._batch} once more, which writes nothing"):
                self._df.write.format("noop").mode("overwrite").save()
        except Exception as error:  # noqa: BLE001 - Spark may raise any error for a failed job
            raise short_error(error) from None


def _slots_of(collected: DataFrame) -> int:
    """Returns the number of tasks in the job that collected this frame.

    PySpark does not detect a truncated result, so the number of collected rows is compared with this number. Spark
    retains the plan and RDD of the job even after adaptive execution, so this takes only a few calls and no job.
    """
    return int(collected._jdf.queryExecution().executedPlan().execute().getNumPartitions())


def _tasks_have_ended(tracker: StatusTracker, group: str) -> bool:
    """Returns True if Spark has recorded the end of the group's recent jobs and of the tasks of those that failed.

    Spark records events in order, with a delay: once it shows that a job has ended, it knows all of the job's tasks.
    """
    jobs = sorted(tracker.getJobIdsForGroup(group))[-_NEWEST_JOBS:]
    infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
    stages = {stage for info in infos if info.status == "FAILED" for stage in info.stageIds}
    return all(info.status in _ENDED for info in infos) and not any(
        info.numActiveTasks for stage in stages if (info := tracker.getStageInfo(stage)) is not None
    )


def check_plans(samples: Sequence[ShareSample], kind: type[SparkWork] = SparkWork) -> None:
    """Analyzes the exact plan of each view's job on a batch without rows, including fingerprints and row checks."""
    nobody = Owner(query="0" * 12, token=Token(0, "0" * 8))
    for one in samples:
        share = one.share
        try:
            rows, _ = kind(one.batch, 0, [share])._plan(share, one.frame, dict.fromkeys(share.sinks, nobody))
            _ = rows.columns  # makes Spark Connect analyze the plan
        except AnalysisException as error:
            for column in one.frame.schema:
                _check_fingerprint(one.frame, column)
            raise SchemaError(
                f"The rows of sink {sorted(share.sinks)} cannot be prepared: {one_line(str(error).splitlines()[0])}",
                next_step="Change the query, or the sink's view, so that Spark accepts these columns.",
            ) from error


def _check_fingerprint(rows: DataFrame, column: StructField) -> None:
    try:
        _ = rows.select(row_hash([column.name], rows.schema)).columns
    except AnalysisException as error:
        raise SchemaError(
            f"Column {column.name!r} is {column.dataType.simpleString()}, for which Spark has no hash. Without one a "
            "repeated batch cannot be compared with the first one.",
            next_step="Turn it into a string, for example with to_json, or drop it.",
        ) from error


def _column(name: str) -> Column:
    return F.col(quoted(name))


def row_hash(columns: Sequence[str], schema: StructType) -> Column:
    """Returns a bigint hash of a row's values.

    ``xxhash64`` skips nulls, so with several columns the hash also covers which of them are null.
    """
    values = [_column(column) for column in columns]
    kinds = {one.name: one.dataType for one in schema}
    hashed = [_hashable(value, kinds[column]) for value, column in zip(values, columns, strict=True)]
    return F.xxhash64(*hashed, *(value.isNull() for value in values if len(values) > 1))


def _hashable(value: Column, kind: DataType) -> Column:
    """Returns a value in a form that ``xxhash64`` accepts: it rejects variants, and maps, which have no order."""
    if isinstance(kind, VariantType):
        return F.to_json(value)
    if not _is_refused(kind):
        return value
    if isinstance(kind, MapType):

        def entry(one: Column) -> Column:
            found = _hashable(one["value"], kind.valueType)
            return F.xxhash64(_hashable(one["key"], kind.keyType), found, one["value"].isNull())

        return F.array_sort(F.transform(F.map_entries(value), entry))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: _hashable(one, kind.elementType))
    fields = [_hashable(value.getField(one.name), one.dataType) for one in cast(StructType, kind)]
    return F.when(value.isNotNull(), F.struct(*fields))


def _is_refused(kind: DataType) -> bool:
    return isinstance(kind, MapType | VariantType) or any(map(_is_refused, types_inside(kind)))


_DESCRIPTION = "spark.job.description"


@contextmanager
def described(session: SparkSession, text: str) -> Iterator[None]:
    """Adds a line to the description of the jobs that this thread submits, below Spark's own line for the batch."""
    context = session.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    line = html.escape(f"sparkonce: {text}", quote=False)
    context.setLocalProperty(_DESCRIPTION, f"{before}<br/>{line}" if before else line)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # Spark may be gone; the error being raised says so
            context.setLocalProperty(_DESCRIPTION, before)
        raise
    context.setLocalProperty(_DESCRIPTION, before)

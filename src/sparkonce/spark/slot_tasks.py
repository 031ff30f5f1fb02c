"""Writes the slots of a batch in Spark's tasks: the Python function that the tasks run, and their answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.util import PythonEvalType

from sparkonce.executor import SlotTask, write_slot
from sparkonce.jvm import JvmCache, quoted
from sparkonce.protocol.codec import encode_handle
from sparkonce.spark.python_worker import checked_first, lighten_worker
from sparkonce.spark.shipped import Needs

_BATCH = "sparkonce.batch"
_BY_PROPERTY = -1
_OUTPUT = pa.schema(
    [
        ("handle", pa.string()),
        ("batch", pa.int64()),
        ("stage", pa.int32()),
        ("attempt", pa.int32()),
        ("task", pa.int64()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
    ]
)
"""The rows that a task returns, one per handle. The first row has the number of input rows and their bytes."""
_ANSWER = from_arrow_schema(_OUTPUT)


def answers_of(rows: DataFrame, task: SlotTask, needs: Needs, cache: JvmCache) -> DataFrame:
    """Returns the answers of the tasks that write these rows, as a DataFrame to collect once, in this thread.

    The function that the tasks run never changes, so it is created only for a run's first batch. Tasks get the
    batch's number from a local property, which Spark sends with each task.
    """
    session, context = rows.sparkSession, rows.sparkSession.sparkContext
    context.setLocalProperty(_BATCH, str(task.batch))
    pickled = cloudpickle.dumps(_slot_writer(replace(task, batch=_BY_PROPERTY)))

    def function() -> Column:
        function = pandas_udf(checked_first(pickled, needs), _ANSWER, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        return function(*[F.col(quoted(name)) for name in rows.columns])

    # PySpark includes the added Python files and the workers' environment in the function.
    environment = repr((needs, context._python_includes, context.environment))
    column = cache.get(("function", pickled, environment), function)
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), session)


def answers_through_connect(rows: DataFrame, task: SlotTask, needs: Needs) -> DataFrame:
    """Like `answers_of`, for Spark Connect. It has no local properties, so each batch has its own function."""
    return rows.mapInArrow(checked_first(cloudpickle.dumps(_slot_writer(task)), needs), _ANSWER)


def _slot_writer(task: SlotTask):  # type: ignore[no-untyped-def]
    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = context and (context.getLocalProperty(_BATCH) if task.batch == _BY_PROPERTY else task.batch)
        if context is None or number is None:
            raise RuntimeError("Rows can only be written inside a Spark task of a batch.")
        copy = f"{context.stageId()}.{context.taskAttemptId()}.{context.attemptNumber()}"
        attempt = context.attemptNumber()
        sent = [0, 0]
        whole = replace(task, batch=int(number))
        handles = write_slot(_counted(rows, sent), whole, slot=context.partitionId(), copy=copy, attempt=attempt)
        lighten_worker()
        others = [0] * (len(handles) - 1)
        yield pa.RecordBatch.from_pydict(
            {
                "handle": [encode_handle(handle) for handle in handles],
                "batch": [whole.batch] * len(handles),
                "stage": [context.stageId()] * len(handles),
                "attempt": [attempt] * len(handles),
                "task": [context.taskAttemptId()] * len(handles),
                "rows": [sent[0], *others],
                "size": [sent[1], *others],
            },
            schema=_OUTPUT,
        )

    return write


def _counted(rows: Iterator[pa.RecordBatch], sent: list[int]) -> Iterator[pa.RecordBatch]:
    """Yields batches, and counts their rows and bytes."""
    for batch in rows:
        sent[0] += batch.num_rows
        sent[1] += batch.nbytes
        yield batch

from __future__ import annotations

import logging
from typing import Any

import pytest

from sparkonce.errors import OutageError, PrepareError, UnknownOutcomeError
from sparkonce.spark.show.failures import MOST_CHARACTERS, message_and_next, short_error, without_causes
from sparkonce.spark.work import SparkWork

CALLED = "py4j.protocol.Py4JJavaError: An error occurred while calling o66.collectToPython.\n: "
STOPPED = (
    f"{CALLED}org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 38 cancelled Query totals [id = f918eb24, "
    "runId = f4d4d9fb] was stopped SQLSTATE: XXKDA\n\tat org.apache.spark.scheduler.DAGScheduler"
)
FAILED = (
    f"{CALLED}org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times\n"
    'Traceback (most recent call last):\n  File "job.py", line 3\nValueError: bad row\n\tat java.lang.Thread.run\n'
    "Caused by: java.lang.InterruptedException: sleep"
)


def root_cause(error: Exception) -> str:
    return message_and_next(error)[0]


@pytest.mark.parametrize(
    "text",
    [
        STOPPED,
        f"{CALLED}java.lang.InterruptedException\n\tat java.base/java.lang.Object.wait",
        f"{CALLED}java.nio.channels.ClosedByInterruptException\n\tat java.base/java.nio.channels.FileChannel",
    ],
)
def test_a_query_that_is_stopped_says_so_in_sparks_words_and_logs_no_trace(text, caplog):
    caplog.set_level(logging.INFO)
    error = short_error(RuntimeError(text))
    # The text that StreamExecution.PROXY_ERROR looks for.
    assert "py4j.protocol.Py4JJavaError: An error occurred while calling" in error.message
    assert "java.lang.InterruptedException" in error.message
    assert caplog.records == []


@pytest.mark.parametrize(
    "text",
    [
        (
            f"{CALLED}org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 38 cancelled as part of cancellation "
            "of all jobs SQLSTATE: XXKDA"
        ),
        FAILED,
        (
            f"{CALLED}org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 "
            "times, most recent failure: Lost task 0.3 in stage 1.0: java.lang.InterruptedException: sleep"
        ),
    ],
)
def test_a_job_that_fails_is_a_failure_with_its_trace_in_the_log(text, caplog):
    error = short_error(RuntimeError(text))
    assert "InterruptedException" not in error.message
    assert len(error.message.splitlines()) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]


PACKAGES = "/env/lib/python3.11/site-packages"
UDF = f"""{CALLED}org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Traceback (most recent call last):
  File "{PACKAGES}/pyspark.zip/pyspark/worker.py", line 1227, in main
    process()
  File "{PACKAGES}/sparkonce/executor.py", line 84, in write_slot
    for batch in rows:
  File "/jobs/job.py", line 23, in total
    return prices.apply(lambda price: of[price])
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{PACKAGES}/pandas/core/series.py", line 5575, in apply
    ).apply()
  File "pandas/_libs/lib.pyx", line 3390, in pandas._libs.lib.map_infer
  File "/jobs/prices.py", line 7, in <lambda>
    return of[price]
           ~~^^^^^^^
  File "/usr/lib/python3.11/collections/__init__.py", line 1015, in __getitem__
    raise KeyError(key)
%s
	at org.apache.spark.api.python.BasePythonRunner
"""


def test_whose_line_is_told():
    inner = UDF[UDF.index('  File "/jobs/prices.py"') : UDF.index("%s")]
    text = UDF.replace(inner, "") % "KeyError: 'nope'"
    own = "(/jobs/job.py, line 23: return prices.apply(lambda price: of[price]))"
    assert root_cause(RuntimeError(text)) == f"KeyError: 'nope' {own}"

    text = UDF.replace("/jobs/", f"{PACKAGES}/shop/") % "KeyError: 'nope'"
    assert root_cause(RuntimeError(text)) == f"KeyError: 'nope' ({PACKAGES}/shop/prices.py, line 7: return of[price])"
    assert root_cause(RuntimeError(UDF.replace("/jobs/", "/usr/lib/python3.11/") % "KeyError: 'nope'")).startswith(
        f"KeyError: 'nope' ({PACKAGES}/pandas/core/series.py, line 5575"
    )


def test_what_a_user_is_told_of_a_query_that_failed():
    ours = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised by the Python "
        'Proxy. Return Message: Traceback (most recent call last):\n  File "run.py", line 1, in run\n'
        "sparkonce.errors.PrepareError: no room. Next: make room.\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming "
        "Query ===\nIdentifier: totals"
    )
    assert message_and_next(RuntimeError(ours)) == ("PrepareError: no room.", "make room.")
    theirs = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Gone. SQLSTATE: XXKST\n=== Query"
    message, next_step = message_and_next(RuntimeError(theirs))
    assert message == "RuntimeError: Gone."
    assert "start the query again" in next_step


LOST = (
    f"{CALLED}org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, "
    "most recent failure: Lost task 1.3 in stage 3.0 (TID 9) (host executor driver): org.apache.spark.SparkException: "
)


def test_a_worker_that_died_is_named_as_one():
    died = f"{LOST}Python worker exited unexpectedly (crashed)\n\tat org.apache.spark.api.python.BasePythonRunner"
    error = short_error(RuntimeError(died))
    assert error.message == (
        "A Python worker died on host executor driver: Task 1 in stage 3.0 failed 4 times. It was killed for its "
        "memory, or crashed in native code. Python worker exited unexpectedly (crashed)."
    )
    for word in ("dmesg", "spark.python.worker.faulthandler.enabled", "spark.executor.memoryOverhead"):
        assert word in error.next_step

    said = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark"
    traced = f"Traceback:\npyspark.errors.exceptions.base.PySparkRuntimeError: {said} cannot run\n\tat org.apache.spark"
    error = short_error(RuntimeError(f"{LOST}{traced}"))
    assert error.message == "Python 3.10 runs the tasks on host host (executor driver), and Python 3.11 the driver."
    assert "--archives" in error.next_step

    gone = f"{LOST}ExecutorLostFailure (executor 3 exited)\nDriver stacktrace:\n\tat org.apache.spark"
    assert root_cause(RuntimeError(gone)).startswith("RuntimeError: Job aborted due to stage failure: Task 1 in stage")
    assert "ExecutorLostFailure" in root_cause(RuntimeError(gone))


def test_a_module_that_workers_do_not_have_is_told_with_where_they_come_from():
    """This happens if a job was started by the path of its Python and its environment is not active."""

    class WorkersError(RuntimeError):
        """As PySpark raises it for a SQL task: the message is only the worker's traceback."""

        def __init__(self, traced: str) -> None:
            super().__init__(
                f"\n  An exception was thrown from the Python worker. Please see the stack trace.\n{traced}"
            )
            self._stackTrace = f"{LOST}{traced}"

    told = "ModuleNotFoundError: No module named 'sparkonce'"
    error = short_error(WorkersError(f'Traceback (most recent call last):\n  File "x"\n{told}\n'))
    assert error.message == f"{told} on host host (executor driver)"
    for word in ("PYSPARK_PYTHON", "--archives"):
        assert word in error.next_step
    assert root_cause(RuntimeError(f'Traceback (most recent call last):\n  File "x"\n{told}\n')) == told


@pytest.mark.parametrize(
    ("text", "beginning", "next_step"),
    [
        ("sparkonce.errors.PrepareError: cannot {} Next: start again.", "PrepareError: cannot xxx", "start again."),
        ("[USER_RAISED_EXCEPTION] cannot {} Next: start again. SQLSTATE: P0001", "cannot xxx", "start again."),
        ("ValueError: {}", "ValueError: xxx", ""),
        ("ValueError: short Next: {}", "ValueError: short Next: xxx", ""),
    ],
)
def test_of_a_long_cause_the_beginning_and_the_advice_are_told(text, beginning, next_step):
    error = RuntimeError(text.format("x" * 45_000))
    message, advice = message_and_next(error)
    assert message.startswith(beginning)
    assert message.endswith("x…")
    assert len(f"{message} Next: {advice}") == MOST_CHARACTERS
    assert advice == next_step or not next_step
    assert len(str(short_error(error))) <= MOST_CHARACTERS


def test_a_plan_that_is_stopped_while_its_rows_go_nowhere_says_so_too():
    class Plan:
        """A DataFrame whose job is stopped, with its session."""

        def __getattr__(self, _: str) -> Any:
            return self

        def __call__(self, *_: object) -> Any:
            return self

        def save(self) -> None:
            raise RuntimeError(STOPPED)

    plan: Any = Plan()
    with pytest.raises(PrepareError, match="The query was stopped"):
        SparkWork(plan, 3, ()).run_into_nothing()


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("sparkonce.errors.OutageError", OutageError),
        ("sparkonce.errors.UnknownOutcomeError", OutageError),
        ("sparkonce.errors.PrepareError", PrepareError),
        ("sparkonce.errors.PreflightError", PrepareError),
        ("some.errors.OutageError", PrepareError),
    ],
)
def test_an_outage_that_a_task_met_is_still_one_behind_sparks_traces(raised, kind):
    text = FAILED.replace("ValueError: bad row", f"{raised}: no answer. Next: start the server.")
    assert type(short_error(RuntimeError(text))) is kind


def test_the_advice_of_a_tasks_error_is_the_next_step():
    said = "sparkonce.errors.PrepareError: a NUL. Next: take it out."
    error = short_error(RuntimeError(FAILED.replace("ValueError: bad row", said)))
    assert (error.message, error.next_step) == ("a NUL.", "take it out.")

    error = short_error(RuntimeError(FAILED.replace("bad row", "bad row. Next: look")))
    assert (error.message, error.next_step) == ("ValueError: bad row. Next: look (job.py, line 3)", "")


@pytest.mark.parametrize("text", ["An error occurred.\n: java.lang.InterruptedException\n\tat", "no broker"])
def test_what_led_to_an_error_is_left_out_but_for_a_stop(text):
    """Spark reports a stopped query as failed unless the error contains Spark's own text."""
    error = UnknownOutcomeError("Not listed.", next_step="start again.")
    error.__cause__ = RuntimeError(text)
    told = without_causes(error)
    assert told.__cause__ is told.__context__ is None
    assert ("java.lang.InterruptedException" in str(told)) == ("Interrupted" in text)
    assert str(without_causes(told)) == str(told)


def test_a_topic_that_is_gone_is_named_with_the_setting_that_reads_on():
    said, next_step = message_and_next(
        Exception(
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Some data may have been lost because "
            "they are not available in Kafka any more;\neither the data was aged out by Kafka or the topic may have "
            "been deleted before all the data in the\ntopic was processed.\nIf you don't want your streaming query to "
            "fail on such cases, set the source option failOnDataLoss to false.\nReason: Partitions Set(pt.b-0) have "
            "been deleted. SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1, runId = 2]"
        )
    )
    assert (
        said == "Kafka does not have what this query has read or should read: Partitions Set(pt.b-0) have been deleted."
    )
    assert "fail_on_data_loss=False" in next_step


def test_an_error_in_a_view_is_told_with_its_line():
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018 - raising is the test
    assert short_error(raised.value).message == (
        f"ZeroDivisionError: division by zero ({__file__}, line {raised.tb.tb_lineno}: 1 / 0  # noqa: B018 - raising "
        "is the test)"
    )

"""What really went wrong in a Spark job: the Python error of a task, out of the traces that Spark wraps around it."""

from __future__ import annotations

import logging
import re

from sparkonce.errors import OutageError, PrepareError, UnknownOutcomeError

logger = logging.getLogger("sparkonce")

MOST_CHARACTERS = 2000
"""Of an error's text. Spark's own search in it, see `short_error`, needs it short."""
_MOST_ADVICE = 1000
_ADVICE = " Next: "
_OUTAGES = frozenset({f"sparkonce.errors.{kind.__name__}" for kind in (OutageError, UnknownOutcomeError)})
"""Errors of a task after which the driver may wait and write the batch again."""

_RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<said>.+)$", re.MULTILINE)
_USER_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<said>.+?) SQLSTATE: P0001", re.DOTALL)
"""What Spark makes of ``raise_error``, in a plan's own words."""

_SPARK = ("org.apache.spark.", "java.", "py4j.", "pyspark.")
_INTERRUPTED = re.compile(
    r"InterruptedException|InterruptedIOException|ClosedByInterruptException|SPARK_JOB_CANCELLED\].* was stopped"
)
"""What a job says whose query is stopped while it runs. The first three are those that Spark looks for
(``StreamExecution.IO_EXCEPTION_NAMES``), the last is its reason for cancelling the query's jobs
(``StreamExecution.stop``), not a user's who cancels one."""

_TASK_FAILED = "Job aborted due to stage failure"
"""Why a job ended on its own, whatever its tasks' traces hold."""

_WORKER = re.compile(r"Python worker exited unexpectedly[^\n]*|\[PYTHON_VERSION_MISMATCH\][^\n]*")
"""What Spark says of a Python worker that died, or is another Python than the driver's."""

_JOB = re.compile(rf"{_TASK_FAILED}: [^\n]+")

_STOPPED = "py4j.protocol.Py4JJavaError: An error occurred while calling collect: java.lang.InterruptedException"
"""What Spark looks for in a ``foreachBatch`` function's error to tell a stopped query from a failed one
(``StreamExecution.PROXY_ERROR``)."""


def short_error(error: BaseException) -> PrepareError:
    """The failure of a job as one of our errors; the traces go to the log.

    Spark searches the text of the error by a regular expression that recurses for each character, and a long text
    overflows its stack. So the text is kept short, and a query that was stopped says so in the words Spark expects.
    """
    text = str(error)
    if _INTERRUPTED.search(text) and _TASK_FAILED not in text and not _python_errors(text):
        logger.debug("a batch's job was stopped", exc_info=error)
        return PrepareError(f"the query was stopped in the middle of a batch ({_STOPPED})", stopped=True)
    raised = _ours(text)
    outage = bool(raised) and raised[-1]["kind"] in _OUTAGES
    logger.log(logging.DEBUG if outage else logging.ERROR, "a batch's job failed", exc_info=error)
    told = root_cause(error)
    message, next_step = told.rsplit(_ADVICE, 1) if raised and _ADVICE in told else (told, "")
    return (OutageError if outage else PrepareError)(message, next_step=next_step)


def root_cause(error: BaseException) -> str:
    """One line, of a bounded length, that names the error of the task that failed.

    An error of ours wins, then what the plan itself raises, then the last Python error in the text, then a worker that
    died or is another Python, then why the job ended, then the error's own first line. Of a long one the middle is left
    out: what it begins with, and our advice, are told.
    """
    return _shortened(_cause(error))


def _cause(error: BaseException) -> str:
    text = str(error)
    found = _python_errors(text)
    ours = _ours(text)
    if (raised_by_plan := _USER_RAISED.search(text)) is not None and not ours:
        return " ".join(raised_by_plan["said"].split())
    if found:
        raised = (ours or found)[-1]
        return f"{raised['kind'].removeprefix('sparkonce.errors.')}: {raised['said']}"
    job = _job(text)
    if (worker := _WORKER.search(text)) is not None:
        what = "died (its log, or the system's, says of what)" if "exited" in worker[0] else "is another Python"
        return f"A Python worker {what}: {worker[0]}" + (f" {job}" if job else "")
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {job or (lines[0] if lines else '')}"


def _job(text: str) -> str:
    """Why a job ended, without words by which Spark would take it for a query that was stopped; empty if none ended."""
    found = _JOB.search(text)
    if found is None:
        return ""
    return found[0].partition(", most recent failure")[0] if _INTERRUPTED.search(found[0]) else found[0]


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    said, _, advice = text.rpartition(_ADVICE)
    end = f"{_ADVICE}{advice}"[:_MOST_ADVICE] if said else ""
    return f"{text[: MOST_CHARACTERS - len(end) - 1]}…{end}"


def _ours(text: str) -> list[re.Match[str]]:
    return [match for match in _python_errors(text) if match["kind"].startswith("sparkonce.")]


def _python_errors(text: str) -> list[re.Match[str]]:
    return [match for match in _RAISED.finditer(text) if not match["kind"].startswith(_SPARK)]

"""Finds the cause of a failed Spark job: the Python error of a task, inside the stack traces that Spark adds."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import OutageError, PrepareError, SparkonceError, UnknownOutcomeError

logger = logging.getLogger("sparkonce")

MOST_CHARACTERS = 2000
"""The maximum length of an error's text. Spark's search would fail in a longer one; see `short_error`."""
_MOST_ADVICE = 1000
_ADVICE = " Next: "
_OURS = "sparkonce.errors."
_OUTAGES = frozenset({kind.__name__ for kind in (OutageError, UnknownOutcomeError)})
"""The task errors after which the driver may wait and write the batch again."""

_RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<said>.+)$", re.MULTILINE)
_USER_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<said>.+?) SQLSTATE: P0001", re.DOTALL)
"""The form of an error from a plan's ``raise_error``."""

_SPARK = ("org.apache.spark.", "java.", "py4j.", "pyspark.")
_INTERRUPTED = re.compile(
    r"InterruptedException|InterruptedIOException|ClosedByInterruptException|SPARK_JOB_CANCELLED\].* was stopped"
)
"""Phrases in the error of a job whose query is stopped while it runs.

Spark itself looks for the first three (``StreamExecution.IO_EXCEPTION_NAMES``). The last is its reason for cancelling
the query's jobs (``StreamExecution.stop``), which differs from that of a user who cancels one.
"""

_TASK_FAILED = "Job aborted due to stage failure"
"""Phrases in the error of a job that ended because a task failed."""

_OTHER_PYTHON = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\][^\n]*?version: (?P<worker>[\d.]*\d) than that in driver: (?P<driver>[\d.]*\d)"
)
_WORKER = re.compile(r"Python worker exited unexpectedly[^\n.]*")
_WHERE_LOST = re.compile(r"(Task \d+ in stage [\d.]+ failed \d+ times).*?\(TID \d+\) \(([^()]+)\)")
"""Spark's messages about a Python worker that died or has a different Python version, and about its host."""
_WHERE = re.compile(r"\(TID \d+\) \((?P<host>[^()\s]+) executor (?P<executor>[^()\s]+)\)")

_WORKER_DIED = (
    "Look on that machine for a process killed for its memory (dmesg, the container's events), and in the executor's "
    "stderr for a crash in native code: spark.python.worker.faulthandler.enabled=true shows its line. Give "
    "workers more memory (spark.executor.memoryOverhead), or batches fewer rows (maxOffsetsPerTrigger)."
)

_NO_MODULE = (
    "Check which Python Spark's workers run: PYSPARK_PYTHON, else the first python3 on their PATH. On one machine "
    "activate the job's environment, or set PYSPARK_PYTHON to its Python; on a cluster install the module everywhere, "
    "or ship the environment with --archives (docs/deploying.md)."
)
_SAME_PYTHON = (
    "Run the same minor version everywhere: set PYSPARK_DRIVER_PYTHON and PYSPARK_PYTHON to it, and install it on "
    "every host, or ship the driver's environment with --archives (docs/deploying.md)."
)

_GONE_FROM_KAFKA = re.compile(
    r"Some data may have been lost because they are not available in Kafka any more.*?"
    r"^Reason: (?P<why>.+?)(?:\.? SQLSTATE: \w{5})?$",
    re.DOTALL | re.MULTILINE,
)
_READ_ON = (
    "If a topic was deleted on purpose, or rows have expired that nobody needs, start the query with read_kafka(…, "
    "fail_on_data_loss=False): it continues with what is there, and skips what is gone. Otherwise restore the topic, "
    "and start the query again."
)

_JOB = re.compile(rf"{_TASK_FAILED}: [^\n]+")

_STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_SQLSTATES = re.compile(r"(?: SQLSTATE: \w{5})+$")

_STOPPED = "py4j.protocol.Py4JJavaError: An error occurred while calling collect: java.lang.InterruptedException"
"""The text by which Spark distinguishes a stopped query from a failed one.

Spark looks for it in the error of a ``foreachBatch`` function (``StreamExecution.PROXY_ERROR``).
"""

_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?P<frames>(?:[ \t][^\n]*\n)+)"
    r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<said>[^\n]*))?$",
    re.MULTILINE,
)
_FRAME = re.compile(
    r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n    (?! *File ")(?P<source>[^\n]+))?', re.MULTILINE
)
_MACHINERY = re.compile(
    r"(?:(?:site|dist)-packages|python|src|[^/\\]+\.(?:zip|whl|egg))[/\\](?:pyspark|sparkonce(?:_lab|_pravega|_rabbitmq)?|py4j)[/\\]"
    r"|[/\\]lib(?:64)?[/\\]python[\d.]+[/\\](?!(?:site|dist)-packages)|\.p[yx][xi]$|^<"
)
"""Files of PySpark, sparkonce and the standard library, and compiled or generated code."""
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_LONGEST_CHAIN = 10
_MOST_OF_A_SENTENCE, _MOST_OF_A_LINE = 1200, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """The error that was found, and its location in the user's code.

    Attributes:
        kind: The class of the error, empty if it does not matter.
        said: The message, in one line.
        next_step: The next step for the user; empty if the error has none.
        ours: True if sparkonce raised it.
    """

    said: str
    kind: str = ""
    next_step: str = ""
    ours: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}" if self.kind and self.said else self.kind or self.said


def is_of_a_stop(error: SparkonceError) -> bool:
    """Returns True if an error only means that the query was stopped in the middle of a batch."""
    chain = (error, error.__cause__)
    return any(isinstance(one, SparkonceError) and one.details.get("stopped") for one in chain)


def without_causes(error: SparkonceError) -> SparkonceError:
    """Returns the error without its causes, which Spark would show in full, twice.

    If a cause is a stop of the query, the message includes the text that Spark expects.
    """
    logger.debug("A batch stopped the query.", exc_info=error)
    chain, cause = [str(error)], error.__cause__ or error.__context__
    while cause is not None and len(chain) < _LONGEST_CHAIN:
        chain.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    if _STOPPED not in chain[0] and any(_INTERRUPTED.search(text) for text in chain[1:]):
        error.message = f"{error.message} The query was stopped meanwhile ({_STOPPED})."
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def short_error(error: BaseException) -> PrepareError:
    """Returns a job's failure as one of our errors, and logs its stack traces.

    Spark searches the error's text with a regular expression that recurses for each character, so a long text would
    overflow the stack. The text is therefore truncated. After a stop of the query, it includes the text that Spark
    expects.
    """
    if is_stop(error):
        logger.debug("A batch's job was stopped.", exc_info=error)
        return PrepareError(f"The query was stopped in the middle of a batch ({_STOPPED}).", stopped=True)
    cause = _cause(error)
    outage = cause.ours and cause.kind in _OUTAGES
    trace = error if outage or logger.hasHandlers() else None  # if logging is not configured, Spark's own log has it
    logger.log(logging.DEBUG if outage else logging.ERROR, "A batch's job failed: %s", cause, exc_info=trace)
    message, next_step = _bounded(cause.said if cause.ours else str(cause), cause.next_step)
    return (OutageError if outage else PrepareError)(message, next_step=next_step)


def is_stop(error: BaseException) -> bool:
    """Returns True if a job has ended because its query is being stopped."""
    text = str(error)
    return _INTERRUPTED.search(text) is not None and _TASK_FAILED not in text and not _python_errors(text)


def message_and_next(error: BaseException) -> tuple[str, str]:
    """Returns a failed query's error and the next step for the user: one line each, of limited length.

    The error is the first of these that Spark's text contains: an error of sparkonce; the plan's own ``raise_error``; a
    worker with a different Python; the last Python error, with the line of the user's code that raised it; a dead
    worker; the reason why the job ended; the first line of the text.
    """
    cause = _cause(error)
    advice = cause.next_step or "Remove the cause and start the query again: it resumes with the same batch."
    return _bounded(str(cause), advice)


def _cause(error: BaseException) -> _Cause:
    text = str(error)
    if ours := [match for match in _python_errors(text) if match["kind"].startswith(_OURS)]:
        said, next_step = _split(ours[-1]["said"])
        return _Cause(kind=ours[-1]["kind"].removeprefix(_OURS), said=said, next_step=next_step, ours=True)
    if (raised_by_plan := _USER_RAISED.search(text)) is not None:
        said, next_step = _split(" ".join(raised_by_plan["said"].split()))
        return _Cause(said=said, next_step=next_step)
    job, where = _job(text), _where(error)
    if (other := _OTHER_PYTHON.search(text)) is not None:
        said = f"Python {other['worker']} runs the tasks{where}, and Python {other['driver']} the driver."
        return _Cause(said=said, next_step=_SAME_PYTHON)
    if traced := [match for match in _TRACEBACK.finditer(text) if not match["kind"].startswith(_SPARK)]:
        return _raised(traced[-1]["kind"], traced[-1]["said"] or "", _FRAME.finditer(traced[-1]["frames"]), where)
    if found := _python_errors(text):
        return _raised(found[-1]["kind"], found[-1]["said"], (), where)
    if (worker := _WORKER.search(text)) is not None:
        return _dead_worker(worker[0], text)
    if (gone := _GONE_FROM_KAFKA.search(text)) is not None:
        why = " ".join(gone["why"].split()).rstrip(".")
        return _Cause(said=f"Kafka does not have what this query has read or should read: {why}.", next_step=_READ_ON)
    if job:
        return _Cause(kind=type(error).__name__, said=job)
    lines = text.strip().splitlines() or [""]
    said, wrapped = _STREAM_FAILED.subn("", lines[0])
    stack = () if wrapped else traceback.extract_tb(error.__traceback__)
    frames = [{"file": one.filename, "line": one.lineno, "source": one.line} for one in stack]
    return _raised(type(error).__name__, _SQLSTATES.sub("", said), frames)


def _split(text: str) -> tuple[str, str]:
    """Splits a message from the next step at its end, which is empty if there is none."""
    said, advice, next_step = text.rpartition(_ADVICE)
    return (said, next_step) if advice else (text, "")


def _raised(kind: str, said: str, frames: Iterable[Any], where: str = "") -> _Cause:
    """Returns a Python error with the line of the user's code that it came from.

    Args:
        kind: The error's class.
        said: The first line of its message.
        frames: The frames of its traceback, outermost first: file, line, source.
        where: The executor, which is only shown if the error depends on it.
    """
    own = [frame for frame in frames if not _MACHINERY.search(frame["file"])]
    own = [frame for frame in own if not _PACKAGES.search(frame["file"])] or own
    kind = kind.removeprefix("__main__.")
    next_step = ""
    if kind == "ModuleNotFoundError":
        said, next_step = f"{said}{where}", _NO_MODULE
    if not own:
        return _Cause(kind=kind, said=said, next_step=next_step)
    source = (own[-1]["source"] or "").strip()[:_MOST_OF_A_LINE]
    location = f"({own[-1]['file']}, line {own[-1]['line']}{source and f': {source}'})"
    return _Cause(kind=kind, said=f"{said[:_MOST_OF_A_SENTENCE]} {location}".lstrip(), next_step=next_step)


def _dead_worker(said: str, text: str) -> _Cause:
    where = _WHERE_LOST.search(text)
    task = f" on {where[2]}: {where[1]}" if where else ""
    return _Cause(
        said=f"A Python worker died{task}. It was killed for its memory, or crashed in native code. {said}.",
        next_step=_WORKER_DIED,
    )


def _where(error: BaseException) -> str:
    """Returns the executor of a failed task, as the end of a phrase; empty if Spark does not name it."""
    # PySpark shortens the message of a Python error to the worker's traceback, so search Spark's stack trace as well.
    found = _WHERE.search(str(error)) or _WHERE.search(str(getattr(error, "_stackTrace", "")))
    return f" on host {found['host']} (executor {found['executor']})" if found else ""


def _job(text: str) -> str:
    """Returns the reason why a job ended, without the text about a stopped query; empty if no job ended."""
    found = _JOB.search(text)
    if found is None:
        return ""
    return found[0].partition(", most recent failure")[0] if _INTERRUPTED.search(found[0]) else found[0]


def _bounded(message: str, next_step: str) -> tuple[str, str]:
    """Truncates a message and a next step to `MOST_CHARACTERS` in total."""
    next_step = next_step[:_MOST_ADVICE]
    room = MOST_CHARACTERS - (len(f"{_ADVICE}{next_step}") if next_step else 0)
    return message if len(message) <= room else f"{message[: room - 1]}…", next_step


def _python_errors(text: str) -> list[re.Match[str]]:
    return [match for match in _RAISED.finditer(text) if not match["kind"].startswith(_SPARK)]

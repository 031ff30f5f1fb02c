"""Runs a file that starts queries, without starting them.

``DataStreamWriter.start`` and ``toTable`` explain the query instead of starting it. The run of the file ends when the
file waits for a query or calls any method of one. But a query that would end automatically (``availableNow``, ``once``)
counts as ended when the file waits for it, and the run continues. If the run ends early, the file's source shows
whether the rest could start another query.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.util import default_api_mode

from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.jvm import class_name, field
from sparkonce.spark import classic, exactly_once
from sparkonce.spark.exactly_once import ExactlyOnce
from sparkonce.spark.job import ending
from sparkonce.spark.job.run import script
from sparkonce.watch.display import ProgressDisplay

Explainer = Callable[[DataStreamWriter, str | None], None]

_ENDING = {"AvailableNowTrigger", "OneTimeTrigger"}

_CONNECT = "pyspark.sql.connect.session"


class _EndOfRun(BaseException):
    """Ends the file's run. Not an ``Exception``, so that no ``except Exception`` in the file catches it."""


class _NotStarted:
    """Replaces a query that would have been started."""

    def __getattr__(self, name: str) -> Any:
        raise _EndOfRun


class _Ended(_NotStarted):
    """Replaces a query that would end on its own."""

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - PySpark's name
        return None if timeout is None else True

    def processAllAvailable(self) -> None:  # noqa: N802 - PySpark's name
        return

    def stop(self) -> None:
        return


def dry_run(file: Path, arguments: Sequence[str], explain: Explainer) -> bool:
    """Runs a Python file as a script up to the point where it would wait for its queries.

    Its output goes to standard error. If the wait is inside a bare ``except:`` or ``except BaseException``, the file
    continues after it.

    Args:
        file: The file.
        arguments: The file's arguments, ``sys.argv[1:]``.
        explain: Called for each query that the file would start, with the writer and the table of ``toTable``
            (otherwise None).

    Returns:
        True if every query was seen; False if the run ended at a wait, and the rest of the file may start more.

    Raises:
        ConfigurationError: If the file fails, or runs on Spark Connect.
        SparkonceError: Any of sparkonce's errors that the file raises.
    """
    _refuse_connect({})
    try:
        with script(file, arguments) as name, redirect_stdout(sys.stderr), _intercepted(explain):
            runpy.run_path(name, run_name="__main__")
    except _EndOfRun as end:
        return not may_follow(_calls(end, file))
    except SparkonceError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return True
        said = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"{file} fails before it waits for its queries: {type(error).__name__}: {said}",
            next_step="Run it once on its own; its own arguments come after --, and jars in PYSPARK_SUBMIT_ARGS.",
        ) from error
    return True


def _calls(end: _EndOfRun, file: Path) -> list[tuple[str, int]]:
    """Returns the calls at which the run ended: the file's frame and those below it."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(end.__traceback__)]
    first = next((index for index, (name, _) in enumerate(frames) if name == str(file)), 0)
    return [frame for frame in frames[first:] if frame[0] != __file__]


def _refuse_connect(options: Mapping[str, Any]) -> None:
    """Rejects Spark Connect: its queries cannot be intercepted, and would really start."""
    named = [name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if name in os.environ]
    if "spark.remote" in options:
        named.append("spark.remote")
    mode = str(options.get("spark.api.mode", os.environ.get("SPARK_API_MODE", ""))).lower()
    if (mode if mode in {"classic", "connect"} else default_api_mode()) == "connect":
        named.append("spark.api.mode=connect")
    if named:
        raise ConfigurationError(
            f"{', '.join(named)}: the file runs on Spark Connect, where its queries would really be started.",
            next_step="Run it on a classic Spark session, or explain its checkpoints.",
        )


@contextmanager
def _intercepted(explain: Explainer) -> Iterator[None]:
    started: list[_NotStarted] = []
    in_session, manager_get = SparkSession.Builder.getOrCreate, StreamingQueryManager.get
    manager_active: Any = StreamingQueryManager.active

    def begun(writer: DataStreamWriter, table: str | None) -> _NotStarted:
        explain(writer, table)
        started.append(_Ended() if class_name(field(writer._jwrite, "trigger")) in _ENDING else _NotStarted())
        return started[-1]

    def start(
        writer: DataStreamWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - PySpark's name
        outputMode: str | None = None,  # noqa: N803 - PySpark's name
        partitionBy: Any = None,  # noqa: N803 - PySpark's name
        queryName: str | None = None,  # noqa: N803 - PySpark's name
        **options: Any,
    ) -> _NotStarted:
        _set_up(writer, options, format=format, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName)
        if path is not None:
            writer.option("path", path)
        return begun(writer, None)

    def to_table(
        writer: DataStreamWriter,
        tableName: str,  # noqa: N803 - PySpark's name
        format: str | None = None,  # noqa: A002 - PySpark's name
        outputMode: str | None = None,  # noqa: N803 - PySpark's name
        partitionBy: Any = None,  # noqa: N803 - PySpark's name
        queryName: str | None = None,  # noqa: N803 - PySpark's name
        **options: Any,
    ) -> _NotStarted:
        _set_up(writer, options, format=format, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName)
        return begun(writer, tableName)

    def wait(_: StreamingQueryManager, timeout: float | None = None) -> bool | None:
        if any(isinstance(each, _Ended) for each in started):  # it returns as soon as any query has ended
            return None if timeout is None else True
        raise _EndOfRun

    def active(manager: StreamingQueryManager) -> Any:
        if started:
            raise _EndOfRun
        return manager_active.fget(manager)

    def get(manager: StreamingQueryManager, id: str) -> Any:  # noqa: A002 - PySpark's name
        if started:
            raise _EndOfRun
        return manager_get(manager, id)

    def get_or_create(builder: SparkSession.Builder) -> SparkSession:
        _refuse_connect(builder._options)
        return in_session(builder)

    def remote(_: SparkSession.Builder, url: str) -> None:
        _refuse_connect({"spark.remote": url})

    def await_end(*queries: Any, **_: Any) -> None:
        for query in queries:
            query.awaitTermination()

    def nothing(*_: Any, **__: Any) -> None:
        """Does nothing: no server is contacted, no folder created, no query waited for."""

    with (
        patch.object(DataStreamWriter, "start", start),
        patch.object(DataStreamWriter, "toTable", to_table),
        patch.multiple(StreamingQueryManager, awaitAnyTermination=wait, active=property(active), get=get),
        patch.multiple(SparkSession.Builder, getOrCreate=get_or_create, remote=remote),
        patch.dict(sys.modules, {_CONNECT: None}),  # makes its import fail
        patch.object(ending, "await_end", await_end),
        patch.object(ProgressDisplay, "starting", lambda *_: nullcontext()),
        patch.object(ExactlyOnce, "_follow", nothing),
        patch.object(classic, "check_servers", nothing),
        patch.object(exactly_once, "warn_if_running_at_exit", nothing),
    ):
        yield


def _set_up(writer: DataStreamWriter, options: Mapping[str, Any], **settings: Any) -> None:
    """Applies the arguments of ``start`` and ``toTable`` as PySpark's own methods do."""
    writer.options(**options)
    for name, value in settings.items():
        if value is not None:
            getattr(writer, name)(value)


_HARMLESS = {"awaitAnyTermination", "awaitTermination", "close", "debug", "error", "exit", "info", "print", "stop"}

_HARMLESS |= {"await_end", "shutdown", "warning"}
"""Names of calls that start no query. Any other call may start one."""


def may_follow(calls: Iterable[tuple[str, int]]) -> bool:
    """Returns True if the rest of a script may start a query.

    Args:
        calls: File and line of each active call, from the script's own to the one that waits.
    """
    return any(_after(Path(file), line) for file, line in calls)


def _after(file: Path, line: int) -> bool:
    try:
        tree = ast.parse(file.read_text())
    except (OSError, SyntaxError, ValueError):
        return True
    return any(
        isinstance(node, ast.Call) and _name(node.func) not in _HARMLESS
        for statement in _following(tree, line)
        for node in ast.walk(statement)
    )


def _following(block: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yields the statements that may run after the statement at a line, in the enclosing function or module."""
    for _, value in ast.iter_fields(block):
        if not isinstance(value, list):
            continue
        indexes = [index for index, each in enumerate(value) if _holds(each, line)]
        for index in indexes:
            inner = value[index]
            if not _defines(inner):  # Statements after a definition do not run after its call.
                yield from (each for each in value[index + 1 :] if isinstance(each, ast.stmt) and not _defines(each))
            if isinstance(inner, ast.For | ast.While | ast.AsyncFor):
                yield inner
            elif isinstance(inner, ast.Try):
                yield from (*inner.handlers, *inner.orelse, *inner.finalbody)
            yield from _following(inner, line)


def _holds(node: object, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return any(_holds(each, line) for each in node.body)
    return isinstance(node, ast.stmt | ast.excepthandler) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _defines(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""

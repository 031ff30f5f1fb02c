"""Runs a file that starts queries, without starting them.

``DataStreamWriter.start`` and ``toTable`` hand over what they would start. The file goes on until it waits for a query,
or asks one anything: then it is left, so that nothing of what it does afterwards happens.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.spark.exactly_once import ExactlyOnce

Explainer = Callable[[DataStreamWriter, str | None], None]


class _Left(BaseException):
    """The file has started what it wants to start. No error: no ``except Exception`` of the file is to catch it."""


class _NotStarted:
    """In the place of the query that would have been started."""

    def __getattr__(self, name: str) -> Any:
        raise _Left


def dry_run(file: Path, arguments: Sequence[str], explain: Explainer) -> None:
    """Runs a Python file as a script up to the point where it would wait for its queries.

    Args:
        file: The file.
        arguments: Its own, ``sys.argv[1:]``.
        explain: Called for each query that it would start, with the writer and the table (None but for ``toTable``).

    Raises:
        ConfigurationError: if it fails.
        SparkonceError: of ours, whatever it raises itself.
    """
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(file), *arguments], [str(file.absolute().parent)]
    try:
        with _intercepted(explain):
            runpy.run_path(str(file), run_name="__main__")
    except _Left:
        pass
    except SparkonceError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        said = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"{file} fails before it waits for its queries: {type(error).__name__}: {said}",
            next_step="run it once by itself; its own arguments come after --, and jars by PYSPARK_SUBMIT_ARGS.",
        ) from error
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _intercepted(explain: Explainer) -> Iterator[None]:
    def start(writer: DataStreamWriter, path: str | None = None, **given: Any) -> _NotStarted:
        _set_up(writer, given)
        if path is not None:
            writer.option("path", path)
        explain(writer, None)
        return _NotStarted()

    def to_table(writer: DataStreamWriter, table: str, **given: Any) -> _NotStarted:
        _set_up(writer, given)
        explain(writer, table)
        return _NotStarted()

    def wait(*_: Any) -> None:
        raise _Left

    def nothing(_: Any) -> None:
        """Asks no servers, and makes no folder."""

    patches: Mapping[tuple[type, str], Any] = {
        (DataStreamWriter, "start"): start,
        (DataStreamWriter, "toTable"): to_table,
        (StreamingQueryManager, "awaitAnyTermination"): wait,
        (ExactlyOnce, "_preflight"): nothing,
    }
    before = {(owner, name): getattr(owner, name) for owner, name in patches}
    for (owner, name), patch in patches.items():
        setattr(owner, name, patch)
    try:
        yield
    finally:
        for (owner, name), original in before.items():
            setattr(owner, name, original)


def _set_up(writer: DataStreamWriter, given: Mapping[str, Any]) -> None:
    """What ``start`` and ``toTable`` themselves set, by keyword; the rest are options."""
    setters = {"format", "outputMode", "partitionBy", "queryName"}
    for name, value in given.items():
        if name not in setters:
            writer.option(name, value)
        elif value is not None:
            getattr(writer, name)(value)

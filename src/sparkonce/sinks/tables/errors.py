"""Classifies errors that Spark and tables raise if they do not accept rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkonce.errors import one_line

_FINAL_STATES = ("21", "22", "23", "42", "KD000")
"""The SQLSTATE classes of errors about the rows and the table.

The classes cover cardinality, data, constraints, names, permissions, and (KD000) data that does not fit the table; see
https://spark.apache.org/docs/latest/sql-error-conditions-sqlstates.html
"""

_FINAL_CONDITIONS = frozenset({"_LEGACY_ERROR_TEMP_DELTA_0007"})
"""Error conditions without a SQLSTATE: Delta's condition for columns that the table does not have."""


def is_final(error: BaseException) -> bool:
    """Returns True if another attempt to write the same rows to the same table is certain to fail."""
    # The class of the error does not help: Spark also raises AnalysisException if a metastore does not respond.
    return any(
        str(state or "").startswith(_FINAL_STATES) or condition in _FINAL_CONDITIONS
        for state, condition in _states(error)
    )


def error_message(error: BaseException, lines: int = 1) -> str:
    """Returns an error's message on one line, without the stack trace of a Java error."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return one_line(" ".join(text.strip().splitlines()[:lines])) or type(error).__name__


def _states(error: BaseException) -> Iterator[tuple[Any, Any]]:
    """Yields the SQLSTATE and the condition of the error and of each of its causes in the JVM."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        if is_instance_of(SparkContext._gateway, java, "org.apache.spark.SparkThrowable"):
            yield java.getSqlState(), java.getCondition()
        java = java.getCause()

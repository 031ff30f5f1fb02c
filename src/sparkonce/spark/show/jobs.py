"""Describes the jobs of a batch in Spark's UI."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

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

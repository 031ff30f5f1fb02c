"""Says at the end of a program that its query was still running, because nothing waited for it."""

from __future__ import annotations

import atexit
import sys
from contextlib import suppress

from pyspark.sql.streaming.query import StreamingQuery

_started: list[StreamingQuery] = []


def is_interactive() -> bool:
    """Tells if this is an interactive session (a notebook, IPython, ``python -i``), which SystemExit would end."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or (ipython is not None and bool(ipython.get_ipython()))


def warn_if_left(query: StreamingQuery) -> None:
    """Notes a query that was started: if it runs when the program ends, a line says so on standard error."""
    _started.append(query)


@atexit.register
def _say() -> None:
    if is_interactive():
        return
    for query in _started:
        with suppress(Exception):  # Spark's JVM may be gone
            if query.isActive:
                sys.stderr.write(
                    f"sparkonce: The program ends while its query {query.name or query.id} runs, which stops the query "
                    "in the middle of a batch. No row is lost: the next start resumes it. Next: End the program with "
                    "await_end(query).\n"
                )

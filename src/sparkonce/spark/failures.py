"""What really went wrong in a Spark job: the Python error of a task, out of the traces that Spark wraps around it."""

from __future__ import annotations

import re

_RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<said>.+)$", re.MULTILINE)
_SPARK = ("org.apache.spark.", "java.", "py4j.", "pyspark.")


def root_cause(error: BaseException) -> str:
    """One line that names the error of the task that failed.

    An error of ours wins, then the last Python error in the text, then the error's own first line.
    """
    text = str(error)
    found = [match for match in _RAISED.finditer(text) if not match["kind"].startswith(_SPARK)]
    ours = [match for match in found if match["kind"].startswith("sparkonce.")]
    if found:
        raised = (ours or found)[-1]
        return f"{raised['kind'].removeprefix('sparkonce.errors.')}: {raised['said']}"
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"

"""Runs a user's Python file in this process, as ``python FILE`` would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def script(file: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Sets ``sys.argv`` and ``sys.path`` while the context is active. Yields the file's name in tracebacks."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(file), *arguments], [str(file.absolute().parent)]
    try:
        yield str(file)
    finally:
        sys.argv, sys.path[:] = argv, path


def run_script(name: str) -> None:
    """Runs the file to its end, within `script`."""
    runpy.run_path(name, run_name="__main__")

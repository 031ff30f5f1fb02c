"""Compares end offsets of Spark's sources, each a line of canonical JSON.

An offset of Spark's file source, such as ``{"logOffset":2}``, is the number of an entry in the source's own log, and
does not identify the files in that entry. As long as Spark retains the entry, `SparkCheckpoint` adds a digest of the
entry's files: ``{"files":"…","logOffset":2}``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

FILES = "files"
"""The JSON key of the digest."""


def without_files(line: str) -> str:
    """Returns an offset as Spark writes it."""
    if f'"{FILES}"' not in line or '"logOffset"' not in line:
        return line
    offset = json.loads(line)
    del offset[FILES]
    return json.dumps(offset, sort_keys=True, separators=(",", ":"))


def same_offsets(one: Sequence[str], other: Sequence[str]) -> bool:
    """Returns True if these are the same offsets. Digests are only compared if both have one."""
    return len(one) == len(other) and all(
        a == b or (a == without_files(b)) or (b == without_files(a)) for a, b in zip(one, other, strict=True)
    )

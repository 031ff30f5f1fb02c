"""The dead letters of a run: the rows that Kafka is made to refuse, in a folder of the run.

Kafka stores no time before 1970. A refused row has such a time, and everything else as all rows have it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce_lab.systems.files import FilesSystem

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

NAME = "dead-letters"
MOST = 1_000_000_000


def letters_sink(folder: str) -> TwoPhaseCommitSink:
    """Makes the sink of dead letters, in the query's process."""
    from sparkonce.sinks.files.sink import FilesSink

    return FilesSink(folder, name=NAME)


def read_letters(folder: Path) -> pa.Table:
    """Returns the refused rows that a reader sees now: `sparkonce_lab.history.OBSERVED`, without places."""
    import pyarrow.parquet as pq

    from sparkonce_lab.systems.observed import of_texts

    tables = [pq.read_table(path, columns=["row"]) for path in _system(folder).published()]
    rows = [json.loads(text)["value"].encode() for table in tables for text in table["row"].to_pylist()]
    return of_texts(rows)


def open_letters(folder: Path) -> Sequence[str]:
    """Names what is neither published nor given up."""
    return _system(folder).left_open() if folder.exists() else []


def _system(folder: Path) -> FilesSystem:
    system = FilesSystem()
    system.folder = folder
    return system

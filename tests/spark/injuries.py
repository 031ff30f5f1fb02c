"""What the tests of the analyser's verdicts share: small queries, and the ways to injure them.

A crash is the disk that it leaves behind. A driver that dies after its sink has the batch, and before Spark notes that,
leaves ``offsets/N`` without ``commits/N``: `forget_commit` makes that out of a query that has ended, and the next start
runs the batch again.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.analysis.model import Explanation

LIMIT_S = 120.0
_POLL_S = 0.05

ROWS = [f"row-{number:03d}" for number in range(60)]

MARKS = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
"""For every module that uses this one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the marker ``proves`` of a test says: the level, and in brackets the roles of the weakest parts."""

    text: str

    def of(self, explanation: Explanation, says: str) -> None:
        """Sees that the analyser says the same, and for a reason that has these words.

        Args:
            explanation: The analyser's.
            says: Part of a reason of a weakest part; where none is weak, of anything that it says.
        """
        roles = ", ".join(dict.fromkeys(part.role.value for part in explanation.weakest))
        level = explanation.level.value
        assert self.text == (f"{level} ({roles})" if roles else level), f"\n{explanation}"
        parts = explanation.weakest or explanation.parts
        said = [text for part in parts for text in (*part.reasons, *part.conditions, *part.notes)]
        assert any(says in text for text in said), f"{says!r} is not said:\n{explanation}"
        assert all(part.changes for part in explanation.weakest), f"no change is named:\n{explanation}"


def run(writer: Any, *, table: str | None = None, path: Path | None = None) -> StreamingQuery:
    """Starts what the writer holds, on all that its source has now, and waits for the end."""
    started = writer.trigger(availableNow=True)
    query = started.toTable(table) if table is not None else started.start(*([str(path)] if path else []))
    return ended(query)


def ended(query: StreamingQuery) -> StreamingQuery:
    """Waits for the end; raises what stopped it."""
    try:
        assert query.awaitTermination(int(LIMIT_S)), f"not done after {LIMIT_S:.0f} s"
    finally:
        query.stop()
        gc.collect()  # PySpark leaves sockets behind in cycles
    return query


def crashes(writer: Any) -> None:
    """Starts what the writer holds, and sees that it stops with an error."""
    with pytest.raises(StreamingQueryException):
        run(writer)


def eventually(holds: Callable[[], Any], what: str) -> Any:
    give_up_at = time.monotonic() + LIMIT_S
    while not (answer := holds()):
        assert time.monotonic() < give_up_at, f"not after {LIMIT_S:.0f} s: {what}"
        time.sleep(_POLL_S)
    return answer


def forget(folder: Path, keep: int = 0) -> None:
    """Deletes the entries of a log of Spark's from a number on, with their checksums."""
    numbers = [entry for entry in folder.iterdir() if entry.name.isdigit() and int(entry.name) >= keep]
    assert numbers, f"{folder} has no entry from {keep} on"
    for entry in numbers:
        entry.unlink()
        (folder / f".{entry.name}.crc").unlink(missing_ok=True)


def forget_commit(checkpoint: Path) -> None:
    """The disk of a driver that died after its sink had the last batch, and before Spark noted it."""
    commits = checkpoint / "commits"
    forget(commits, max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit()))


def write_lines(folder: Path, name: str, lines: Iterable[str], *, age_s: float = 0) -> Path:
    """A text file for a stream, made elsewhere and renamed into place; its modification time so long ago."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}-{name}"
    made.write_text("".join(f"{line}\n" for line in lines))
    now = time.time()
    os.utime(made, (now - age_s, now - age_s))
    return made.rename(folder / name)


def read_lines(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("text").options(**options).load(str(folder))


def of_rows(values: Iterable[Any]) -> Counter[Any]:
    return Counter(values)


def once(rows: Sequence[Any] = ROWS) -> Counter[Any]:
    """Each row once: what exactly-once is."""
    return Counter(rows)


def twice(rows: Sequence[Any] = ROWS) -> Counter[Any]:
    return Counter(dict.fromkeys(rows, 2))


class Kept:
    """A function for ``foreachBatch`` that keeps what it is given, as a system without transactions would.

    Attributes:
        batches: For each call the batch and its rows.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Any]]] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.batches.append((batch, sorted(tuple(row) for row in rows.collect())))

    def values(self) -> Counter[Any]:
        return Counter(row[0] for _, rows in self.batches for row in rows)

    def runs(self, batch: int = 0) -> list[list[Any]]:
        """What each run of a batch gave."""
        return [rows for number, rows in self.batches if number == batch]


def replayed(plan: DataFrame, folder: Path) -> list[list[Any]]:
    """What the first batch of a plan gives, and what it gives when it is replayed after a crash."""
    kept = Kept()
    writer = plan.writeStream.foreachBatch(kept).option("checkpointLocation", str(folder / "replayed"))
    run(writer)
    forget(folder / "replayed" / "commits")
    run(writer)
    runs = kept.runs()
    assert len(runs) == 2, "the batch was not replayed"
    return runs

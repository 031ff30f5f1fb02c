"""What the tests of the analyser's verdicts share: small queries, and the ways to injure them.

A crash is the disk that it leaves behind. A driver that dies after its sink has the batch, and before Spark notes that,
leaves ``offsets/N`` without ``commits/N``: `forget_commit` makes that out of a query that has ended, and the next start
runs the batch again.

Every verdict is asked for in every run. The injuries say how Spark behaves, and that changes with Spark, or with what
is said of it: ``python tests/spark/injuries.py`` runs them all, and notes in ``injuries.digest`` for which analyser and
which Spark they were green. Where both are the same, some are drawn; where not, all run.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark.in_process import ended
from sparkonce.analysis.model import Explanation

ROOT = Path(__file__).parents[2]

ROWS = [f"row-{number:03d}" for number in range(60)]


Proof = Generator[None, None, None]


def proof(test: Callable[..., Proof]) -> Any:
    """Makes two tests of a generator: what it does before its ``yield``, the verdict; and all, with the injury."""

    @functools.wraps(test)
    def proved(*, injured: bool, **given: Any) -> None:
        steps = test(**given)
        next(steps)
        if injured:
            assert list(steps) == [], "it yields once"
        steps.close()

    asked = inspect.signature(test)
    part = inspect.Parameter("injured", inspect.Parameter.KEYWORD_ONLY)
    proved.__signature__ = asked.replace(parameters=[*asked.parameters.values(), part])  # type: ignore[attr-defined]
    parts = [pytest.param(False, id="verdict"), pytest.param(True, id="injury", marks=pytest.mark.slow)]
    return pytest.mark.parametrize("injured", parts)(proved)


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


def run(writer: Any, *, table: str | None = None) -> StreamingQuery:
    """Starts what the writer holds, on all that its source has now, and waits for the end."""
    started = writer.trigger(availableNow=True)
    return ended(started.start() if table is None else started.toTable(table))


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

    def runs(self) -> list[list[Any]]:
        """Returns what the first batch gave, and what it gave when it was replayed."""
        runs = [rows for number, rows in self.batches if number == 0]
        assert len(runs) == 2, "the batch was not replayed"
        return runs


def replayed(plan: DataFrame, folder: Path) -> list[list[Any]]:
    """What the first batch of a plan gives, and what it gives when it is replayed after a crash."""
    kept = Kept()
    writer = plan.writeStream.foreachBatch(kept).option("checkpointLocation", str(folder / "replayed"))
    run(writer)
    forget(folder / "replayed" / "commits")
    run(writer)
    return kept.runs()

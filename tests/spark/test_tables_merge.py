"""MERGE into Delta and Iceberg applies each batch once, next to other writers, whenever drivers die.

Most merges add to existing values, so the sums show a merge that was lost or done twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import customer_history
from eventually import eventually
from spark.in_process import SPARK, crash_at, ended
from spark.merge_job import (
    FIRST_DELTA,
    KINDS,
    POINTS,
    IcebergMerge,
    IcebergMergeOnRead,
    MergeJob,
)
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.tables.iceberg import _IcebergTable
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from tryout.history import history_of, make_changes

pytestmark = SPARK


@pytest.fixture(params=FIRST_DELTA)
def job(request: pytest.FixtureRequest, tables: SparkSession, tmp_path: Path) -> MergeJob:
    return KINDS[request.param](tables, tmp_path)


FIRST = [("delta", "merge"), ("iceberg", "_publish"), ("iceberg on read", "note_done")]


@pytest.mark.parametrize(
    ("kind", "point"), [*FIRST, *(pytest.param(*one, marks=pytest.mark.slow) for one in POINTS if one not in FIRST)]
)
def test_a_driver_that_is_killed_while_another_writes(
    tables: SparkSession, tmp_path: Path, kind: str, point: str
) -> None:
    """It updates a row of the batch, and inserts one, before the batch is merged again."""
    job = KINDS[kind](tables, tmp_path)
    batches = [[(1, 1, "x"), (4, 4, "x")], [(2, 2, "x"), (5, 5, "x")]]
    handles = [job.prepared(rows, slot=slot) for slot, rows in enumerate(batches)]
    job.commit_killed(WriteAheadFolder if point == "note_done" else job.table, point, *handles)
    done = point == "note_done"
    merged = [(1, 11, "x"), (2, 22, "x"), (3, 30, "c"), (4, 4, "x"), (5, 5, "x")]
    assert job.rows() == (merged if done else list(job.started))
    job.another_adds(1, 1000)
    job.another_inserts((6, 60, "other"))
    assert set(job.commit(*handles)) == {Outcome.ALREADY_COMMITTED if done else Outcome.COMMITTED}
    assert job.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert job.rows() == [(1, 1011, "x"), (2, 22, "x"), (3, 30, "c"), (4, 4, "x"), (5, 5, "x"), (6, 60, "other")]
    assert job.versions() == 1


@pytest.mark.slow
def test_updates_of_two_writers_at_once_are_all_there(job: MergeJob, say: Callable[[str], None]) -> None:
    """Each reads the rows that the other changes. The slower one is refused, and reads again."""
    rounds, refused = 6, list[str]()
    handles = [job.prepared([(1, 1, "x"), (100 + batch, 1, "x")], batch) for batch in range(rounds)]

    committer = job.sink().committer()

    def merge() -> None:
        def committed(handle: Handle) -> bool:
            (answer,) = committer.commit([handle])
            if answer.outcome is Outcome.RETRY:
                refused.append(answer.reason)
            return answer.outcome in COMMITTED

        for handle in handles:
            eventually(lambda handle=handle: committed(handle), "merged")

    def add() -> None:
        def done() -> bool:
            try:
                job.another_adds(1, 1000)
            except Exception as error:  # a conflict is one of Spark's, of Delta's or of Iceberg's
                if re.search("[Cc]oncurrent|[Cc]onflict|CommitFailed", str(error)) is None:
                    raise
                return False
            return True

        for _ in range(rounds):
            eventually(done, "added")

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(merge), pool.submit(add)]:
            one.result()
    assert job.rows()[0] == (1, 10 + rounds * 1001, "x")
    assert job.numbers() == [1, 2, 3, *range(100, 100 + rounds)]
    assert job.versions() == rounds
    say(f"{type(job).__name__}: {len(refused)} of {rounds + len(refused)} merges were refused: {set(refused)}")


@pytest.mark.parametrize("kind", [IcebergMerge, pytest.param(IcebergMergeOnRead, marks=pytest.mark.slow)])
def test_a_key_that_another_inserts_between_the_merge_and_its_publishing(
    tables: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[IcebergMerge]
) -> None:
    """The merge has only inserted, which Iceberg would add to any snapshot."""
    job = kind(tables, tmp_path)
    handle, publish = job.prepared([(7, 7, "x")]), _IcebergTable._publish

    def publish_late(self: _IcebergTable, *given: Any) -> None:
        job.another_inserts((7, 70, "other"))
        publish(self, *given)

    with monkeypatch.context() as late:
        late.setattr(_IcebergTable, "_publish", publish_late)
        assert job.commit(handle) == [Outcome.RETRY]
    assert job.commit(handle) == [Outcome.COMMITTED]
    assert job.rows() == [*job.started, (7, 77, "x")]


@pytest.mark.slow
def test_a_merge_that_changes_nothing_is_known_too(job: MergeJob) -> None:
    job.settings = {"merge_on": ["id"], "update_when": "false", "when_not_matched": None}
    handle = job.prepared([(1, 1, "x"), (9, 9, "x")])
    job.commit_unnoticed(handle)
    assert job.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert (job.rows(), job.versions()) == (sorted(job.started), 1)


@pytest.mark.slow
def test_the_example_keeps_a_history(tables: SparkSession, tmp_path: Path) -> None:
    """Its driver dies in its second batch."""
    table, state, changes = str(tmp_path / "table"), str(tmp_path / "state"), tmp_path / "changes"
    sent = make_changes(changes)
    customer_history.create(tables, table)
    for listener in (crash_at(Phase.FINISHING, 1), None):
        once = customer_history.query(table, state, listener=listener, display=False)
        query = once.start(customer_history.read(tables, changes), trigger={"availableNow": True})
        if listener is None:
            ended(query)
        else:
            with pytest.raises(StreamingQueryException, match="CrashError"):
                ended(query)
    found = [tuple(row) for row in tables.read.format("delta").load(table).collect()]
    assert Counter(found) == Counter(history_of(sent))

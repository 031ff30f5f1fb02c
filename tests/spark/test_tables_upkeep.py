"""The tables' own maintenance while batches are merged."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from pyspark.sql import SparkSession

from eventually import eventually
from spark.in_process import SPARK
from spark.merge_job import (
    KINDS,
    DeltaMerge,
    MergeJob,
    added,
)
from sparkonce.protocol.handles import COMMITTED
from sparkonce.sinks.tables.committer import _active
from sparkonce.sinks.tables.errors import error_message
from sparkonce.sinks.tables.iceberg import _IcebergTable

pytestmark = SPARK


@pytest.fixture(params=KINDS)
def job(request: pytest.FixtureRequest, tables: SparkSession, tmp_path: Path) -> MergeJob:
    return KINDS[request.param](tables, tmp_path)


def tidied(job: MergeJob) -> Mapping[str, Callable[[], object]]:
    """The tables' own tools, each with the shortest retention that it takes."""
    spark = job.spark
    if isinstance(job, DeltaMerge):
        return {
            "OPTIMIZE": lambda: job._handle().optimize().executeCompaction(),
            "VACUUM": lambda: vacuum(job),
        }
    actions = spark._jvm.org.apache.iceberg.spark.actions.SparkActions

    def table() -> Any:
        return _IcebergTable(spark, job.name)._load()

    return {
        "rewrite_data_files": lambda: (
            actions.get(spark._jsparkSession).rewriteDataFiles(table()).option("min-input-files", "2").execute()
        ),
        "expire_snapshots": lambda: (
            actions.get(spark._jsparkSession).expireSnapshots(table()).expireOlderThan(2**62).retainLast(1).execute()
        ),
        "remove_orphan_files": lambda: (
            actions.get(spark._jsparkSession)
            .deleteOrphanFiles(table())
            .olderThan(int(1000 * (time.time() - 86_401)))
            .execute()
        ),
    }


def vacuum(job: DeltaMerge) -> None:
    """Delta's VACUUM, with something to delete: a file of ten days ago, as a writer that died leaves it.

    `DeltaTable.vacuum` needs Delta's extension to SQL, which this session does not have. This is what it calls.
    """
    left = Path(job.path) / "left-by-a-writer.parquet"
    left.touch()
    os.utime(left, (time.time() - 864_000,) * 2)
    delta, session = job.spark._jvm.org.apache.spark.sql.delta, job.spark._jsparkSession
    made = delta.catalog.DeltaTableV2
    path = job.spark._jvm.org.apache.hadoop.fs.Path(job.path)
    table = made.apply(session, path, *(getattr(made, f"apply$default${number}")() for number in range(3, 7)))
    usual = (getattr(delta.commands.VacuumCommand, f"gc$default${number}")() for number in range(4, 9))
    delta.commands.VacuumCommand.gc(session, table, False, *usual)
    assert not left.exists()


@pytest.mark.slow
def test_maintenance_beside_merges(job: MergeJob, say: Callable[[str], None]) -> None:
    """All tools run beside each batch, and every third one's driver dies in its commit. No merge is lost or doubled.

    They run once a batch: Delta refuses whoever comes second, so tools without a pause would keep a merge out for ever.
    """
    batches = [[(1, 1, "x"), (100 + batch, batch, "y")] for batch in range(9)]
    done, failed, begun = Counter[str](), Counter[str](), SimpleQueue[bool]()

    def tidy() -> None:
        while begun.get():
            for name, tool in tidied(job).items():
                try:
                    with _active(job.spark):
                        tool()
                    done[name] += 1
                except Exception as error:  # noqa: BLE001, PERF203 - a merge was faster: it can be run again
                    failed[f"{name}: {error_message(error)[:90]}"] += 1

    def merge() -> None:
        for batch, rows in enumerate(batches):
            handle = job.prepared(rows, batch)
            begun.put(True)
            if batch % 3 == 2:
                job.commit_unnoticed_sometime(handle)
            eventually(lambda handle=handle: set(job.commit(handle)) <= COMMITTED, f"batch {batch} is merged")

    with ThreadPoolExecutor(1) as pool:
        tool = pool.submit(tidy)
        try:
            merge()
        finally:
            begun.put(False)
        tool.result()
    say(f"{type(job).__name__}: done {dict(done)}; refused {dict(failed)}")
    assert len(done) == len(tidied(job))
    assert job.rows() == added(job.started, *batches)

"""The weaker guarantees, under a kill: each is what its name says, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.faults import WRITTEN
from spark.harness import Job
from sparkonce.embedded import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 20_000


def killed_while_writing(kafka: Cluster, folder: Path, guarantee: str) -> Job:
    with Job(kafka.bootstrap, folder, rows=ROWS, sink={"guarantee": guarantee}, points=(WRITTEN,)) as job:
        hold = job.desk.hold(WRITTEN, batch=1)
        run = job.start()
        hold.wait(run.check)
        run.kill()
        job.start(points=()).finish()
    return job


def test_at_least_once_doubles_rows_and_misses_none(kafka: Cluster, tmp_path: Path) -> None:
    values = killed_while_writing(kafka, tmp_path / "job", "AT_LEAST_ONCE").values()
    assert sorted(values) == [f"{number:08d}" for number in range(ROWS)]
    doubled = {key: found for key, found in values.items() if len(found) > 1}
    assert doubled, "the kill came before anything was written"
    assert all(set(found) == {"1"} for found in doubled.values()), "only rows of the killed batch come twice"


def test_at_most_once_misses_rows_and_doubles_none(kafka: Cluster, tmp_path: Path) -> None:
    values = killed_while_writing(kafka, tmp_path / "job", "AT_MOST_ONCE").values()
    assert all(len(found) == 1 for found in values.values())
    missing = {f"{number:08d}" for number in range(ROWS)} - values.keys()
    assert missing, "the kill came when all was written"
    assert 0 < len(missing) < 5_000, "only rows of the killed batch are missing"
    assert "1" in {batch for found in values.values() for batch in found}, "half of the batch was written"

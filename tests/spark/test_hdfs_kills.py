"""A query whose checkpoint is in HDFS, while its driver is killed, or the active name node."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdfs_pair import HdfsPair
from shared_servers import hdfs_server
from spark.kills import hold_at
from spark.test_object_checkpoints import StoreJob
from sparkonce.checkpoint.hdfs import HdfsFiles
from sparkonce.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("phase", ["FINISHING", "DECIDING"])
def test_a_driver_that_is_killed_loses_and_doubles_nothing(kafka: Cluster, tmp_path: Path, phase: str) -> None:
    files = HdfsFiles(f"{hdfs_server().url}/checkpoints/{tmp_path.name}")
    with StoreJob(kafka, tmp_path / "job", files, {}) as job:
        hold = hold_at(phase, job, batch=1)
        first = job.start()
        hold.wait(first.check)
        assert job.decided() == (1 if phase == "FINISHING" else 0)
        first.kill()
        hold.cancel()
        job.start().finish()
        assert job.decided() == 2
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


@pytest.mark.parametrize("phase", ["DECIDING", "FINISHING"])
def test_an_active_name_node_that_dies_under_a_query(kafka: Cluster, tmp_path: Path, phase: str) -> None:
    with HdfsPair(tmp_path / "pair") as pair:
        files = HdfsFiles(f"{pair.url}/checkpoints/a", pair.settings)
        settings = {f"spark.hadoop.{name}": value for name, value in pair.settings.items()}
        with StoreJob(kafka, tmp_path / "job", files, settings) as job:
            hold = hold_at(phase, job, batch=1)
            run = job.start()
            hold.wait(run.check)
            pair.active.kill()
            hold.release()
            pair.take_over()
            run.finish()
            assert job.decided() == 2
            verdict = job.judge()
            assert verdict.is_exactly_once, verdict

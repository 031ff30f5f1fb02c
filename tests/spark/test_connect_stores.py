"""Queries of Spark Connect whose checkpoint is in an S3 bucket or on HDFS, which the server's Python reaches itself.

Needs Hadoop's connector, 600 MB of jars, and so is not in CI.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from eventually import LIMIT_S
from shared_servers import USES_HDFS, hdfs_server
from spark.connect_server import Client, ConnectServer
from spark.harness import PARTITIONS
from spark.kills import hold_at
from spark.processes import kill
from spark.test_object_checkpoints import ObjectJob, StoredJob
from sparkonce.log import DecisionLog
from sparkonce.protocol.view import LogView
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3_600), USES_HDFS]


class HdfsJob(StoredJob):
    """A job whose checkpoint is in a new folder of HDFS."""

    def __init__(self, kafka: Cluster, folder: Path) -> None:
        super().__init__(kafka, folder, HdfsFiles(f"{hdfs_server().url}/checkpoints/{secrets.token_hex(6)}"))


@pytest.mark.parametrize("new_job", [ObjectJob, HdfsJob])
def test_a_query_that_is_killed_loses_and_doubles_nothing(
    kafka: Cluster, tmp_path: Path, new_job: Callable[[Cluster, Path], StoredJob]
) -> None:
    """Its process is killed when a batch is decided, and the whole server when the next one is not yet."""
    with new_job(kafka, tmp_path / "job") as job:
        server = ConnectServer(tmp_path / "first", spark=job.config.spark)
        try:
            decided = hold_at("FINISHING", job, batch=1)
            client = Client(server, [job], tmp_path / "1.log")
            process = decided.wait(client.check).pid
            assert job.decided() == 1
            kill(process)
            client.wait(LIMIT_S)
            client.kill()
            decided.cancel()

            not_decided = hold_at("DECIDING", job, batch=2)
            client = Client(server, [job], tmp_path / "2.log")
            not_decided.wait(client.check)
            assert job.decided() == 1
            server.kill()
            client.kill()
            not_decided.cancel()

            server = ConnectServer(tmp_path / "second", spark=job.config.spark)
            Client(server, [job], tmp_path / "3.log").finish()
        finally:
            server.kill()
        decision = DecisionLog(job.files).read(LogView()).decision(1)
        assert decision is not None
        assert len(decision.handles) == PARTITIONS, "each partition is a slot, although the batch is small"
        assert job.decided() == 2
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        if isinstance(job, ObjectJob):
            assert json.loads(job.files.read("sparkonce/proved") or b"")["client"] == "ObjectFiles"

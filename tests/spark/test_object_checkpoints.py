"""Queries of Spark Connect whose checkpoint is in an S3 bucket or on HDFS. `verifying/test_stores.py` has the others.

Needs Hadoop's connector, 600 MB of jars, and so is not in CI::

    pytest -m slow tests/spark/test_object_checkpoints.py
    python3 dev.py test --spark 4.1.1 tests/spark/test_object_checkpoints.py
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import pytest

from eventually import LIMIT_S
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server
from spark.connect_server import Client, ConnectServer
from spark.harness import PARTITIONS, Job, hold_at, kill
from sparkonce.decision_log import DecisionLog
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import LogView
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.kafka.jars import spark_s3a_class_path
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3_600)]


class StoredJob(Job):
    """A job whose checkpoint is not on a local disk. Spark needs settings for its store."""

    def __init__(
        self, kafka: Cluster, folder: Path, files: CheckpointFiles, spark: Mapping[str, str] | None = None
    ) -> None:
        self.files = files
        super().__init__(
            kafka.bootstrap,
            folder,
            rows=1_200,
            again=False,
            rows_per_batch=400,
            plan="spark.plans:stateless",
            spark=spark or {},
            checkpoint=files.location,
        )

    @property
    def query(self) -> str:
        return short_query(str(json.loads(self.files.read("metadata") or b"")["id"]))

    def decided(self) -> int:
        newest = DecisionLog(self.files).read(LogView()).newest_decision
        return newest.batch if newest is not None else -1


class ObjectJob(StoredJob):
    """A job whose checkpoint is in a new bucket."""

    def __init__(self, kafka: Cluster, folder: Path) -> None:
        self.bucket = bucket = Bucket()
        super().__init__(
            kafka,
            folder,
            bucket.files("checkpoints/to%20tals"),
            {
                "spark.driver.extraClassPath": spark_s3a_class_path(),
                "spark.hadoop.fs.s3a.endpoint": bucket.server.url,
                "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
                "spark.hadoop.fs.s3a.path.style.access": "true",
                f"spark.hadoop.fs.s3a.bucket.{bucket.name}.access.key": ACCESS_KEY,
                f"spark.hadoop.fs.s3a.bucket.{bucket.name}.secret.key": SECRET_KEY,
            },
        )


class HdfsJob(StoredJob):
    """A job whose checkpoint is in a new folder of HDFS."""

    def __init__(self, kafka: Cluster, folder: Path) -> None:
        super().__init__(kafka, folder, HdfsFiles(f"{hdfs_server().url}/checkpoints/{secrets.token_hex(6)}"))


@USES_HDFS
@pytest.mark.parametrize("new_job", [ObjectJob, HdfsJob])
def test_a_query_of_spark_connect_that_is_killed_loses_and_doubles_nothing(kafka, tmp_path, new_job):
    """Its process is killed when a batch is decided, and the whole server when the next one is not yet."""
    with new_job(kafka, tmp_path / "job") as job:
        with ConnectServer(tmp_path / "first", spark=job.config.spark) as server:
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

        with ConnectServer(tmp_path / "second", spark=job.config.spark) as server:
            Client(server, [job], tmp_path / "3.log").finish()
        decision = DecisionLog(job.files).read(LogView()).decision(1)
        assert len(decision.handles) == PARTITIONS, "each partition is a slot, although the batch is small"
        assert job.decided() == 2
        assert job.judge() == ""
        if isinstance(job, ObjectJob):
            assert json.loads(job.files.read("sparkonce/proved") or b"")["client"] == "ObjectFiles"

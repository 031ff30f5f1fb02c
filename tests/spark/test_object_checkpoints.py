"""Queries whose checkpoint is in an S3 bucket, including Spark Connect queries, and Spark Connect queries on HDFS.

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
from spark.harness import PARTITIONS, Job, Run, hold_at, kill
from spark.pipeline import ENDED, REFUSED
from sparkonce.log import DecisionLog
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


@pytest.mark.parametrize("phase", ["FINISHING", "DECIDING"])
def test_a_driver_that_is_killed_loses_and_doubles_nothing(kafka, tmp_path, phase):
    with ObjectJob(kafka, tmp_path / "job") as job:
        hold = hold_at(phase, job, batch=1)
        first = job.start()
        hold.wait(first.check)
        assert job.decided() == (1 if phase == "FINISHING" else 0)
        first.kill()
        hold.cancel()
        job.start().finish()
        assert job.decided() == 2
        proved = json.loads(job.files.read("sparkonce/proved") or b"")
        assert (proved["races"], proved["client"]) == (20, "ObjectFiles")
        assert not [one for one in job.bucket.keys("") if "/.races-" in one or "/.sparkonce-" in one]
        assert job.judge() == ""


@pytest.mark.parametrize("phase", ["CLAIMING", "WRITING", "DECIDING", "FINISHING"])
def test_two_drivers_on_one_checkpoint(kafka, tmp_path, phase):
    """The older driver is paused while the newer one runs, and resumes in the middle of the newer one's run.

    S3A renames by copying, so Spark's own logs do not keep two drivers from running at the same time.
    """

    def why_it_ended(job: Job, run: Run) -> str:
        return "\n".join(str(one.told) for one in job.gate.at(REFUSED, ENDED, pid=run.pid))

    with ObjectJob(kafka, tmp_path / "job") as job:
        held = hold_at(phase, job, batch=0 if phase == "CLAIMING" else 1)
        first = job.start()
        held.wait(first.check, limit_s=600)
        # Hold the second run at the start of its last batch: by then its claim is in the log, but the batch has not
        # been written.
        newer = hold_at("WRITING", job, batch=2)
        second = job.start()
        newer.wait(second.check, limit_s=600)  # two Sparks share the machine
        held.release()
        newer.release()
        codes = first.join(), second.join()
        reasons = why_it_ended(job, first), why_it_ended(job, second)
        assert any(codes), "one of them is stopped"
        stopped = ("SupersededError", "StaleBatchError", "oncurrent")
        if all(codes):
            job.start().finish()
        assert any(one in reasons[0] for one in stopped) or codes[0] == 0, reasons
        assert job.judge() == ""


@USES_HDFS
@pytest.mark.parametrize("new_job", [ObjectJob, HdfsJob])
def test_a_query_of_spark_connect_that_is_killed_loses_and_doubles_nothing(kafka, tmp_path, new_job):
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
        assert job.judge() == ""
        if isinstance(job, ObjectJob):
            assert json.loads(job.files.read("sparkonce/proved") or b"")["client"] == "ObjectFiles"

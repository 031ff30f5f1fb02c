"""Formats whose log is in an object store or in HDFS, with the settings that the session has for it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs_native import Client
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from s3_bucket import Bucket
from shared_servers import hdfs_server, s3_server
from spark.formats_struck import AFTER, BEFORE, PROCESS
from spark.formats_written import FILES, Written, killed_three_times, register
from spark.in_process import SPARK
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import resolve
from sparkonce.rig.servers.hdfs import Hdfs
from sparkonce.rig.servers.s3 import ACCESS_KEY, SECRET_KEY

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.4.1"

pytestmark = SPARK

IN_HDFS = pytest.mark.slow
IN_S3 = pytest.mark.slow


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Settings of stores, registered with the formats by `register`, and unset behind the test."""
    given: dict[str, str] = {}
    yield given
    for name in given:
        spark.conf.unset(name)


def registered(spark: SparkSession, settings: dict[str, str], **given: str) -> SparkSession:
    settings.update(given)
    for name, value in settings.items():
        spark.conf.set(name, value)
    register(spark)
    return spark


def s3a(bucket: Bucket) -> dict[str, str]:
    return {
        "fs.s3a.endpoint": bucket.server.url,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        f"fs.s3a.bucket.{bucket.name}.access.key": ACCESS_KEY,
        f"fs.s3a.bucket.{bucket.name}.secret.key": SECRET_KEY,
    }


@pytest.fixture
def hdfs() -> Hdfs:
    return hdfs_server()


@IN_HDFS
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_stream_with_its_checkpoint_in_hdfs(
    spark: SparkSession, settings: dict[str, str], hdfs: Hdfs, tmp_path: Path, when: str
) -> None:
    folder = f"/checkpoints/{secrets.token_hex(6)}"
    written = Written(registered(spark, settings), tmp_path, "files", checkpoint=f"{hdfs.url}{folder}")
    with pytest.raises(StreamingQueryException):
        written.stream(f"{when} {PROCESS} 1")
    assert written.batches() == (1 if when == BEFORE else 2)
    written.stream()
    assert written.batches() == FILES
    names = [one.path.rpartition("/")[2] for one in Client(hdfs.url).list_status(f"{folder}/sparkonce/records")]
    assert len(names) >= FILES + 2, "two claims, and a decision for each batch"
    assert not [name for name in names if name.startswith(".")]


@IN_HDFS
def test_a_path_without_a_scheme_is_in_the_default_store(
    spark: SparkSession, settings: dict[str, str], hdfs: Hdfs, tmp_path: Path
) -> None:
    folder = f"/checkpoints/{secrets.token_hex(6)}"
    session = registered(spark, settings, **{"fs.defaultFS": hdfs.url})
    written = Written(session, tmp_path, "files", checkpoint=folder)
    written.folder = Path(f"file:{tmp_path}")  # the source's
    written.stream()
    assert written.batches() == FILES
    assert list(Client(hdfs.url).list_status(f"{folder}/sparkonce/records"))
    assert not Path(folder).exists()


@IN_S3
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_job_with_its_log_in_s3(spark: SparkSession, settings: dict[str, str], tmp_path: Path, when: str) -> None:
    bucket = Bucket(s3_server())
    session = registered(spark, settings, **s3a(bucket))
    written = Written(session, tmp_path, "files", log=f"s3a://{bucket.name}/jobs")
    with pytest.raises(Py4JJavaError):
        written.job(f"{when} {PROCESS} 0")
    assert written.batches() == (0 if when == BEFORE else FILES)
    for _ in range(2):
        written.job()
        assert written.batches() == FILES
    assert json.loads(bucket.read("jobs/sparkonce/proved"))["races"] == 20
    assert len([key for key in bucket.keys("jobs/") if "/sparkonce/records/" in key]) >= 2


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_driver_with_its_checkpoint_in_s3_is_killed(kafka: Cluster, tmp_path: Path, when: str) -> None:
    bucket = Bucket(s3_server())
    jars = ":".join(map(str, resolve((HADOOP_AWS,))))
    conf = {"spark.driver.extraClassPath": jars, **{f"spark.hadoop.{k}": v for k, v in s3a(bucket).items()}}
    checkpoint = f"s3a://{bucket.name}/checkpoints/to%20tals"
    killed_three_times(kafka, tmp_path, when, checkpointLocation=checkpoint, spark=json.dumps(conf))
    assert len([key for key in bucket.keys("checkpoints/") if "/sparkonce/records/" in key]) >= 8

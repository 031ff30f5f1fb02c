"""``sparkonce explain`` on checkpoints that are not on this machine's disk, without Spark."""

from __future__ import annotations

import json
import secrets

import pytest
from typer.testing import CliRunner

from shared_servers import USES_HDFS, hdfs_server
from sparkonce.cli.main import app
from sparkonce.decision_log import DecisionLog
from sparkonce.protocol.view import Claim
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY


@pytest.mark.parametrize(
    "keys", ["in the environment", "in Spark's settings", pytest.param("hdfs", marks=[USES_HDFS, pytest.mark.slow])]
)
def test_a_checkpoint_in_a_store_is_explained(bucket, monkeypatch, keys):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    options: list[str] = []
    files: CheckpointFiles = bucket.files("checkpoints/a%20b")
    if keys == "hdfs":
        files = HdfsFiles(f"{hdfs_server().url}/checkpoints/{secrets.token_hex(6)}")
    elif keys == "in the environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    else:
        settings = {
            "endpoint": bucket.server.url,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            f"bucket.{bucket.name}.access.key": ACCESS_KEY,
            f"bucket.{bucket.name}.secret.key": SECRET_KEY,
        }
        for name, value in settings.items():
            options += ["--conf", f"spark.hadoop.fs.s3a.{name}={value}"]

    # A query that reads a topic and writes to one of sparkonce's sinks.
    query = "c4568601-81bc-4954-a0c3-3f9dd4a338f4"
    files.put("metadata", json.dumps({"id": query}).encode())
    files.put("offsets/3", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795281089063,"conf":{}}\n{"orders":{"0":5}}')
    sinks = (("kafka", (("cluster_id", "c"), ("transaction_timeout_ms", "900000"))),)
    claim = Claim(nonce="00000000", run="run", query=query, location=files.location, sinks=sinks)
    assert DecisionLog(files).put(0, claim) is None

    done = CliRunner().invoke(app, ["explain", f"{files.location}/", "--format=json", *options])
    assert done.exit_code == 0, done.output
    found = {(part["role"], part["name"]) for part in json.loads(done.stdout)["parts"]}
    assert {("source", "kafka: orders"), ("sink", "sparkonce: kafka")} <= found


def test_keys_that_the_store_does_not_know(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-wrong")
    done = CliRunner().invoke(app, ["explain", f"s3a://{bucket.name}/nothing"])
    assert done.exit_code == 1
    assert "SignatureDoesNotMatch" in done.output
    assert "credentials" in done.output
    assert "very-wrong" not in done.output

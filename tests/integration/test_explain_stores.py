"""``sparkonce explain`` on checkpoints that are not on this machine's disk, without Spark."""

from __future__ import annotations

import json
import secrets

import pytest
from typer.testing import CliRunner

from object_files import object_files
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server, s3_server
from sparkonce.cli.main import app
from sparkonce.log import DecisionLog
from sparkonce.protocol.view import Claim
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1795281089063,"conf":{}}'
QUERY = "c4568601-81bc-4954-a0c3-3f9dd4a338f4"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket whose keys are in the environment."""
    bucket = Bucket(s3_server())
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return bucket


def make_checkpoint(files: CheckpointFiles) -> None:
    """Puts a query that has read a topic and writes to a sink of ours."""
    files.put("metadata", json.dumps({"id": QUERY}).encode())
    files.put("offsets/3", "\n".join(["v1", SETTINGS, '{"orders":{"0":5}}']).encode())
    sinks = (("kafka", (("cluster_id", "c"), ("transaction_timeout_ms", "900000"))),)
    claim = Claim(nonce="00000000", run="run", query=QUERY, location=files.location, sinks=sinks)
    assert DecisionLog(files).put(0, claim) is None


def explained(url: str, *options: str) -> list[tuple[str, str]]:
    done = CliRunner().invoke(app, ["explain", url, "--no-ask", "--json", *options])
    assert done.exit_code == 0, done.output
    return [(part["role"], part["name"]) for part in json.loads(done.stdout)["queries"][0]["parts"]]


FOUND = [("source", "kafka: orders"), ("sink", "sparkonce: kafka")]


def test_a_checkpoint_in_a_bucket(bucket: Bucket) -> None:
    make_checkpoint(object_files(bucket, "checkpoints/a%20b"))
    assert set(FOUND) <= set(explained(f"s3a://{bucket.name}/checkpoints/a%20b"))


def test_a_store_is_reached_by_sparks_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(s3_server())
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    make_checkpoint(object_files(bucket, "checkpoints/a"))
    own = f"spark.hadoop.fs.s3a.bucket.{bucket.name}"
    settings = {
        "spark.hadoop.fs.s3a.endpoint": bucket.server.url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        f"{own}.access.key": ACCESS_KEY,
        f"{own}.secret.key": SECRET_KEY,
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    assert set(FOUND) <= set(explained(f"s3a://{bucket.name}/checkpoints/a", *options))


@pytest.mark.slow
@USES_HDFS
def test_a_checkpoint_on_hdfs() -> None:
    url = f"{hdfs_server().url}/checkpoints/{secrets.token_hex(6)}"
    make_checkpoint(HdfsFiles(url))
    assert set(FOUND) <= set(explained(f"{url}/"))


def test_keys_that_the_store_does_not_know(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-wrong")
    done = CliRunner().invoke(app, ["explain", f"s3a://{bucket.name}/nothing"])
    assert done.exit_code == 2
    assert "SignatureDoesNotMatch" in done.output
    assert "credentials" in done.output
    assert "very-wrong" not in done.output

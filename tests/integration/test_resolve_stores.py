"""``sparkonce transactions`` on a checkpoint in a store, for files in the same store and a Redis cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from object_files import object_files
from redis_servers import Everywhere, cluster
from s3_bucket import Bucket
from shared_servers import needs_redis, s3_server
from small_job import SmallJob
from sparkonce.cli.main import app
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisCluster
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY

pytestmark = needs_redis

__all__ = ["cluster"]


def test_both_end_as_the_log_in_the_store_says(
    cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = 2
    bucket = Bucket(s3_server())
    checkpoint = object_files(bucket, "checkpoints/totals")
    path, options = f"s3://{bucket.name}/out", dict(bucket.server.settings())
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    redis = Everywhere(*cluster.nodes)
    redis.clear()
    config = tmp_path / "systems.yaml"
    systems = {
        "out": {"system": "files", "path": path, **options},
        "cache": {"system": "redis", "url": cluster.url},
    }
    config.write_text(yaml.safe_dump({"systems": systems}))

    def sinks() -> Sequence[TwoPhaseCommitSink]:
        return [
            FilesSink(path, name="out", store_options=options),
            RedisSink(cluster.url, cluster=True, name="cache"),
        ]

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        number = 10 * batch + slot
        return pa.record_batch({"key": pa.array([number], pa.int64()), "value": [str(number)]})

    def command(*words: str) -> Any:
        done = CliRunner().invoke(app, ["transactions", *words, "--config", str(config), "--format", "json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def verdicts() -> set[tuple[str, str]]:
        told = command("list", "--checkpoint", checkpoint.location, "--query", job.query)
        return {(one["system"], one["verdict"]) for one in told}

    def check_visible(batches: int) -> None:
        wanted = [10 * batch + slot for batch in range(batches) for slot in range(slots)]
        assert sorted(bucket.numbers("key")) == wanted
        assert sorted(int(key) for key in redis.data()) == wanted

    job = SmallJob(tmp_path / "none", sinks, rows, slots=slots)
    job.files_of_checkpoint = checkpoint
    job.run(0)
    job.kill(1, Phase.FINISHING)
    job.put_sparks_files(1)
    assert verdicts() == {("out", "commit"), ("cache", "commit")}
    check_visible(1)
    done = command("resolve", checkpoint.location, "--yes")
    assert (done["lost"], done["left"], done["open"]) == (0, [], [])
    assert (done["batch"], done["committed"]) == (1, 2 * slots)
    check_visible(2)
    assert verdicts() == set()
    job.run(1, 2)
    check_visible(3)

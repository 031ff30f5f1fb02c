"""``sparkonce transactions`` on a checkpoint in a store, for files in the same store and a Redis cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

SLOTS = 2
__all__ = ["cluster"]


class OnS3:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket = Bucket(s3_server())
        self.checkpoint = object_files(self.bucket, "checkpoints/totals")
        self.path, self.options = f"s3://{self.bucket.name}/out", dict(self.bucket.server.settings())
        monkeypatch.setenv("AWS_ENDPOINT_URL", self.bucket.server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)

    def visible(self) -> list[int]:
        return sorted(self.bucket.numbers("key"))


class Scene(NamedTuple):
    """A query that writes to both, and the operator's file."""

    place: OnS3
    job: SmallJob
    redis: Everywhere
    config: Path

    def die_at(self, phase: Phase, batch: int) -> None:
        self.job.kill(batch, phase)
        put = self.place.checkpoint.put
        put("metadata", json.dumps({"id": self.job.query}).encode())
        for number in range(batch + 1):
            put(f"offsets/{number}", f'v1\n{{}}\n{{"t": {{"0": {number}}}}}'.encode())
        for number in range(batch):
            put(f"commits/{number}", b"v1\n{}")

    def command(self, *words: str, exit_code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["transactions", *words, "--config", str(self.config), "--format", "json"])
        assert done.exit_code == exit_code, done.output
        return json.loads(done.stdout)

    def verdicts(self) -> set[tuple[str, str]]:
        told = self.command("list", "--checkpoint", self.place.checkpoint.location, "--query", self.job.query)
        return {(one["system"], one["verdict"]) for one in told}

    def visible(self) -> tuple[list[int], list[int]]:
        return self.place.visible(), sorted(int(key) for key in self.redis.data())


@pytest.fixture
def scene(cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    place = OnS3(monkeypatch)

    def sinks() -> Sequence[TwoPhaseCommitSink]:
        return [
            FilesSink(place.path, name="out", store_options=place.options),
            RedisSink(cluster.url, cluster=True, name="cache"),
        ]

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        number = 10 * batch + slot
        return pa.record_batch({"key": pa.array([number], pa.int64()), "value": [str(number)]})

    job = SmallJob(tmp_path / "none", sinks, rows, slots=SLOTS)
    job.files_of_checkpoint = place.checkpoint
    config = tmp_path / "systems.yaml"
    systems = {
        "out": {"system": "files", "path": place.path, **place.options},
        "cache": {"system": "redis", "url": cluster.url},
    }
    config.write_text(yaml.safe_dump({"systems": systems}))
    redis = Everywhere(*cluster.nodes)
    redis.clear()
    return Scene(place, job, redis, config)


def test_both_end_as_the_log_in_the_store_says(scene: Scene) -> None:
    def wanted(batches: int) -> tuple[list[int], list[int]]:
        numbers = [10 * batch + slot for batch in range(batches) for slot in range(SLOTS)]
        return numbers, numbers

    scene.job.run(0)
    scene.die_at(Phase.FINISHING, 1)
    assert scene.verdicts() == {("out", "commit"), ("cache", "commit")}
    assert scene.visible() == wanted(1)
    done = scene.command("resolve", scene.place.checkpoint.location, "--yes")
    assert (done["lost"], done["left"], done["open"]) == (0, [], [])
    assert (done["batch"], done["committed"]) == (1, 2 * SLOTS)
    assert scene.visible() == wanted(2)
    assert scene.verdicts() == set()
    scene.job.run(1, 2)
    assert scene.visible() == wanted(3)

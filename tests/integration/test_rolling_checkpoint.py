"""A checkpoint moves from a disk to S3 and on to HDFS, each time with a batch that is decided and not committed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hdfs_native import Client

from conformance.write_ahead_targets import AppendingTarget
from object_files import object_files
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server, s3_server
from small_job import SmallJob
from sparkonce.errors import CheckpointMismatchError, StaleLogError
from sparkonce.protocol.state import Phase
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.write_ahead.sink import WriteAheadSink
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.write_ahead import Applies
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = [USES_HDFS, pytest.mark.slow]

PREFIX = "checkpoints/totals"


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"number": [10 * batch + slot]})


def numbers(*batches: int) -> list[int]:
    return sorted(10 * batch + slot for batch in batches for slot in range(2))


def to_bucket(job: SmallJob, bucket: Bucket) -> CheckpointFiles:
    """Copies every file, as ``aws s3 cp --recursive`` does."""
    for path in job.files():
        bucket.client.upload_file(str(path), bucket.name, f"{PREFIX}/{path.relative_to(job.checkpoint)}")
    return object_files(bucket, PREFIX)


def to_hdfs(bucket: Bucket, hdfs: Hdfs) -> CheckpointFiles:
    """Copies every object, as ``hadoop distcp`` does."""
    folder, client = f"/checkpoints/{secrets.token_hex(6)}", Client(hdfs.url)
    for key, content in bucket.objects(PREFIX).items():
        path = f"{folder}/{key.removeprefix(PREFIX).lstrip('/')}"
        client.mkdirs(path.rpartition("/")[0], create_parent=True)
        with client.create(path) as file:
            file.write(content)
    return HdfsFiles(f"{hdfs.url}{folder}")


def test_from_a_disk_to_s3_and_to_hdfs(tmp_path: Path) -> None:
    bucket, target = Bucket(s3_server()), AppendingTarget(tmp_path / "target")
    job = SmallJob(
        tmp_path / "checkpoint",
        lambda: [FilesSink(tmp_path / "out", format="json"), WriteAheadSink(target, applies=Applies.NEITHER)],
        rows,
    )
    job.run(0)

    def move(batch: int, there: Callable[[], CheckpointFiles]) -> None:
        job.kill(batch, Phase.FINISHING)
        before, job.files_of_checkpoint = job.files_of_checkpoint, there()
        with pytest.raises(CheckpointMismatchError, match=r"two copies of one checkpoint") as refused:
            job.run(batch)
        assert "checkpoint_moved=True" in str(refused.value)
        job.moved = True
        job.run(batch)
        job.moved = False
        job.run(batch + 1)
        # The copy that was left behind is an old one now.
        after, job.files_of_checkpoint = job.files_of_checkpoint, before
        with pytest.raises(StaleLogError, match="restored from an old copy"):
            job.run(batch)
        job.files_of_checkpoint = after

    move(1, lambda: to_bucket(job, bucket))
    move(3, lambda: to_hdfs(bucket, hdfs_server()))
    for visible in (written(tmp_path / "out"), sorted(target.visible())):
        assert visible == numbers(0, 1, 2, 3, 4)


def written(folder: Path) -> list[int]:
    lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return sorted(int(line.rpartition(":")[2].rstrip("}")) for line in lines)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.system_suite import WaitingSuite
from conformance.write_ahead_targets import AppendingTarget, KeyedTarget, WriteAheadSystem
from plain_store import PlainStore
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server, s3_server
from sparkonce.protocol.handles import Handle
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.testing.hooks import SinkHooks
from sparkonce.write_ahead import Applies


class TestTransactional(WaitingSuite):
    restart_server = SinkHooks.restart_server  # the folder and the target are plain files
    options = {"applies": Applies.TRANSACTIONAL}  # noqa: RUF012
    target: Any = None
    """The target of the rows. By default, it records the token in the transaction that writes the rows."""

    def new_system(self) -> WriteAheadSystem:
        return WriteAheadSystem(self.target) if self.target is not None else WriteAheadSystem()

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count)), "word": ["w"] * count})


class TestIdempotent(TestTransactional):
    target = KeyedTarget
    options = {"applies": Applies.IDEMPOTENT, "parallel": 1}  # noqa: RUF012


class TestNeither(TestTransactional):
    """Even a target that neither stores tokens nor upserts is exactly-once, as long as nothing interrupts it."""

    target = AppendingTarget
    options = {"applies": Applies.NEITHER}  # noqa: RUF012


class TestWholeBatches(TestNeither):
    loses_whole_batches = True
    options = {"applies": Applies.NEITHER, "per": "batch"}  # noqa: RUF012


class TestOnAStoreWithoutRenames(TestTransactional):
    lists_open = False

    @staticmethod
    def store(folder: Path) -> CheckpointFiles:
        return PlainStore(folder)

    def expire(self, handle: Handle) -> bool:
        self.files.delete([f"sparkonce-write-ahead/write-ahead/rows/{handle['name']}"])
        return True


class TestWholeBatchesOnAStoreWithoutRenames(TestOnAStoreWithoutRenames):
    target = AppendingTarget
    loses_whole_batches = True
    options = {"applies": Applies.NEITHER, "per": "batch"}  # noqa: RUF012


class TestInABucket(TestOnAStoreWithoutRenames):
    @staticmethod
    def store(folder: Path) -> CheckpointFiles:
        return Bucket().files(folder.as_posix().strip("/"))

    def restart_server(self) -> bool:
        s3_server().restart()
        return True


@USES_HDFS
@pytest.mark.slow
class TestOnHdfs(TestOnAStoreWithoutRenames):
    """Uses the client without a JVM, like Python workers."""

    @staticmethod
    def store(folder: Path) -> CheckpointFiles:
        return HdfsFiles(f"{hdfs_server().url}{folder.as_posix()}")

    def restart_server(self) -> bool:
        hdfs_server().restart()
        return True

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.write_ahead_targets import AppendingTarget, KeyedTarget, SqliteTarget, Target
from object_files import object_files
from plain_store import PlainStore
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server, s3_server
from sparkonce import Guarantee, WriteAheadSink
from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.checkpoint.hdfs import HdfsFiles
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.protocol.handles import Handle
from sparkonce.testing.conformance import SinkConformance
from sparkonce.write_ahead import Applies


class WriteAheadSuite(SinkConformance):
    visible_within_s = 0.0
    settings: dict[str, Any]
    target: Target
    root: Path
    store: Callable[[Path], CheckpointFiles] = LocalFiles
    prepared = "prepared"

    def make(self, **changed: Any) -> WriteAheadSink:
        sink = WriteAheadSink(self.target, **{**self.settings, **changed})
        sink.use_checkpoint(self.store(self.root / "checkpoint"))
        return sink

    def make_sink(self) -> WriteAheadSink:
        return self.make()

    def make_second_sink(self) -> WriteAheadSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> WriteAheadSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count)), "word": ["w"] * count})

    def visible(self) -> Sequence[int]:
        return self.target.visible()

    def expire(self, handle: Handle) -> bool:
        """Nothing times out; but somebody may delete files."""
        folder = self.root / "checkpoint" / "sparkonce-write-ahead" / "write-ahead"
        (folder / self.prepared / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        return True  # the folder and the target are files: there is nobody to restart


class TestTransactional(WriteAheadSuite):
    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path) -> None:
        self.root, self.target = tmp_path, SqliteTarget(tmp_path / "target")
        self.settings = {"applies": Applies.TRANSACTIONAL, "is_applied": self.target.is_applied}


@pytest.mark.drawn(17, "other promises of a function")
class TestIdempotent(WriteAheadSuite):
    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path) -> None:
        self.root, self.target = tmp_path, KeyedTarget(tmp_path / "target")
        self.settings = {"applies": Applies.IDEMPOTENT, "parallel": 1}


@pytest.mark.drawn(17, "other promises of a function")
class TestNeither(WriteAheadSuite):
    """As long as nothing interrupts it, it is exactly once, too."""

    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path) -> None:
        self.settle(tmp_path)

    def settle(self, folder: Path) -> None:
        """Gives the check an empty target."""
        self.root, self.target = folder, AppendingTarget(folder / "target")
        self.settings = {"applies": Applies.NEITHER}


@pytest.mark.drawn(17, "other promises of a function")
class TestWholeBatches(WriteAheadSuite):
    loses_whole_batches = True

    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path) -> None:
        self.root, self.target = tmp_path, AppendingTarget(tmp_path / "target")
        self.settings = {"applies": Applies.NEITHER, "per": "batch"}


class TestOnAStoreWithoutRenames(TestTransactional):
    store = PlainStore
    prepared = "rows"


@pytest.mark.drawn(17, "other promises of a function")
class TestWholeBatchesOnAStoreWithoutRenames(TestWholeBatches):
    store = PlainStore
    prepared = "rows"


@pytest.mark.drawn(9, "rows that wait in a bucket")
class TestInABucket(TestOnAStoreWithoutRenames):
    """On a real S3 server."""

    @staticmethod
    def store(folder: Path) -> CheckpointFiles:
        return object_files(Bucket(s3_server()), folder.as_posix().strip("/"))

    def make(self, **changed: Any) -> WriteAheadSink:
        kept = self.__dict__.setdefault("kept", self.store(self.root / "checkpoint"))
        sink = WriteAheadSink(self.target, **{**self.settings, **changed})
        sink.use_checkpoint(kept)
        return sink

    def expire(self, handle: Handle) -> bool:
        self.__dict__["kept"].delete([f"sparkonce-write-ahead/write-ahead/rows/{handle['name']}"])
        return True

    def restart_server(self) -> bool:
        s3_server().restart()
        return True


@USES_HDFS
@pytest.mark.drawn(4, "rows that wait on HDFS")
class TestOnHdfs(TestInABucket):
    """By the client that has no JVM, as Python workers have it."""

    @staticmethod
    def store(folder: Path) -> CheckpointFiles:
        return HdfsFiles(f"{hdfs_server().url}{folder.as_posix()}")

    def restart_server(self) -> bool:
        hdfs_server().restart()
        return True

from __future__ import annotations

import secrets
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdfs_native import Client

from conformance.files_suite import FilesSuite
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.protocol.handles import Handle
from sparkonce.rig.servers.hdfs import Hdfs
from sparkonce.sinks.files.handle import read_handle
from sparkonce.sinks.files.sink import FilesSink

pytestmark = USES_HDFS


@pytest.fixture(scope="module")
def hdfs() -> Hdfs:
    return hdfs_server()


class HdfsSuite(FilesSuite):
    def settle(self, server: Hdfs) -> None:
        self.server = server
        self.client = Client(server.url)
        self.folder = f"/out-{secrets.token_hex(6)}"

    def make(self, **settings: object) -> FilesSink:
        return FilesSink(
            f"{self.server.url}{self.folder}",
            partition_by=self.partition_by,
            max_file_bytes=self.max_file_bytes,
            **settings,  # type: ignore[arg-type]
        )

    def visible(self) -> Sequence[int]:
        found: list[int] = []
        for status in self.client.list_status(self.folder, recursive=True):
            hidden = any(part.startswith((".", "_")) for part in status.path.split("/"))
            if not status.isdir and not hidden:
                content = self.client.read(status.path).read()
                found += pq.read_table(pa.BufferReader(content)).column("number").to_pylist()
        return found

    def expire(self, handle: Handle) -> bool:
        for one in read_handle(handle).files or ():
            self.client.delete(f"{self.folder}/.sparkonce/held/{one['held']}")
        return True


@pytest.mark.drawn(10, "hdfs conformance")
class TestHdfs(HdfsSuite):
    @pytest.fixture(autouse=True)
    def _hdfs(self, hdfs: Hdfs) -> None:
        self.settle(hdfs)

    def restart_server(self) -> bool:
        self.server.restart()
        return True


@pytest.mark.slow
class TestManyFilesOnHdfs(HdfsSuite):
    partition_by = ("part",)
    max_file_bytes = 1

    @pytest.fixture(autouse=True)
    def _hdfs(self, hdfs: Hdfs) -> None:
        self.settle(hdfs)

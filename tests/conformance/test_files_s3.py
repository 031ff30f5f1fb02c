from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.files_suite import FilesSuite
from integration.s3_scene import s3
from s3_bucket import Bucket
from sparkonce.protocol.handles import Handle
from sparkonce.rig.servers.s3 import S3Server
from sparkonce.sinks.files.handle import read_handle
from sparkonce.sinks.files.sink import FilesSink

__all__ = ["s3"]


class S3Suite(FilesSuite):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Server) -> None:
        self.settle(s3)

    def settle(self, server: S3Server) -> None:
        """Gives the check a bucket of its own."""
        self.bucket = Bucket(server)

    def make(self, **settings: object) -> FilesSink:
        return FilesSink(
            f"s3://{self.bucket.name}/out",
            format=self.format,
            partition_by=self.partition_by,
            max_file_bytes=self.max_file_bytes,
            store_options=self.bucket.server.settings(),
            **settings,  # type: ignore[arg-type]
        )

    def visible(self) -> Sequence[int]:
        return self.bucket.numbers("number")

    def expire(self, handle: Handle) -> bool:
        """Versitygw has no lifecycle rules; another client's abort ends an upload the same way."""
        for one in read_handle(handle).files or ():
            self.bucket.abort(str(one["upload_id"]))
        return True

    def restart_server(self) -> bool:
        self.bucket.server.restart()
        return True


class TestParquet(S3Suite):
    pass


@pytest.mark.drawn(5, "many files on S3")
class TestManyFiles(S3Suite):
    """Partitions, and a new file for every few rows: a handle of many files."""

    partition_by = ("part",)
    max_file_bytes = 1

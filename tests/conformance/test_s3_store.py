from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from conformance.store_sink import StoreSink
from s3_bucket import Bucket, running
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.sinks.base import Facts
from sparkonce.sinks.files.s3 import S3Store
from sparkonce.testing.conformance import SinkConformance
from sparkonce.testing.servers.s3 import S3Server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    yield from running(tmp_path_factory)


class TestS3Store(SinkConformance):
    """The store alone, without the files sink around it."""

    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Server) -> None:
        self.bucket = Bucket(s3)

    def make_sink(self) -> StoreSink:
        return StoreSink(self._store())

    def make_second_sink(self) -> StoreSink:
        return StoreSink(self._store(), name="beside")

    def make_direct_sink(self) -> StoreSink:
        return StoreSink(self._store(), guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count))})

    def visible(self) -> Sequence[int]:
        return [int(line) for content in self.bucket.objects().values() for line in content.splitlines()]

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def expire(self, handle: Handle) -> bool:
        # versitygw has no lifecycle rules; another client's abort ends an upload the same way.
        self.bucket.abort(str(handle["upload_id"]))
        return True

    def restart_server(self) -> bool:
        self.bucket.server.restart()
        return True

    def _store(self) -> S3Store:
        return S3Store(f"s3://{self.bucket.name}/out", self.bucket.server.settings())

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.sinks.files.handle import read_handle
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.testing.conformance import SinkConformance

PARTITIONS = 3


class FilesSuite(SinkConformance):
    visible_within_s = 0.0
    root: Path
    format = "parquet"
    partition_by: tuple[str, ...] = ()
    max_file_bytes = 1 << 20

    def make(self, **settings: object) -> FilesSink:
        return FilesSink(
            self.root,
            format=self.format,
            partition_by=self.partition_by,
            max_file_bytes=self.max_file_bytes,
            **settings,  # type: ignore[arg-type]
        )

    def make_sink(self) -> FilesSink:
        return self.make()

    def make_second_sink(self) -> FilesSink:
        return self.make(name="files.beside")

    def make_direct_sink(self) -> FilesSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = range(start, start + count)
        return pa.record_batch({"number": list(numbers), "part": [f"p{number % PARTITIONS}" for number in numbers]})

    def visible(self) -> Sequence[int]:
        found: list[int] = ds.dataset(self.root, format=self.format).to_table().column("number").to_pylist()
        return found

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}.eu"}

    def expire(self, handle: Handle) -> bool:
        """Somebody tidies up."""
        for one in read_handle(handle).files or ():
            (self.root / ".sparkonce" / "held" / str(one["held"])).unlink()
        return True

    def restart_server(self) -> bool:
        """A folder has no server; what is durable is tried in tests/integration/test_files_faults.py."""
        return False

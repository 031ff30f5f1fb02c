from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.testing.conformance import SinkConformance


class TestMemorySink(SinkConformance):
    leaves_process = False
    visible_within_s = 0.0
    finds_missing = True

    def setup_method(self) -> None:
        self.server = MemoryServer()

    def make_sink(self) -> MemorySink:
        return MemorySink(self.server)

    def make_second_sink(self) -> MemorySink:
        return MemorySink(self.server, name="beside")

    def make_direct_sink(self) -> MemorySink:
        return MemorySink(self.server, guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count)), "word": ["w"] * count})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"number": [number], "word": pa.array([None], pa.string())})

    def visible(self) -> Sequence[int]:
        return [int(str(number)) for number, _ in self.server.visible()]

    def expire(self, handle: Handle) -> bool:
        self.server.expire(int(handle["number"]))
        return True

    def restart_server(self) -> bool:
        return True  # the system is in memory, and does not lose its rows

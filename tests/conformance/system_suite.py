"""The conformance suite over a `sparkonce_lab.systems.base.System`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts, TwoPhaseCommitSink
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.testing.conformance import SinkConformance
from sparkonce.testing.hooks import SinkHooks
from sparkonce_lab.systems.base import System


class SystemSuite(SinkConformance):
    """A sink on its real server. A class for each sink names the system, the table's columns and the sink's options.

    Attributes:
        columns: The table's columns.
        options: The sink's arguments.
        server: The server to use instead of the one that the tests of this process share.
    """

    visible_within_s = 0.0
    columns: ClassVar[Sequence[str]] = ()
    options: ClassVar[Mapping[str, Any]] = {}
    system: System
    server: Any = None

    def new_system(self) -> System:
        """Makes a system on `server`, or on the server that the tests of this process share."""
        raise NotImplementedError

    def begin(self, folder: Path) -> None:
        """Gives the check an empty table, topic, folder or bucket."""
        self.folder = folder
        self.system = self.new_system()
        self.system.start(folder)
        self.system.place(*self.columns)

    @pytest.fixture(autouse=True)
    def _system(self, tmp_path) -> Iterator[None]:
        self.begin(tmp_path)
        yield
        self.system.stop()

    def make(self, **more: Any) -> TwoPhaseCommitSink:
        sink = self.system.sink(**{**self.options, **more})
        sink.use_checkpoint(LocalFiles(self.folder / "checkpoint"))
        return sink

    def make_sink(self) -> TwoPhaseCommitSink:
        return self.make()

    def make_second_sink(self) -> TwoPhaseCommitSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> TwoPhaseCommitSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def visible(self) -> Sequence[int]:
        return self.system.visible()

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def expire(self, handle: Handle) -> bool:
        return self.system.expire(handle)

    def restart_server(self) -> bool:
        return self.system.restart()


class WaitingSuite(SystemSuite):
    """A sink whose rows wait in the checkpoint, as they do by default."""

    other_facts = SinkHooks.other_facts
    system: Any

    def begin(self, folder: Path) -> None:
        super().begin(folder)
        self.files = self.store(folder / "checkpoint")
        self.system.folder = folder / "checkpoint"

    @staticmethod
    def store(folder: Path) -> CheckpointFiles:
        return LocalFiles(folder)

    def make(self, **more: Any) -> TwoPhaseCommitSink:
        given = {**self.system.arguments(), **self.options, **more}
        del given["folder"]
        sink: TwoPhaseCommitSink = self.system.build(given)
        sink.use_checkpoint(self.files)
        return sink


def text_rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [str(number) for number in range(start, start + count)]})

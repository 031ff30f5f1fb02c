from __future__ import annotations

import unittest
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from conformance.folder_sink import FolderSink
from sparkonce.sink import Facts, Guarantee, Handle
from sparkonce.testing.conformance import SinkConformance
from sparkonce.testing.elsewhere import commit_elsewhere


class FolderSuite(SinkConformance):
    visible_within_s = 0.0
    root: Path

    def make_sink(self) -> FolderSink:
        return FolderSink(self.root)

    def make_second_sink(self) -> FolderSink:
        return FolderSink(self.root, name="beside")

    def make_direct_sink(self) -> FolderSink:
        return FolderSink(self.root, guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"ignored": ["x"] * count, "number": list(range(start, start + count))})

    def visible(self) -> Sequence[int]:
        return [int(line) for path in (self.root / "committed").iterdir() for line in path.read_text().splitlines()]

    def other_facts(self, facts: Facts) -> Facts:
        return {"prefix": f"{facts['prefix']}-eu"}

    def expire(self, handle: Handle) -> bool:
        name = str(handle["name"])
        (self.root / "prepared" / name).rename(self.root / "aborted" / name)
        return True


class TestFolderSink(FolderSuite):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path) -> None:
        self.root = tmp_path


def test_the_suite_runs_under_unittest(tmp_path):
    folders = iter(range(1000))

    class Suite(FolderSuite, unittest.TestCase):
        def setUp(self) -> None:
            self.root = tmp_path / str(next(folders))

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Suite).run(result)
    assert result.errors == result.failures == []
    assert result.testsRun == len(Suite.checks())
    assert not result.skipped


def test_another_process_that_fails_says_why(tmp_path):
    sink = FolderSink(tmp_path)
    with pytest.raises(RuntimeError, match="KeyError: 'name'"):
        commit_elsewhere(sink, [Handle(sink="folder", slot=0)])

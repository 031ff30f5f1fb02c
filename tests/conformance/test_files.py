from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.files_suite import FilesSuite


class LocalSuite(FilesSuite):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.settle(tmp_path)

    def settle(self, folder: Path) -> None:
        """Gives the check a folder of its own."""
        self.root = folder / "out"
        self.root.mkdir()


class TestParquet(LocalSuite):
    def visible(self) -> Sequence[int]:
        if not list(self.root.glob("*.parquet")):
            return []  # a folder without files has no schema
        return super().visible()


@pytest.mark.drawn(10, "files in other forms")
class TestManyFiles(LocalSuite):
    """Partitions, and a new file for every few rows: a handle of many files."""

    partition_by = ("part",)
    max_file_bytes = 1

    def visible(self) -> Sequence[int]:
        if not list(self.root.glob("*/*.parquet")):
            return []
        return super().visible()


@pytest.mark.drawn(10, "files in other forms")
class TestJson(LocalSuite):
    format = "json"

    def visible(self) -> Sequence[int]:
        if not list(self.root.glob("*.json")):
            return []
        return super().visible()

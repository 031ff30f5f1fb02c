from __future__ import annotations

from pathlib import Path

import pytest

from conformance.checkpoint_suite import CheckpointSuite
from sparkonce.log.base import LogStore
from sparkonce.log.files import FilesLogStore
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles


class TestLocal(CheckpointSuite):
    races = 100

    @pytest.fixture
    def files(self, tmp_path: Path) -> CheckpointFiles:
        return LocalFiles(tmp_path / "checkpoint")

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        assert isinstance(files, LocalFiles)
        return LocalFiles(files.folder)

    def opening(self, files: CheckpointFiles) -> str:
        return (
            "from pathlib import Path\nfrom sparkonce.storage.local import LocalFiles\n"
            f"files = LocalFiles(Path({files.location!r}))"
        )


class TestLogOfFiles(TestLocal):
    """The log's general store on a local disk, which it is not used for."""

    races = 1

    @pytest.fixture
    def store(self, files: CheckpointFiles) -> LogStore:
        return FilesLogStore(files)

from __future__ import annotations

import pytest

from conformance.checkpoint_suite import CheckpointSuite
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles


class TestLocal(CheckpointSuite):
    races = 100

    @pytest.fixture
    def files(self, tmp_path) -> CheckpointFiles:
        return LocalFiles(tmp_path / "checkpoint")

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        assert isinstance(files, LocalFiles)
        return LocalFiles(files.folder)

    def opening(self, files: CheckpointFiles) -> str:
        return (
            "from pathlib import Path\nfrom sparkonce.storage.local import LocalFiles\n"
            f"files = LocalFiles(Path({files.location!r}))"
        )

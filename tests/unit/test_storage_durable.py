from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkonce.storage.local import make_folder


def test_the_names_of_all_folders_that_are_made_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))  # noqa: PTH115

    monkeypatch.setattr(os, "fsync", noted)
    make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(synced) == [".", "a", "a/b", "a/b/c"]
    synced.clear()
    make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(synced) == ["a/b", "a/b/c"], "who made it may have been killed before it was durable"

"""A run's claim is kept in a temporary folder, and without such a folder each batch claims again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim
from sparkonce.spark.formats.ends import StoredRun, _process

CLAIM, TOKEN = Claim(nonce="aaaa", run="r", query="q"), Token(3, "aaaa")


def kept_after_a_batch(monkeypatch: pytest.MonkeyPatch, folder: Path) -> bool:
    monkeypatch.setattr("sparkonce.spark.formats.ends.tempfile.gettempdir", lambda: str(folder))
    key = f"{os.getpid()}-{_process(os.getpid())[2]}-key"
    with StoredRun(key) as first:
        first.keep(CLAIM, TOKEN)
    with StoredRun(key) as second:
        return second.found == (CLAIM, TOKEN)


def test_the_next_process_finds_the_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kept_after_a_batch(monkeypatch, tmp_path)


def test_a_temporary_folder_that_cannot_be_used_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not kept_after_a_batch(monkeypatch, tmp_path / "gone")
    (tmp_path / "file").touch()
    assert not kept_after_a_batch(monkeypatch, tmp_path / "file")

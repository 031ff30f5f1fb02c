"""Prepared files are changed between prepare and commit, by somebody or by a disk failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.files_scene import Life
from small_job import SmallJob
from sparkonce import FilesSink
from sparkonce.files import read_manifests
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase

PARTS = pa.table({"x": [1, 2, 3], "p": ["a", "b", "c"]})


def truncate(path: Path) -> None:
    os.truncate(path, 10)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"PAR1")


def fill_with_zeros(path: Path) -> None:
    """Simulates a file system whose journal knew the file's size, but whose disk lost the blocks."""
    path.write_bytes(bytes(path.stat().st_size))


def held(root: Path) -> list[Path]:
    return sorted((root / ".sparkonce" / "held").iterdir())


def published(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.parquet") if ".sparkonce" not in path.parts)


def rows(root: Path) -> list[int]:
    return sorted(one for path in published(root) for one in pq.ParquetFile(path).read().column("x").to_pylist())


@pytest.mark.parametrize("partition_by", [(), ("p",)])
@pytest.mark.parametrize("damage", [truncate, grow, fill_with_zeros])
def test_a_damaged_file_is_not_published_but_lost(
    tmp_path: Path, damage: Callable[[Path], None], partition_by: tuple[str, ...]
) -> None:
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle, other = life.prepare(PARTS), life.prepare(PARTS, slot=1)
    damage(next(path for path in held(root) if str(handle["name"]) in path.name))
    lost, committed = life.committer.commit([handle, other])
    assert (lost.outcome, committed.outcome) == (Outcome.LOST, Outcome.COMMITTED)
    assert "not as it was written" in lost.reason
    assert rows(root) == [1, 2, 3], "the other slot's"
    assert held(root) == [], "nobody can publish what is left"
    assert life.commit(handle) == [Outcome.LOST]


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_file_that_is_damaged_and_published_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    """Readers may have read it when it was whole. It has both names, as after a kill."""

    def _killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle = life.prepare(PARTS)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _killed)
        with pytest.raises(KeyboardInterrupt):
            life.commit(handle)
    for path in held(root):
        truncate(path)
    assert life.commit(handle) == [Outcome.UNKNOWN]
    assert len(held(root)) == len(published(root)) == (3 if partition_by else 1), "nothing is deleted"
    for path in published(root):
        path.unlink()
    assert life.commit(handle) == [Outcome.LOST], "its files were moved away, as the page says"


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_copy_that_is_damaged_beside_the_published_file_is_taken_away(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle = life.prepare(PARTS)
    names = [path.name for path in held(root)]
    assert life.commit(handle) == [Outcome.COMMITTED]
    for name in names:
        (root / ".sparkonce" / "held" / name).write_bytes(b"of a backup")
    assert life.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert held(root) == []
    assert rows(root) == [1, 2, 3]


@pytest.mark.parametrize("slots_damaged", [1, 2])
def test_the_rows_of_a_damaged_file_are_written_again(tmp_path: Path, slots_damaged: int) -> None:
    root = tmp_path / "out"

    def batch(number: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"x": [100 * number + 10 * slot + one for one in range(3)]})

    def damage() -> None:
        assert len(held(root)) == 2
        for path in held(root)[:slots_damaged]:
            truncate(path)

    job = SmallJob(tmp_path / "checkpoint", lambda: [FilesSink(root)], batch)
    job.run(0)
    job.kill(1, Phase.FINISHING, damage)
    assert rows(root) == [0, 1, 2, 10, 11, 12]
    job.run(1, 2)
    assert rows(root) == sorted(
        one for number in range(3) for slot in range(2) for one in batch(number, slot)["x"].to_pylist()
    )
    assert [one.rows for one in read_manifests(root)] == [6, 6, 6]
    assert held(root) == []


def test_a_driver_that_is_about_to_publish_what_another_calls_lost_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One driver has checked a file that is damaged afterwards; a newer driver writes its rows again."""
    root = tmp_path / "out"
    sleeper, newer = Life(FilesSink(root)), Life(FilesSink(root))
    handle = sleeper.prepare(PARTS)
    link = os.link

    def sleep_first(*arguments: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        truncate(held(root)[0])
        assert newer.commit(handle) == [Outcome.LOST]
        newer.run_batch(PARTS)
        link(*arguments)

    monkeypatch.setattr(os, "link", sleep_first)
    assert sleeper.commit(handle) == [Outcome.LOST]
    assert rows(root) == [1, 2, 3]

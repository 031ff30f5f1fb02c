"""Who may read the files that a query writes under any umask, and that no planted link is followed."""

from __future__ import annotations

import os
import secrets
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from small_job import SmallJob
from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.write_ahead.folder import create_file
from sparkonce.sinks.write_ahead.sink import WriteAheadSink
from sparkonce.storage.local import temporary_file
from sparkonce_lab.rig.kafka import Cluster


@pytest.fixture(params=[0o077, 0o022, 0o000], ids=["umask 077", "umask 022", "umask 000"])
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"day": [f"{batch}"], "id": pa.array([slot], pa.int64())})


def test_a_query_opens_nothing_wider_than_it_must(tmp_path, umask):
    """Kills a run while rows are waiting and files are staged, so that those are checked, too."""

    def modes(folder: Path) -> dict[Path, int]:
        return {path: stat.S_IMODE(path.lstat().st_mode) for path in [folder, *folder.rglob("*")]}

    def take(batch: Any, token: Any) -> None:
        batch.read_all()

    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def sinks() -> list[TwoPhaseCommitSink]:
        return [WriteAheadSink(take, applies="idempotent"), FilesSink(str(out), partition_by=["day"])]

    job = SmallJob(checkpoint, sinks, rows)
    job.run(0)
    job.kill(1, Phase.DECIDING)
    kept, held = modes(checkpoint), modes(out)
    files = {path: mode for path, mode in kept.items() if path.is_file()}
    assert {"records", "prepared", "done", "begun"} <= {path.parent.name for path in files}
    assert set(files.values()) == {0o640 & ~umask}, "handles and rows that wait are not for others"
    assert {mode for path, mode in kept.items() if path.is_dir()} == {0o777 & ~umask}
    assert any(path.parent.name == "held" for path in held)
    job.run(1)
    published = modes(out)
    for found in (held, published):
        assert {mode & umask for mode in found.values()} == {0}
    assert {mode for path, mode in published.items() if path.suffix == ".parquet"} == {0o666 & ~umask}, "as Spark's own"


def test_settings_of_a_broker_are_for_its_user(tmp_path):
    cluster = Cluster(folder=tmp_path, overrides={"listener.name.sasl.plain.sasl.jaas.config": "secret"})
    (broker,) = cluster.brokers
    broker.write_properties()
    assert stat.S_IMODE(broker.properties_file.stat().st_mode) == 0o600
    broker.properties_file.chmod(0o644)
    broker.write_properties()
    assert stat.S_IMODE(broker.properties_file.stat().st_mode) == 0o600
    assert "secret" in broker.properties_file.read_text()


# --- links ----------------------------------------------------------------------------------------------------------


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path, monkeypatch):
    """This simulates an attacker who has guessed the name."""
    guessed = uuid.UUID(int=7)
    monkeypatch.setattr(uuid, "uuid4", lambda: guessed)
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    (tmp_path / f".{guessed.hex}.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError), temporary_file(tmp_path, b"ours"):
        pass
    assert victim.read_text() == "theirs"


def test_a_link_in_the_place_of_rows_is_not_followed(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "rows"
    victim.write_text("theirs")
    link.symlink_to(victim)
    with pytest.raises(FileExistsError):
        create_file(link)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "new")
    with pytest.raises(FileExistsError):
        create_file(dangling)
    assert victim.read_text() == "theirs"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["to a file", "to nothing"])
def test_a_link_in_the_place_of_a_published_file_is_not_followed(tmp_path, monkeypatch, what):
    """The name of a task attempt is random, but in this test, the attacker knows it."""
    monkeypatch.setattr(secrets, "token_hex", lambda count=32: "ab" * count)
    out, victim = tmp_path / "out", tmp_path / "victim"
    job = SmallJob(
        tmp_path / "checkpoint", lambda: [FilesSink(str(out), manifest=False)], rows, slots=1, deadline_s=1.0
    )
    if what == "to a file":
        victim.write_text("theirs")
    planted: list[Path] = []

    def plant(phase: Phase, batch: int) -> None:
        if phase is Phase.FINISHING and not planted:
            (held,) = (out / ".sparkonce" / "held").iterdir()
            planted.append(out / held.name.removesuffix(".held"))
            planted[0].symlink_to(victim)

    with pytest.raises(UnknownOutcomeError):
        job.run(0, listener=plant)
    assert (victim.read_text() if victim.exists() else None) == ("theirs" if what == "to a file" else None)
    planted[0].unlink()
    job.run(0)
    assert planted[0].is_file()
    assert not planted[0].is_symlink()

"""Checkpoints that were copied, moved, deleted, or restored, with their decision log and without it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from eventually import eventually
from spark.harness import new_name
from spark.in_process import MARKS, CrashError, Stream, call_at, crash_at
from sparkonce.errors import (
    CheckpointMismatchError,
    CorruptRecordError,
    StaleBatchError,
    StaleLogError,
    UnknownOutcomeError,
)
from sparkonce.protocol.state import Phase
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]
"""Three batches of at most 400 rows, in groups of four rows from each of four partitions."""

LOG = "sparkonce"


@pytest.fixture
def stream(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> Stream:
    return Stream(spark, kafka, tmp_path, IDS)


@pytest.mark.slow
def test_a_deleted_checkpoint_with_its_old_log_is_refused(stream: Stream) -> None:
    stream.run()
    for entry in stream.checkpoint.iterdir():
        if entry.name != LOG:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with pytest.raises(CheckpointMismatchError, match="decision log belongs to query"):
        stream.run()
    assert stream.keys() == IDS


@pytest.mark.slow
def test_an_older_checkpoint_with_the_newer_log_is_refused(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.WRITING, 1))
    shutil.copytree(stream.checkpoint, tmp_path / "older")
    stream.run()
    shutil.copytree(stream.checkpoint / LOG, tmp_path / "log")
    shutil.rmtree(stream.checkpoint)
    (tmp_path / "older").rename(stream.checkpoint)
    shutil.rmtree(stream.checkpoint / LOG)
    (tmp_path / "log").rename(stream.checkpoint / LOG)
    with pytest.raises(StaleBatchError, match="batch 1 is asked for, but batch 2 is already decided"):
        stream.run()
    assert stream.keys() == IDS


@pytest.mark.slow
def test_a_log_that_lacks_a_record_is_refused(stream: Stream) -> None:
    """An incomplete copy of the log.

    Without the check, this run's claim would take the position of the missing record.
    """
    stream.run()
    stream.send(["more"])
    records = stream.checkpoint / LOG / "records"
    names = sorted(path.name for path in records.iterdir())
    (records / names[-2]).unlink()
    with pytest.raises(CorruptRecordError, match=f"has record {int(names[-1])}, but not record {int(names[-2])}"):
        stream.run()
    assert stream.keys() == IDS
    assert sorted(path.name for path in records.iterdir()) == [*names[:-2], names[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["same", "new"])
def test_a_newer_checkpoint_with_an_older_log_is_refused(stream: Stream, tmp_path: Path, prefix: str) -> None:
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.WRITING, 1))
    shutil.copytree(stream.checkpoint / LOG, tmp_path / "log")
    stream.run()
    shutil.rmtree(stream.checkpoint / LOG)
    (tmp_path / "log").rename(stream.checkpoint / LOG)
    more = [f"more-{number:05d}" for number in range(10)]
    stream.send(more)
    if prefix == "same":
        with pytest.raises(StaleLogError, match="its claim is at position"):
            stream.run()
    else:  # Kafka has no runs for it
        with pytest.raises(CheckpointMismatchError, match="the last decided batch is 0"):
            stream.run(sink={"prefix": new_name("new")})
    assert stream.keys() == IDS


@pytest.mark.slow
@pytest.mark.parametrize(
    "same_run",
    [
        pytest.param(False, id="a newer run had gone on"),
        pytest.param(True, id="the same run had gone on", marks=pytest.mark.slow),
    ],
)
def test_checkpoint_and_log_restored_from_one_old_copy_are_refused(
    stream: Stream, tmp_path: Path, same_run: bool
) -> None:
    copy = tmp_path / "copy"

    def keep_copy() -> None:
        shutil.copytree(stream.checkpoint, copy)

    if same_run:
        stream.run(listener=call_at(Phase.WRITING, 1, keep_copy))
    else:
        with pytest.raises(CrashError):
            stream.run(listener=crash_at(Phase.WRITING, 1))
        keep_copy()
        stream.run()
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(copy, stream.checkpoint)
    for _ in range(2):
        with pytest.raises(StaleLogError, match="restored from an old copy") as told:
            stream.run()
        assert ("no decision in it names" if same_run else "its claim is at position") in str(told.value)
    assert stream.keys() == IDS
    # If you want those batches twice, you can have them.
    stream.run(sink={"prefix": new_name("twice")})
    assert stream.keys() == sorted(IDS + IDS[400:])


def test_a_copied_checkpoint_is_refused_and_the_original_goes_on(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 1))
    copy = tmp_path / "copy"
    shutil.copytree(stream.checkpoint, copy)
    with pytest.raises(CheckpointMismatchError, match=r"two copies of one checkpoint.*checkpoint_moved=True"):
        stream.run(checkpoint=copy)
    stream.run()
    with pytest.raises(CheckpointMismatchError, match="two copies of one checkpoint"):
        stream.run(checkpoint=copy)
    with pytest.raises(StaleLogError, match="one of two copies that have both written"):
        stream.run(checkpoint=copy, checkpoint_moved=True)
    assert stream.keys() == IDS
    assert stream.transactions("Ongoing") == {}


@pytest.mark.slow
def test_a_moved_checkpoint_goes_on_when_it_is_told_so(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 1))
    moved = tmp_path / "moved"
    stream.checkpoint.rename(moved)
    with pytest.raises(CheckpointMismatchError, match="checkpoint_moved=True"):
        stream.run(checkpoint=moved)
    stream.run(checkpoint=moved, checkpoint_moved=True)
    assert stream.keys() == IDS
    stream.send(["after"])
    stream.run(checkpoint=moved)
    assert stream.keys() == [*IDS, "after"]


@pytest.mark.slow
def test_a_checkpoint_whose_log_is_deleted_is_refused_and_goes_on_under_another_prefix(stream: Stream) -> None:
    stream.run()
    shutil.rmtree(stream.checkpoint / LOG)
    stream.send(["after"])
    with pytest.raises(StaleLogError, match="the log was deleted"):
        stream.run()
    stream.run(sink={"prefix": new_name("after")})
    assert stream.keys() == [*IDS, "after"]


FORGETFUL = {
    "transactional.id.expiration.ms": 15_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
}


@pytest.mark.slow
def test_an_operator_notes_a_batch_as_done_of_which_nobody_knows(spark: SparkSession, tmp_path: Path) -> None:
    """As described in docs/operations.md. The state continues, so earlier rows count as duplicates afterwards."""

    def without_duplicates(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["key"])

    with Cluster(overrides=FORGETFUL) as forgetful:
        stream = Stream(spark, forgetful, tmp_path, IDS)
        with pytest.raises(CrashError):
            stream.run(without_duplicates, listener=crash_at(Phase.SWEEPING_OWN, 1))
        eventually(lambda: not stream.transactions(), "the broker has forgotten the query's ids")
        with pytest.raises(UnknownOutcomeError, match="INVALID_PRODUCER_ID_MAPPING"):
            stream.run(without_duplicates, outage_patience_s=1.0)
        assert stream.keys() == IDS[:800]

        commits = stream.checkpoint / "commits"
        assert not (commits / "1").exists()
        shutil.copyfile(commits / "0", commits / "1")
        stream.send(IDS)
        stream.run(without_duplicates)
        assert stream.keys() == IDS

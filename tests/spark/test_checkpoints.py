"""Checkpoints that were copied, moved, deleted, or restored, with their decision log and without it."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import DataFrame

from eventually import eventually
from spark.harness import new_name
from spark.in_process import IDS, MARKS, CrashError, Stream, call_at, crash_at
from sparkonce.errors import (
    CheckpointMismatchError,
    StaleLogError,
    UnknownOutcomeError,
)
from sparkonce.protocol.state import Phase
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS


@pytest.mark.slow
def test_checkpoint_and_log_restored_from_one_old_copy_are_refused(stream, tmp_path):
    copy = tmp_path / "copy"
    stream.run(listener=call_at(Phase.WRITING, 1, lambda: shutil.copytree(stream.checkpoint, copy)))
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(copy, stream.checkpoint)
    for _ in range(2):
        with pytest.raises(StaleLogError, match=r"no decision in it names 2 of .* were restored from an old copy"):
            stream.run()
    assert stream.keys() == IDS
    # With this argument, those batches are written a second time.
    stream.run(sink={"prefix": new_name("twice")})
    assert stream.keys() == sorted(IDS + IDS[400:])


def test_a_copied_checkpoint_is_refused_and_the_original_goes_on(stream, tmp_path):
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
def test_an_operator_notes_a_batch_as_done_of_which_nobody_knows(spark, tmp_path):
    """As described in docs/operations.md. The state continues, so earlier rows count as duplicates afterwards."""

    def without_duplicates(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["key"])

    soon = {
        "transactional.id.expiration.ms": 15_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    }
    with Cluster(overrides=soon) as forgetful:
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

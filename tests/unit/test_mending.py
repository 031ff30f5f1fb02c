"""Spark's files after a crash of the machine: what the decision log can restore, and what may be deleted."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.start import mend
from sparkonce.errors import CheckpointMismatchError
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit, LogView
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.offsets import same_offsets, without_files
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

QUERY = "abf054bc-14e9-4a07-8bd5-5c9f50a2f4a4"
HEADER = '{"batchWatermarkMs":7,"batchTimestampMs":5,"conf":{"spark.sql.shuffle.partitions":"4"}}'


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """Batch 0 is done and batch 1 planned, both from the file source; Spark's files are whole."""
    for number in range(2):
        for name, text in {
            f"offsets/{number}": f'v1\n{HEADER}\n{{"logOffset":{number}}}',
            f"sources/0/{number}": f'v1\n{{"path":"file:///in/{number}","timestamp":1,"batchId":{number}}}',
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


def decided(checkpoint: Path, *batches: int) -> LogView:
    files = LocalFiles(checkpoint)
    log = DecisionLog(files, decides=True)
    log.put(0, Claim(nonce="0badcafe", run="r", query=QUERY, location=str(checkpoint)))
    for position, batch in enumerate(batches, 1):
        offsets = SparkCheckpoint(files).input_offsets(batch)
        assert offsets is not None
        log.put(position, Commit(token=Token(0, "0badcafe"), query=QUERY, batch=batch, offsets=offsets, handles=()))
    return log.read(LogView())


def test_what_a_decision_rests_on_is_written_again(checkpoint):
    spark = SparkCheckpoint(LocalFiles(checkpoint))
    view = decided(checkpoint, 0, 1)
    before = spark.input_offsets(1)
    for name in ("metadata", "offsets/1"):
        (checkpoint / name).write_bytes(b"")
    (checkpoint / "offsets" / ".1.crc").write_bytes(b"of other bytes")
    mend(spark, view)
    assert spark.query_id() == QUERY
    assert spark.input_offsets(1) == before
    version, header, offset = (checkpoint / "offsets" / "1").read_text().splitlines()
    assert (version, offset) == ("v1", '{"logOffset":1}')
    assert json.loads(header)["conf"] == {"spark.sql.shuffle.partitions": "4"}
    assert not (checkpoint / "offsets" / ".1.crc").exists()
    mend(spark, view)  # nothing is empty anymore


@pytest.mark.parametrize("name", ["metadata", "offsets/1"])
@pytest.mark.parametrize("garbled", [b"\xff\x00", b"nothing of Spark's"])
def test_a_garbled_file_is_emptied_as_the_error_says_and_written_again(checkpoint, name, garbled):
    spark = SparkCheckpoint(LocalFiles(checkpoint))
    view = decided(checkpoint, 0, 1)
    before = spark.query_id(), spark.input_offsets(1)
    (checkpoint / name).write_bytes(garbled)
    with pytest.raises(CheckpointMismatchError) as told:
        _ = spark.query_id(), spark.input_offsets(1)
    command = told.value.next_step.rpartition(": ")[2]
    assert subprocess.run(shlex.split(command), check=False).returncode == 0
    mend(spark, view)
    assert (spark.query_id(), spark.input_offsets(1)) == before


@pytest.mark.parametrize(
    ("empty", "planned"),
    [
        (["offsets/1"], []),
        (["commits/0"], []),
        (["offsets/1", "sources/0/1"], []),
        (["sources/0/1.compact"], ["offsets/1"]),
        (["sources/0/1"], ["offsets/1"]),
    ],
)
def test_what_no_decision_needs_is_to_be_deleted(checkpoint, empty, planned):
    """This includes a batch that is planned with lost files: its offsets are whole, and Spark would fail."""
    view = decided(checkpoint, 0)
    for name in empty:
        (checkpoint / name).write_bytes(b"")
    with pytest.raises(CheckpointMismatchError) as caught:
        mend(SparkCheckpoint(LocalFiles(checkpoint)), view)
    command = caught.value.next_step.partition(": ")[2].split()
    assert command == ["rm", *(f"{checkpoint}/{name}" for name in [*planned, *empty])]


def test_before_the_first_decision_all_of_it_may_be_deleted(checkpoint):
    for name in ("metadata", "offsets/0"):
        (checkpoint / name).write_bytes(b"")
    with pytest.raises(CheckpointMismatchError, match="emptied metadata, offsets/0") as caught:
        mend(SparkCheckpoint(LocalFiles(checkpoint)), LogView())
    assert f"rm {checkpoint}/metadata {checkpoint}/offsets/0" in caught.value.next_step


def test_the_lost_list_of_a_decided_batchs_files_cannot_be_replaced(checkpoint):
    view = decided(checkpoint, 0, 1)
    (checkpoint / "sources" / "0" / "1").write_bytes(b"")
    with pytest.raises(CheckpointMismatchError, match="emptied sources/0/1") as caught:
        mend(SparkCheckpoint(LocalFiles(checkpoint)), view)
    assert caught.value.next_step.startswith("Batch 1 is decided and needs them: restore")


def test_an_offset_of_the_file_source_stands_for_its_files(checkpoint):
    spark = SparkCheckpoint(LocalFiles(checkpoint))
    (before,) = spark.input_offsets(1) or ()
    assert without_files(before) == '{"logOffset":1}'
    entries = checkpoint / "sources" / "0"
    compacted = "".join(f"\n{line}" for n in range(2) for line in (entries / f"{n}").read_text().splitlines()[1:])
    (entries / "1").unlink()
    (entries / "1.compact").write_text(f"v1{compacted}")
    assert spark.input_offsets(1) == (before,)  # the same entry, now with the earlier ones
    (entries / "1.compact").unlink()
    assert spark.input_offsets(1) == ('{"logOffset":1}',)
    (entries / "1").write_text('v1\n{"path":"file:///in/other","timestamp":1,"batchId":1}')
    (other,) = spark.input_offsets(1) or ()
    assert not same_offsets([before], [other])
    assert same_offsets([before], ['{"logOffset":1}'])
    assert same_offsets(['{"logOffset":1}'], [other])
    assert not same_offsets([before], ['{"logOffset":2}'])
    assert not same_offsets([before], [before, other])
    assert without_files('{"files":{"0":1}}') == '{"files":{"0":1}}'  # a topic with this name

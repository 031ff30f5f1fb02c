from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.errors import CheckpointMismatchError, ConfigurationError
from sparkonce.spark.start.checks import CheckpointLocation, check_query
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

QUERY = "7f6e5d4c-0000-4000-8000-000000000001"
SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1795237934862,"conf":{"spark.sql.shuffle.partitions":"4"}}'


def checkpoint(folder: Path) -> SparkCheckpoint:
    return SparkCheckpoint(LocalFiles(folder))


def write_offsets(checkpoint: Path, batch: int, *sources: str, settings: str = SETTINGS, version: str = "v1") -> None:
    """Writes offsets in Spark 4.0's format, without a trailing newline."""
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join([version, settings, *sources]))


def test_offsets_are_one_text_a_source(tmp_path):
    write_offsets(tmp_path, 3, '{"orders":{"0":500,"1":7}}', "12")
    assert checkpoint(tmp_path).input_offsets(3) == ('{"orders":{"0":500,"1":7}}', "12")

    write_offsets(tmp_path, 0, "-", '{"a":{"0":1}}')
    assert checkpoint(tmp_path).input_offsets(0) == ("-", '{"a":{"0":1}}')

    write_offsets(tmp_path, 0, "[" * 100_000)
    assert checkpoint(tmp_path).input_offsets(0) == ("[" * 100_000,)


def test_offsets_are_the_same_however_they_are_written(tmp_path):
    write_offsets(tmp_path, 0, '{"b":{"1":7,"0":500},"a":{"0":1}}')
    write_offsets(tmp_path, 1, '{ "a": {"0": 1}, "b": {"0": 500, "1": 7} }')
    assert checkpoint(tmp_path).input_offsets(0) == checkpoint(tmp_path).input_offsets(1)

    write_offsets(tmp_path, 0, '{"a":{"0":1}}')
    write_offsets(tmp_path, 1, '{"a":{"0":2}}')
    assert checkpoint(tmp_path).input_offsets(0) != checkpoint(tmp_path).input_offsets(1)

    write_offsets(tmp_path, 0, '{"a":{"0":1}}')
    write_offsets(tmp_path, 1, '{"a":{"0":1}}', settings='{"batchTimestampMs":9}')
    assert checkpoint(tmp_path).input_offsets(0) == checkpoint(tmp_path).input_offsets(1)

    write_offsets(tmp_path, 0, '{"a":{"0":1}}', "12")
    write_offsets(tmp_path, 1, '0:{"a":{"0":1}}', "1:12", version="v2")
    assert checkpoint(tmp_path).input_offsets(0) == checkpoint(tmp_path).input_offsets(1)


def test_offsets_of_named_sources_are_the_same_in_any_order(tmp_path):
    """This is version 2 of the offset log, which Spark 4.2 writes if configured to."""
    first, second, eleventh = '0:{"b":{"1":7},"a":{"0":1}}', '1:{"logOffset":3}', "10:-"
    write_offsets(tmp_path, 0, eleventh, second, first, version="v2")
    assert checkpoint(tmp_path).input_offsets(0) == ('{"a":{"0":1},"b":{"1":7}}', '{"logOffset":3}', "-")
    write_offsets(tmp_path, 1, 'orders:{"a":{"0":1}}', 'names:{"b":{"0":2}}', version="v2")
    assert checkpoint(tmp_path).input_offsets(1) == ('{"b":{"0":2}}', '{"a":{"0":1}}')
    assert checkpoint(tmp_path).source_lines(0) == [first[2:], second[2:], "-"]


def test_checksums_beside_the_logs_are_no_batches(tmp_path):
    """Hadoop writes ``.3.crc``, and Spark 4.1 and later ``3.crc`` if checkpoint checksums are enabled."""
    write_offsets(tmp_path, 3, "1")
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "2").write_text("v2\n{}")
    for name in ("offsets/.3.crc", "offsets/4.crc", "commits/.2.crc", "commits/3.crc"):
        (tmp_path / name).write_text("{}")
    kept = checkpoint(tmp_path)
    assert (kept.begun(), kept.finished()) == (3, 2)


@pytest.mark.parametrize("batch", [-1, 5])
def test_a_batch_that_spark_does_not_have(tmp_path, batch):
    write_offsets(tmp_path, 0, "1")
    assert checkpoint(tmp_path).input_offsets(batch) is None


@pytest.mark.parametrize("text", ["", "v1", "{}\n{}\n{}", "1\n{}\n{}"], ids=["empty", "torn", "json", "no version"])
def test_offsets_that_spark_cannot_have_written(tmp_path, text):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(CheckpointMismatchError, match=f"{tmp_path}/offsets/0 does not begin like") as caught:
        checkpoint(tmp_path).input_offsets(0)
    assert "Restore" in caught.value.next_step


def test_the_query_of_a_checkpoint(tmp_path):
    assert checkpoint(tmp_path).query_id() is None
    (tmp_path / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    assert checkpoint(tmp_path).query_id() == QUERY

    (tmp_path / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    check_query(LocalFiles(tmp_path), QUERY)


def test_the_running_query_has_another_checkpoint(tmp_path):
    with pytest.raises(ConfigurationError, match=f"checkpointLocation is '/other', .*checkpoint='{tmp_path}'"):
        check_query(LocalFiles(tmp_path), QUERY, lambda: CheckpointLocation("/other", is_temporary=False))
    with pytest.raises(ConfigurationError, match="holds no query"):
        check_query(LocalFiles(tmp_path), QUERY, lambda: CheckpointLocation(str(tmp_path), is_temporary=False))
    with pytest.raises(ConfigurationError, match="has no option checkpointLocation") as caught:
        check_query(LocalFiles(tmp_path), QUERY, lambda: CheckpointLocation("/tmp/temporary-5", is_temporary=True))  # noqa: S108
    assert f'.option("checkpointLocation", "{tmp_path}")' in caught.value.next_step

    with pytest.raises(ConfigurationError, match=f"holds no query, and the running query is {QUERY}"):
        check_query(LocalFiles(tmp_path), QUERY)
    (tmp_path / "metadata").write_text('{"id":"another"}')
    with pytest.raises(ConfigurationError, match="holds query another") as caught:
        check_query(LocalFiles(tmp_path), QUERY)
    assert "checkpointLocation" in caught.value.next_step


@pytest.mark.parametrize("data", [b"[]", b"5", b"[" * 100_000, b"\xff\xfe", b"{}", b"null"])
def test_metadata_that_spark_does_not_write(tmp_path, data):
    (tmp_path / "metadata").write_bytes(data)
    with pytest.raises(CheckpointMismatchError, match="metadata"):
        checkpoint(tmp_path).query_id()


def test_offsets_that_are_no_text(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1\n\xff\n{}")
    with pytest.raises(CheckpointMismatchError, match="is not text"):
        checkpoint(tmp_path).input_offsets(0)


def test_sparks_checkpoint_is_read_as_it_stands(tmp_path):
    kept = checkpoint(tmp_path)
    assert (kept.begun(), kept.finished(), kept.finished_watermark_ms()) == (-1, -1, 0)
    for log, batches in {"offsets": (9, 10), "commits": (9,)}.items():
        (tmp_path / log).mkdir()
        for batch in batches:
            (tmp_path / log / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":{batch * 100}}}\n{{}}')
    (tmp_path / "offsets" / ".10.crc").write_text("")
    assert (kept.begun(), kept.finished(), kept.finished_watermark_ms()) == (10, 9, 900)
    assert kept.is_unrecorded(10)
    assert not kept.is_unrecorded(9)

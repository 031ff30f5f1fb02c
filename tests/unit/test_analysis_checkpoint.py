"""What a checkpoint folder says, on folders as Spark 4.0 leaves them. Real ones are in spark/test_explain_*."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.analysis.checkpoint import checkpoint_facts, explain_checkpoint, is_checkpoint
from sparkonce.analysis.facts import SourceFacts
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1795281089063,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def checkpoint(folder: Path, *offsets: str) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"c4568601-81bc-4954-a0c3-3f9dd4a338f4"}')
    (folder / "offsets" / "9").write_text("\n".join(["v1", SETTINGS, '{"old": {"0": 1}}']))
    (folder / "offsets" / "10").write_text("\n".join(["v1", SETTINGS, *offsets]))
    return folder


def kept(folder: Path, source: int, name: str, text: str) -> None:
    place = folder / "sources" / str(source)
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)


@pytest.mark.parametrize(
    ("offset", "form", "where"),
    [
        ('{"orders":{"0":5,"1":7},"clicks":{"0":1}}', "kafka", "orders, clicks"),
        ('{"logOffset":3}', "file", ""),
        (
            '{"sourceVersion":1,"reservoirId":"abc","reservoirVersion":4,"index":-1,"isStartingVersion":false}',
            "delta",
            "table id abc",
        ),
        ('{"version":1,"snapshot_id":77,"position":0,"scan_all_files":false}', "iceberg", ""),
        ('{"offset":20,"timestamp":1000}', "rate-micro-batch", ""),
        ('{"shardId":"1"}', "", "its offset holds shardId"),
        ("17", "", "source 0, its offset is 17"),
        ("-", "", "source 0, its offset is -"),
    ],
)
def test_the_shape_of_an_offset_tells_the_source(tmp_path: Path, offset: str, form: str, where: str) -> None:
    (found,) = checkpoint_facts(checkpoint(tmp_path / "c", offset)).sources
    assert (found.format, found.where, found.options) == (form, where, None)


def test_what_a_source_keeps_tells_more(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", "17", '{"logOffset":0}', '{"orders":{"0":5}}')
    kept(folder, 0, "0", "v1\n1795281088996")
    kept(folder, 1, "0", 'v1\n{"path":"file:///data/in/a.txt","timestamp":1,"batchId":0}\n')
    sources = checkpoint_facts(folder).sources
    assert [(source.format, source.where) for source in sources] == [
        ("rate", ""),
        ("file", "file:///data/in"),
        ("kafka", "orders"),
    ]
    assert sources[2] == SourceFacts(format="kafka", options=None, where="orders", names=("orders",))


def test_the_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", '{"orders":{"0":5}}')
    assert explain_checkpoint(folder).level is Guarantee.AT_MOST_ONCE
    found = explain_checkpoint(folder, sink="delta")
    assert found.level is Guarantee.EXACTLY_ONCE
    assert any("cannot be seen" in condition for condition in found.part("engine").conditions)
    assert not (folder / "sparkonce").exists(), "reading makes nothing"


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    assert not is_checkpoint(tmp_path)
    with pytest.raises(ConfigurationError, match="is no checkpoint"):
        checkpoint_facts(tmp_path)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(ConfigurationError, match="has no batch yet"):
        checkpoint_facts(tmp_path)

"""What a checkpoint folder shows, with folders as Spark 4.0 leaves them.

Real ones are tested in spark/test_explain.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.analysis.checkpoint import _sink, checkpoint_facts, explain_checkpoint
from sparkonce.analysis.facts import KafkaSourceFacts
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.view import Claim, Commit, LogView
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1795281089063,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def checkpoint(folder: Path, *offsets: str) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"c4568601-81bc-4954-a0c3-3f9dd4a338f4"}')
    (folder / "offsets" / "9").write_text("\n".join(["v1", SETTINGS, '{"old": {"0": 1}}']))
    (folder / "offsets" / "10").write_text("\n".join(["v1", SETTINGS, *offsets]))
    return folder


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
        (
            '{"orders":{"offset":5,"first":0},"b":{"offset":9,"chunk":7,"at":1,"first":2}}',
            "rabbitmq_stream",
            "orders, b",
        ),
        (
            '{"stream":"shop/orders","cut":{"0":5,"4294967298":0},"made":{"0":1795647840578}}',
            "pravega_stream",
            "shop/orders",
        ),
        ('{"shardId":"1"}', "", "its offset holds shardId"),
        ("17", "", "source 0, its offset is 17"),
        ("-", "", "source 0, its offset is -"),
    ],
)
def test_the_shape_of_an_offset_tells_the_source(tmp_path, offset, form, where):
    (found,) = checkpoint_facts(LocalFiles(checkpoint(tmp_path / "c", offset))).sources
    assert (found.format, found.where, found.options) == (form, where, None)


def test_what_a_source_keeps_tells_more(tmp_path):
    def kept(folder: Path, source: int, name: str, text: str) -> None:
        place = folder / "sources" / str(source)
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)

    folder = checkpoint(tmp_path / "c", "17", '{"logOffset":0}', '{"orders":{"0":5}}')
    kept(folder, 0, "0", "v1\n1795281088996")
    kept(folder, 1, "0", 'v1\n{"path":"file:///data/in/a.txt","timestamp":1,"batchId":0}\n')
    sources = checkpoint_facts(LocalFiles(folder)).sources
    assert [(source.format, source.where) for source in sources] == [
        ("rate", ""),
        ("file", "file:///data/in"),
        ("kafka", "orders"),
    ]
    assert sources[2] == KafkaSourceFacts(options=None, where="orders", names=("orders",), by_shape=True)


def test_the_whole(tmp_path):
    folder = checkpoint(tmp_path / "c", '{"orders":{"0":5}}')
    assert explain_checkpoint(LocalFiles(folder)).level is Guarantee.AT_MOST_ONCE
    found = explain_checkpoint(LocalFiles(folder), sink="delta")
    assert found.level is Guarantee.EXACTLY_ONCE
    assert any("cannot be seen" in condition for condition in found.part("engine").conditions)
    assert not (folder / "sparkonce").exists(), "reading makes nothing"
    assert any("the source is Kafka" in condition for condition in found.part("source").conditions)


@pytest.mark.parametrize("text", ["", "v1", "v1\n" + SETTINGS, "v1\n" + SETTINGS + "\n"])
def test_a_newest_batch_that_was_cut_off(tmp_path, text):
    folder = checkpoint(tmp_path / "c", '{"orders":{"0":5}}')
    (folder / "offsets" / "11").write_text(text)
    with pytest.raises(ConfigurationError, match=r"offsets/11' is empty or cut off"):
        explain_checkpoint(LocalFiles(folder), sink="delta")


KAFKA, TIMEOUT = {"cluster_id": "c"}, {"transaction_timeout_ms": "1000"}


@pytest.mark.parametrize(
    ("runs", "guarantee"),
    [
        ([(KAFKA | TIMEOUT, "t")], Guarantee.EXACTLY_ONCE),
        ([(KAFKA | TIMEOUT, "t"), (KAFKA, None)], None),
        ([(KAFKA, None), (KAFKA | TIMEOUT, "t")], Guarantee.EXACTLY_ONCE),
        ([({}, "t")], Guarantee.EXACTLY_ONCE),
        ([({}, "t"), ({}, None)], None),
    ],
)
def test_a_sink_is_what_the_newest_run_says(runs, guarantee):
    def logged(*runs: tuple[dict[str, str], str | None]) -> LogView:
        view = LogView()
        for number, (facts, transaction) in enumerate(runs):
            claim = Claim(nonce=f"n{number}", run="r", query="q", sinks=(("s", tuple(sorted(facts.items()))),))
            view = view.apply(view.end, claim)
            handles = (Handle(sink="s", slot=0, transaction=(("id", transaction),)),) if transaction is not None else ()
            view = view.apply(
                view.end, Commit(token=view.newest_run.token, query="q", batch=number, offsets=(), handles=handles)
            )
        return view

    view = logged(*runs)
    assert _sink("s", dict(view.newest_run.sinks[0][1]), view).guarantee is guarantee


def test_what_is_no_checkpoint(tmp_path):
    assert not SparkCheckpoint(LocalFiles(tmp_path)).exists()
    with pytest.raises(ConfigurationError, match="is not a checkpoint"):
        checkpoint_facts(LocalFiles(tmp_path))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(ConfigurationError, match="has no batch yet"):
        checkpoint_facts(LocalFiles(tmp_path))

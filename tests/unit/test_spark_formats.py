from __future__ import annotations

import errno
import os
import tempfile
from decimal import Decimal

import pyarrow as pa
import pytest

from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim
from sparkonce.spark.formats.ends import StoredRun, _process
from sparkonce.spark.formats.task import fingerprints

DAYS = pa.array([1, 12_019_723, None, 12_019_724], pa.int32()).cast(pa.date32())
INSTANTS = pa.array([1, 2**62, None, 2**62 + 1]).cast(pa.timestamp("us", "UTC"))
TEXTS = pa.array([b"a", b"a\xff", None, b"\xff"]).view(pa.string())
COLUMNS = [
    DAYS,
    INSTANTS,
    TEXTS,
    TEXTS.cast(pa.large_string()),
    pa.array([Decimal(1), Decimal(10) ** 37, None, Decimal(-1)], pa.decimal128(38, 0)),
    pa.array([[1, 2], [2, 1], None, []], pa.list_(pa.int32())),
    pa.array([[[1], []], [[], [1]], None, [None]], pa.large_list(pa.list_(pa.int32()))),
    pa.array([[("a", 1)], [("a", 2)], None, []], pa.map_(pa.string(), pa.int32())),
    pa.array([{"a": 1, "b": 2}, {"a": 2, "b": 1}, None, {"a": None, "b": None}]),
    *(pa.ListArray.from_arrays([0, 1, 2, 3, 4], one) for one in (DAYS, INSTANTS, TEXTS)),
    *(pa.StructArray.from_arrays([one], ["x"]) for one in (DAYS, INSTANTS, TEXTS)),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_different_values_differ_and_the_same_are_the_same(column):
    def of(values: pa.Array) -> list[int]:
        return list(fingerprints(pa.record_batch({"x": values}), ["x"]).to_pylist())

    found = of(column)
    assert len(set(found)) == len(column)
    assert of(column.slice(1)) == found[1:]
    assert of(column.take(pa.array([3, 1, 2, 0]))) == [found[place] for place in (3, 1, 2, 0)]


CLAIM, TOKEN = Claim(nonce="aaaa", run="r", query="q"), Token(3, "aaaa")


def kept_after_a_batch() -> bool:
    key = f"{os.getpid()}-{_process(os.getpid())[2]}-key"
    with StoredRun(key) as first:
        first.keep(CLAIM, TOKEN)
    with StoredRun(key) as second:
        return second.found == (CLAIM, TOKEN)


def test_the_next_process_finds_the_claim(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert kept_after_a_batch()


def test_a_temporary_folder_that_cannot_be_used_keeps_nothing(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / f"sparkonce-{os.getuid()}").symlink_to(tmp_path)
    for name in ("gone", "file", "foreign"):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        assert not kept_after_a_batch()


@pytest.mark.parametrize("call", ["tempfile.gettempdir", "os.open", "os.pwrite"])
def test_a_full_disk_for_temporary_files_keeps_nothing(call, monkeypatch, tmp_path):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(f"sparkonce.spark.formats.ends.{call}", fail)
    assert not kept_after_a_batch()

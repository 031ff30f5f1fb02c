from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import Token, TransactionName

pytest.importorskip("hdfs_native")

from sparkonce.sinks.files.hdfs import HdfsStore
from sparkonce.sinks.files.store import Standing

SEALED = {"path": "p=1/f.parquet", "held": "f.parquet.held", "size": 3, "checksum": "crc32:352441c2"}
HELD, FINAL = "/out/.sparkonce/held/f.parquet.held", "/out/p=1/f.parquet"


class EmptyCluster:
    def get_file_info(self, path: str) -> Any:
        raise FileNotFoundError(path)


class PublishedAll:
    def __init__(self) -> None:
        self.reads: list[str] = []

    def get_file_info(self, path: str) -> Any:
        if path.endswith(".held"):
            raise FileNotFoundError(path)
        return SimpleNamespace(isdir=False, length=3)

    def read(self, path: str) -> Any:
        self.reads.append(path)
        return SimpleNamespace(read_range_stream=lambda _start, _size: iter([b"abc"]))


class Overtaken:
    """The folder is not there, so the first rename fails; another driver makes it and publishes at the next look."""

    def __init__(self) -> None:
        self.there = {"/out/.sparkonce/held", HELD}

    def mkdirs(self, path: str, mode: int, parents: bool) -> None:
        pass

    def rename(self, path: str, to: str, overwrite: bool) -> None:
        raise FileNotFoundError(to)

    def get_file_info(self, path: str) -> Any:
        before, self.there = self.there, {"/out/.sparkonce/held", FINAL}
        if path not in before:
            raise FileNotFoundError(path)
        return SimpleNamespace(isdir=False, length=3)

    def read(self, path: str) -> Any:
        return SimpleNamespace(read_range_stream=lambda _start, _size: iter([b"abc"]))


def store_with(client: object) -> HdfsStore:
    store = HdfsStore("hdfs://127.0.0.1:1/out")
    store._client = client  # type: ignore[assignment]
    return store


def test_where_the_folder_itself_is_missing_no_file_is_gone() -> None:
    with pytest.raises(UnknownOutcomeError, match=r"/out/\.sparkonce/held"):
        store_with(EmptyCluster()).look([SEALED])


def test_a_folder_that_cannot_be_made_is_refused_at_prepare() -> None:
    name = TransactionName(
        prefix="files", query="0123456789ab", token=Token(7, "deadbeef"), batch=3, slot=4, copy="a" * 12
    )
    with pytest.raises(PrepareError, match="has 256 bytes"):
        store_with(EmptyCluster()).hold(name, f"a=1/b={'é' * 127}/part-{name}-0.parquet")


def test_what_was_read_with_the_right_checksum_is_not_read_again() -> None:
    """Or a commit whose files take longer to read than a deadline would be asked again for ever."""
    cluster = PublishedAll()
    store = store_with(cluster)
    assert [*store.look([SEALED]), *store.look([SEALED])] == [Standing.PUBLISHED] * 2
    assert len(cluster.reads) == 1
    assert store.look([{**SEALED, "checksum": "crc32:00000000"}]) == [Standing.UNKNOWN]


def test_what_another_driver_publishes_meanwhile_is_not_lost() -> None:
    store = store_with(Overtaken())
    assert [one.outcome for one in store.publish([SEALED])] == [Outcome.RETRY]
    assert [one.outcome for one in store.publish([SEALED])] == [Outcome.ALREADY_COMMITTED]

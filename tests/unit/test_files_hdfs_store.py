from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Outcome
from sparkonce.protocol.ownership import Token, TransactionName

pytest.importorskip("hdfs_native")

from sparkonce.sinks.files.hdfs import HdfsStore
from sparkonce.sinks.files.store import FileState

SEALED = {"path": "p=1/f.parquet", "held": "f.parquet.held", "size": 3, "checksum": "crc32:352441c2"}
HELD, FINAL = "/out/.sparkonce/held/f.parquet.held", "/out/p=1/f.parquet"


class Cluster:
    """File names and lengths, behind a slow name node that stops answering after a given number of renames."""

    def __init__(self, files: int, takes_s: float = 0.0, silent_after: int | None = None) -> None:
        self.files = [
            {**SEALED, "path": f"p={number % 3}/f{number}.parquet", "held": f"f{number}.parquet.held"}
            for number in range(files)
        ]
        self.there = {f"/out/.sparkonce/held/{one['held']}" for one in self.files}
        self.takes_s = takes_s
        self.left = silent_after
        self.talks = threading.Event()
        self.reads: list[str] = []
        self.lock = threading.Lock()

    def mkdirs(self, path: str, mode: int, parents: bool) -> None:
        time.sleep(self.takes_s)

    def get_file_info(self, path: str) -> Any:
        time.sleep(self.takes_s)
        with self.lock:
            if path not in self.there:
                raise FileNotFoundError(path)
        return SimpleNamespace(isdir=False, length=3)

    def rename(self, path: str, to: str, overwrite: bool) -> None:
        time.sleep(self.takes_s)
        with self.lock:
            silent = self.left == 0
            self.left = self.left and self.left - 1
        if silent:
            assert self.talks.wait(60)
        with self.lock:
            if path not in self.there:
                raise FileNotFoundError(path)
            self.there ^= {path, to}

    def read(self, path: str) -> Any:
        self.reads.append(path)
        return SimpleNamespace(read_range_stream=lambda _start, _size: iter([b"abc"]))


def store_with(client: object, deadline_s: float = 20.0) -> HdfsStore:
    store = HdfsStore("hdfs://127.0.0.1:1/out", deadline_s=deadline_s)
    store._client = client  # type: ignore[assignment]
    return store


def test_what_was_read_with_the_right_checksum_is_not_read_again() -> None:
    """Otherwise, a commit whose files take longer to read than the deadline would be retried forever."""

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

    cluster = PublishedAll()
    store = store_with(cluster)
    assert [*store.states([SEALED]), *store.states([SEALED])] == [FileState.PUBLISHED] * 2
    assert len(cluster.reads) == 1
    assert store.states([{**SEALED, "checksum": "crc32:00000000"}]) == [FileState.UNKNOWN]


def test_what_another_driver_publishes_meanwhile_is_not_lost() -> None:
    class Overtaken:
        """The folder is missing, so the first rename fails. Another driver then creates the folder and publishes."""

        def __init__(self) -> None:
            self.there = self.then = {"/out/.sparkonce/held", HELD}

        def mkdirs(self, path: str, mode: int, parents: bool) -> None:
            pass

        def rename(self, path: str, to: str, overwrite: bool) -> None:
            self.then = {"/out/.sparkonce/held", FINAL}
            raise FileNotFoundError(to)

        def get_file_info(self, path: str) -> Any:
            before, self.there = self.there, self.then
            if path not in before:
                raise FileNotFoundError(path)
            return SimpleNamespace(isdir=False, length=3)

        def read(self, path: str) -> Any:
            return SimpleNamespace(read_range_stream=lambda _start, _size: iter([b"abc"]))

    store = store_with(Overtaken())
    assert [one.outcome for one in store.publish([SEALED])] == [Outcome.RETRY]
    assert [one.outcome for one in store.publish([SEALED])] == [Outcome.ALREADY_COMMITTED]


@pytest.mark.slow
def test_many_files_on_a_slow_cluster_are_published_though_they_take_longer_than_a_deadline() -> None:
    """350 requests of 50 ms, eight at a time, take two seconds. Each one answers in time, so all of them succeed."""
    cluster = Cluster(350, takes_s=0.05)
    store = store_with(cluster, deadline_s=1.5)
    assert set(store.states(cluster.files)) == {FileState.STAGED}
    assert {one.outcome for one in store.publish(cluster.files)} == {Outcome.COMMITTED}


def test_what_was_published_before_a_cluster_fell_silent_stays_published() -> None:
    cluster = Cluster(100, silent_after=60)
    store = store_with(cluster, deadline_s=1)
    first = [one.outcome for one in store.publish(cluster.files)]
    done = {f"/out/{one['path']}" for one, outcome in zip(cluster.files, first, strict=True) if outcome in COMMITTED}
    assert 0 < len(done) <= 60
    assert set(first) == {Outcome.COMMITTED, Outcome.RETRY}
    cluster.left = None
    cluster.talks.set()
    assert set(store.states(cluster.files)) <= {FileState.STAGED, FileState.PUBLISHED}
    assert all(one.outcome in COMMITTED for one in store.publish(cluster.files))
    assert not done & set(cluster.reads), "their checksums need not be read again"


def test_a_path_that_the_name_node_refuses_is_refused_at_prepare() -> None:
    class EmptyCluster:
        def get_file_info(self, path: str) -> Any:
            raise FileNotFoundError(path)

    name = TransactionName(
        prefix="files", query="0123456789ab", token=Token(7, "deadbeef"), batch=3, slot=4, copy="a" * 12
    )
    folders = "/".join(f"p{number}={'x' * 240}" for number in range(33))
    with pytest.raises(PrepareError, match=r"path of a file would be .* allows 8000"):
        store_with(EmptyCluster()).stage(name, f"{folders}/part-{name}-0.parquet")

    with pytest.raises(PrepareError, match="has 256 bytes"):
        store_with(EmptyCluster()).stage(name, f"a=1/b={'é' * 127}/part-{name}-0.parquet")

    with pytest.raises(UnknownOutcomeError, match=r"/out/\.sparkonce/held"):
        store_with(EmptyCluster()).states([SEALED])

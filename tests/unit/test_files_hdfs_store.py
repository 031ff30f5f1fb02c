from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Outcome
from sparkonce.protocol.ownership import Token, TransactionName

pytest.importorskip("hdfs_native")

from sparkonce.sinks.files.hdfs import HdfsStore
from sparkonce.sinks.files.store import FileState

FOLDER = "/out/.sparkonce/held"


def sealed(number: int = 0) -> dict[str, str | int]:
    path, held = f"p={number % 3}/f{number}.parquet", f"f{number}.parquet.held"
    return {"path": path, "held": held, "size": 3, "checksum": "crc32:352441c2"}


class Cluster:
    """File names and lengths, behind a name node that stops answering after a given number of renames."""

    def __init__(self, *there: str, silent_after: int | None = None) -> None:
        self.there = set(there)
        self.left = silent_after
        self.talks = threading.Event()
        self.reads: list[str] = []
        self.lock = threading.Lock()

    def mkdirs(self, path: str, mode: int, parents: bool) -> None:
        pass

    def get_file_info(self, path: str) -> Any:
        with self.lock:
            if path not in self.there:
                raise FileNotFoundError(path)
        return SimpleNamespace(isdir=False, length=3)

    def rename(self, path: str, to: str, overwrite: bool) -> None:
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
    store._client = client
    return store


def test_what_was_read_with_the_right_checksum_is_not_read_again():
    """Otherwise, a commit whose files take longer to read than the deadline would be retried forever."""
    cluster = Cluster("/out/p=0/f0.parquet")
    store = store_with(cluster)
    assert [*store.states([sealed()]), *store.states([sealed()])] == [FileState.PUBLISHED] * 2
    assert len(cluster.reads) == 1
    assert store.states([{**sealed(), "checksum": "crc32:00000000"}]) == [FileState.UNKNOWN]


def test_what_another_driver_publishes_meanwhile_is_not_lost():
    class Overtaken(Cluster):
        """The folder is missing, so the first rename fails. Another driver then creates the folder and publishes."""

        then: set[str] | None = None

        def rename(self, path: str, to: str, overwrite: bool) -> None:
            self.then = {FOLDER, "/out/p=0/f0.parquet"}
            raise FileNotFoundError(to)

        def get_file_info(self, path: str) -> Any:
            try:
                return super().get_file_info(path)
            finally:
                self.there = self.then or self.there

    store = store_with(Overtaken(FOLDER, f"{FOLDER}/f0.parquet.held"))
    assert [one.outcome for one in store.publish([sealed()])] == [Outcome.RETRY]
    assert [one.outcome for one in store.publish([sealed()])] == [Outcome.ALREADY_COMMITTED]


def test_what_was_published_before_a_cluster_fell_silent_stays_published():
    files = [sealed(number) for number in range(100)]
    cluster = Cluster(*(f"{FOLDER}/{one['held']}" for one in files), silent_after=60)
    store = store_with(cluster, deadline_s=1)
    first = [one.outcome for one in store.publish(files)]
    done = {f"/out/{one['path']}" for one, outcome in zip(files, first, strict=True) if outcome in COMMITTED}
    assert 0 < len(done) <= 60
    assert set(first) == {Outcome.COMMITTED, Outcome.RETRY}
    cluster.left = None
    cluster.talks.set()
    assert set(store.states(files)) <= {FileState.STAGED, FileState.PUBLISHED}
    assert all(one.outcome in COMMITTED for one in store.publish(files))
    assert not done & set(cluster.reads), "their checksums need not be read again"


def test_a_path_that_the_name_node_refuses_is_refused_at_prepare():
    name = TransactionName(
        prefix="files", query="0123456789ab", token=Token(7, "deadbeef"), batch=3, slot=4, copy="a" * 12
    )
    folders = "/".join(f"p{number}={'x' * 240}" for number in range(33))
    with pytest.raises(PrepareError, match=r"path of a file would be .* allows 8000"):
        store_with(Cluster()).stage(name, f"{folders}/part-{name}-0.parquet")

    with pytest.raises(PrepareError, match="has 256 bytes"):
        store_with(Cluster()).stage(name, f"a=1/b={'é' * 127}/part-{name}-0.parquet")

    with pytest.raises(UnknownOutcomeError, match=r"/out/\.sparkonce/held"):
        store_with(Cluster()).states([sealed()])

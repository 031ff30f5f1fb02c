from __future__ import annotations

import gc
import secrets
import threading
from typing import Any

import pyarrow as pa
import pytest
from hdfs_native import Client, WriteOptions

from integration.files_scene import QUERY, Life
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.errors import PreflightError, PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.store import read_handle
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = USES_HDFS

ONE = pa.table({"x": [1, 2], "p": ["a", "b"]})


@pytest.fixture(scope="module")
def hdfs() -> Hdfs:
    return hdfs_server()


class Place:
    def __init__(self, server: Hdfs) -> None:
        self.server = server
        self.client = Client(server.url)
        self.folder = f"/out-{secrets.token_hex(6)}"
        self.url = f"{server.url}{self.folder}"

    def life(self, **settings: Any) -> Life:
        return Life(FilesSink(self.url, **settings))

    def finals(self) -> list[str]:
        found = [one.path for one in self.client.list_status(self.folder, recursive=True) if not one.isdir]
        return [path for path in found if not any(part[:1] in "._" for part in path.split("/")[2:])]

    def held(self, handle: Handle) -> str:
        return f"{self.folder}/.sparkonce/held/{(read_handle(handle).files or ())[0]['held']}"

    def final(self, handle: Handle) -> str:
        return f"{self.folder}/{(read_handle(handle).files or ())[0]['path']}"


@pytest.fixture
def place(hdfs) -> Place:
    return Place(hdfs)


def test_something_else_at_the_final_path(place):
    life = place.life()
    handle = life.prepare(ONE)
    with place.client.create(place.final(handle)) as file:
        file.write(b"somebody's")
    assert life.commit(handle) == [Outcome.UNKNOWN]
    place.client.delete(place.held(handle))
    assert life.commit(handle) == [Outcome.UNKNOWN], "not lost: nobody knows what the other file is"
    assert bytes(place.client.read(place.final(handle)).read()) == b"somebody's"


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_damaged_file_is_not_published_but_lost(place, partition_by):
    life = place.life(partition_by=partition_by)
    handle = life.prepare(ONE)
    with place.client.create(place.held(handle), WriteOptions(overwrite=True)) as file:
        file.write(b"damaged")
    assert life.commit(handle) == [Outcome.LOST]
    assert place.finals() == []
    assert [*place.client.list_status(f"{place.folder}/.sparkonce/held")] == []


def test_a_folder_that_was_made_anew_is_not_a_loss(place):
    """Somebody moves the folder away, and another query creates one with the same name."""
    life, parts = place.life(), place.life(partition_by="p")
    one, several = life.prepare(ONE), parts.prepare(ONE)
    place.client.rename(place.folder, f"{place.folder}-moved")
    place.life()
    assert [*life.commit(one), *parts.commit(several)] == [Outcome.UNKNOWN] * 2
    with pytest.raises(PrepareError, match="may not find the files here"):
        life.prepare(ONE)
    place.client.delete(place.folder, recursive=True)
    place.client.rename(f"{place.folder}-moved", place.folder)
    assert [*life.commit(one), *parts.commit(several)] == [Outcome.COMMITTED] * 2


def test_no_permission(place, monkeypatch):
    life = place.life()
    handle = life.prepare(ONE)
    place.client.set_permission(place.folder, 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
    with pytest.raises(PreflightError, match="AccessControlException"):
        FilesSink(place.url).preflight(QUERY, None)
    (answer,) = FilesSink(place.url).committer().commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "let this user write" in answer.reason
    monkeypatch.delenv("HADOOP_USER_NAME")
    assert life.commit(handle) == [Outcome.COMMITTED]


def test_a_name_node_that_does_not_answer_is_asked_again(place):
    life = place.life()
    handle = life.prepare(ONE)
    hasty = FilesSink(place.url, store_options={"deadline_s": 0.5}).committer()
    with place.server.paused():
        assert [one.outcome for one in hasty.commit([handle])] == [Outcome.RETRY]
        assert [one.outcome for one in hasty.abort([])] == []
        with pytest.raises(UnknownOutcomeError, match="no answer within"):
            list(hasty.list_lingering([life.owner]))
        with pytest.raises(PreflightError, match="no answer within"):
            FilesSink(place.url, store_options={"deadline_s": 0.5}).preflight(QUERY, None)
    assert life.commit(handle)[0] in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
    assert len(place.finals()) == 1


def test_what_killed_starts_left_is_deleted_once_nobody_can_be_at_it(place, monkeypatch):
    sink = FilesSink(place.url)
    sink.preflight(QUERY, None)
    hidden = f"{place.folder}/.sparkonce"
    left = {f"{hidden}/{name}" for name in (".0123456789ab.tmp", "held/.0123456789ab.tmp")}
    for path in (*left, f"{hidden}/aside.tmp"):
        place.client.create(path).close()

    def files() -> set[str]:
        return {one.path for one in place.client.list_status(hidden, recursive=True) if not one.isdir}

    sink.preflight(QUERY, None)
    assert files() == {*left, f"{hidden}/aside.tmp", f"{hidden}/id"}, "another query may be starting"
    monkeypatch.setattr("sparkonce.storage.hdfs._STALE_S", -60.0)
    sink.preflight(QUERY, None)
    assert files() == {f"{hidden}/aside.tmp", f"{hidden}/id"}


def test_collecting_an_open_file_does_not_wait_for_the_cluster(place):
    writer = place.life().open(ONE)
    with place.server.paused():
        last = [writer]
        del writer
        collected = threading.Thread(target=lambda: (last.clear(), gc.collect()), daemon=True)
        collected.start()
        collected.join(30)
        assert not collected.is_alive(), "collecting a file waits for the name node"

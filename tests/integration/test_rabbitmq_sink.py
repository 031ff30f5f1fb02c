"""Tests of features specific to streams: publishing ids, remembered publishers, repeated and late messages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from one_run import QUERY, prepare
from plain_store import PlainStore
from secured import make_keys
from shared_servers import USES_RABBIT, rabbit_server
from simulation.sheets import ROW, STREAM, stream_answers
from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.systems.rabbitmq import RabbitStreamSystem
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks import publishing
from sparkonce_rabbitmq.sinks.committer import StreamCommitter
from sparkonce_rabbitmq.sinks.connection import PublisherConnection, connect_to
from sparkonce_rabbitmq.sinks.publishing import Ids, Publisher
from sparkonce_rabbitmq.sinks.sink import RabbitMQStreamSink

pytestmark = USES_RABBIT

LARGE = "x" * 300_000
PUBLISHER = f"sparkonce.{QUERY}.rabbitmq"


class StreamScene:
    """The sink of one query.

    Args:
        server: The server.
        root: The parent of the checkpoint.
        arguments: The arguments with which the stream is declared.
    """

    def __init__(self, server: RabbitServer, root: Path, **arguments: Any) -> None:
        system = RabbitStreamSystem(server=server)
        system.start(root)
        self.server, self.witness = system.settings(), system.client
        self.stream = self.witness.create(**arguments)
        self.root = root
        self._opened: list[StreamCommitter] = []

    def sink(self, files: CheckpointFiles | None = None, **changed: Any) -> RabbitMQStreamSink:
        sink = RabbitMQStreamSink(**{"server": self.server, "stream": self.stream, "body": "raw", **changed})
        sink.use_checkpoint(files or LocalFiles(self.root))
        return sink

    def prepare(self, bodies: Sequence[str], batch: int = 0, slot: int = 0, **kept: Any) -> Handle:
        return prepare(self.sink(**kept), pa.record_batch({"value": list(bodies)}), batch=batch, slot=slot)

    def committer(self, **kept: Any) -> StreamCommitter:
        """A committer that shares only checkpoint and stream with the others."""
        made = self.sink(**kept).committer()
        assert isinstance(made, StreamCommitter)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for one in self._opened:
            one.close()

    def finish(self, committer: StreamCommitter, batch: int, *handles: Handle) -> None:
        assert [one.outcome.value for one in committer.commit(handles)] == ["committed"] * len(handles)
        committer.conclude(batch, handles)

    def bodies(self) -> list[str]:
        return [body.decode() for body in self.witness.messages(self.stream)]


@pytest.fixture
def scene(tmp_path) -> Iterator[StreamScene]:
    made = StreamScene(rabbit_server(), tmp_path / "checkpoint")
    yield made
    made.close()


@pytest.fixture
def small_segments(tmp_path) -> Iterator[StreamScene]:
    made = StreamScene(rabbit_server(), tmp_path, max_length_bytes=200_000, stream_max_segment_size_bytes=100_000)
    yield made
    made.close()


def numbered(start: int, count: int) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def test_the_server_answers_as_the_simulation_has_it(scene):
    def connect() -> PublisherConnection:
        return connect_to(PublisherConnection, scene.server, scene.stream, leader=True)

    assert stream_answers(connect, scene.stream) == list(STREAM)
    assert scene.bodies() == [(ROW % row).decode() for row in range(5)]


def test_two_drivers_publish_the_same_batch_at_once(scene, tmp_path):
    kept = PlainStore(tmp_path / "plain")  # this store has no locks, so both of them publish
    slots = [scene.prepare(numbered(20_000 * slot, 20_000), slot=slot, files=kept) for slot in range(2)]
    committers = [scene.committer(files=kept) for _ in range(4)]
    with ThreadPoolExecutor(len(committers)) as pool:
        answers = list(pool.map(lambda one: one.commit(slots), committers))
    done = {one.outcome for several in answers for one in several}
    assert done <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED, Outcome.RETRY}, answers
    assert Outcome.COMMITTED in done
    assert scene.bodies() == numbered(0, 40_000)


def test_a_driver_that_was_overtaken_before_its_first_question(scene, tmp_path, monkeypatch):
    kept = PlainStore(tmp_path / "plain")
    handle = scene.prepare(numbered(0, 10), files=kept)
    older, newer = scene.committer(files=kept), scene.committer(files=kept)
    ask = Publisher.sequence
    overtaken: list[Any] = []

    def overtake(self: Publisher) -> int:
        if not overtaken:
            overtaken.append(True)
            overtaken.extend(newer.commit([handle]))
        return ask(self)

    monkeypatch.setattr(Publisher, "sequence", overtake)
    (answer,) = older.commit([handle])
    assert answer.outcome is Outcome.RETRY
    assert overtaken[1].outcome is Outcome.COMMITTED
    (answer,) = older.commit([handle])
    assert answer.outcome is Outcome.ALREADY_COMMITTED
    assert scene.bodies() == numbered(0, 10)


def test_a_driver_that_wakes_up_publishes_an_older_batch_again(scene):
    committer = scene.committer()
    for batch in range(2):
        scene.finish(committer, batch, scene.prepare(numbered(10 * batch, 10), batch=batch))
    late = Publisher(scene.server, scene.stream, PUBLISHER)
    late.publish([pa.record_batch({"message": [body.encode() for body in numbered(0, 10)]})], Ids.of(0, 0, 10).first)
    late.close()
    assert scene.bodies() == numbered(0, 20)


@pytest.mark.parametrize("same_process", [True, False])
def test_goes_on_after_the_last_message_that_is_there(scene, monkeypatch, same_process):
    sent: list[object] = []
    publish = PublisherConnection.publish

    def publish_two(self: PublisherConnection, frame: Any) -> None:
        """Cuts the connection after two frames of three large messages each, before any confirms are read."""
        publish(self, frame)
        sent.append(frame)
        if len(sent) == 2:
            raise ConnectionError("cut by the test")

    bodies = [f"{number}{LARGE}" for number in range(12)]
    committer, handle = scene.committer(), scene.prepare(bodies)
    monkeypatch.setattr(PublisherConnection, "publish", publish_two)
    (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.RETRY
    assert scene.witness.sequence(scene.stream, PUBLISHER) == Ids.of(0, 0, 6).last
    scene.finish(committer if same_process else scene.committer(), 0, handle)
    assert scene.bodies() == bodies


def test_a_stream_that_was_deleted_and_made_again(scene):
    committer, handle = scene.committer(), scene.prepare(numbered(0, 10))
    facts = scene.sink().preflight(QUERY, None)
    scene.finish(committer, 0, handle)
    assert committer.before_decision(facts) == ""
    scene.witness.delete(scene.stream)
    assert "the stream does not exist" in committer.before_decision(facts)
    scene.witness.create(scene.stream)
    assert "deleted and recreated" in committer.before_decision(facts)
    started = scene.committer()
    assert started.missing([handle]) == [handle]
    (answer,) = started.commit([scene.prepare(numbered(10, 10), batch=1)])
    assert answer.outcome is Outcome.UNKNOWN
    assert "deleted and recreated" in answer.reason
    assert scene.bodies() == []


def test_an_old_copy_of_the_checkpoint_publishes_nothing(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "OTHERS_WITHIN_S", 0.0)
    committer, first = scene.committer(), scene.prepare(numbered(0, 10))
    facts = scene.sink().preflight(QUERY, None)
    scene.finish(committer, 0, first)
    shutil.copytree(scene.root, tmp_path / "copy")
    scene.finish(committer, 1, scene.prepare(numbered(10, 10), batch=1))
    shutil.rmtree(scene.root)
    (tmp_path / "copy").rename(scene.root)
    old = scene.committer()
    assert old.missing([first]) == []
    assert "is an old copy" in old.before_decision(facts)
    (answer,) = old.commit([scene.prepare(numbered(90, 10), batch=1)])
    assert answer.outcome is Outcome.UNKNOWN
    assert "is an old copy" in answer.reason
    assert scene.bodies() == numbered(0, 20)


@pytest.mark.slow
def test_retention_and_a_restart_leave_the_memory_of_publishers(small_segments):
    server, scene = rabbit_server(), small_segments
    committer, handle = scene.committer(), scene.prepare(numbered(0, 10))
    scene.finish(committer, 0, handle)
    for _ in range(30):  # each is a segment
        scene.witness.publish(scene.stream, [b"x" * 60_000, b"y" * 60_000])
    server.settle()
    server.restart()
    scene.sink().preflight(QUERY, None)  # waits for the stream's leader
    assert "0" not in scene.bodies()
    assert scene.committer().missing([handle]) == []
    late = Publisher(scene.server, scene.stream, PUBLISHER)
    late.publish([pa.record_batch({"message": [b"again"] * 10})], Ids.of(0, 0, 10).first)
    late.close()
    assert "again" not in scene.bodies()
    scene.finish(scene.committer(), 1, scene.prepare(["new"], batch=1))
    assert scene.bodies()[-1] == "new"


@pytest.mark.slow
def test_more_than_255_publishers_are_noticed(small_segments):
    scene = small_segments
    committer, handle = scene.committer(), scene.prepare(numbered(0, 10))
    facts = scene.sink().preflight(QUERY, None)
    scene.finish(committer, 0, handle)
    scene.witness.publish_as(scene.stream, [f"other-{number}" for number in range(255)], b"other")
    assert committer.before_decision(facts) == ""
    scene.witness.publish(scene.stream, [b"x" * 60_000] * 2, "one more")  # a new segment begins
    scene.witness.publish(scene.stream, [b"x"])
    assert "its list of publishers' names is full" in committer.before_decision(facts)
    assert scene.committer().missing([handle]) == [handle]


@pytest.mark.parametrize(
    ("changed", "of_server", "words"),
    [
        ({"stream": "not-there"}, {}, "the stream does not exist"),
        ({}, {"password": "wrong"}, "the user or password is wrong"),
        ({}, {"user": "reader", "password": "reads"}, "lacks the right"),
        ({}, {"user": "writer", "password": "writes"}, "lacks the right"),
        ({}, {"user": "writer", "password": "writes", "virtual_host": "other"}, "access"),
        ({}, {"stream_port": 1}, "cannot be used for streams"),
    ],
    ids=["no stream", "a wrong password", "may only read", "may only write", "another virtual host", "nobody there"],
)
def test_a_start_is_refused(scene, changed, of_server, words):
    settings = {"host": scene.server.host, "stream_port": scene.server.stream_port, **of_server}
    with pytest.raises(PreflightError, match=words) as caught:
        scene.sink(server=RabbitMQ(**settings), **changed).preflight(QUERY, None)
    assert "wrong" not in str(caught.value).replace(words, "")


@pytest.mark.slow
def test_tls(tmp_path):
    keys = make_keys(tmp_path)
    authority = keys / "ca.pem"
    with RabbitServer(tmp_path / "data", tls=(authority, keys / "broker.pem", keys / "broker.key")) as server:
        scene = StreamScene(server, tmp_path / "checkpoint")
        told: dict[str, Any] = {"host": HOST, "stream_port": server.stream_tls_port, "tls": True}
        secure = {"server": RabbitMQ(**told, ca_file=str(authority))}
        committer = scene.committer(**secure)
        scene.finish(committer, 0, scene.prepare(numbered(0, 10), **secure))
        assert scene.bodies() == numbered(0, 10)
        scene.close()
        for wrong, words in (
            (RabbitMQ(**told), "certificate verify failed"),
            (RabbitMQ(**told, ca_file=str(keys / "stranger.pem")), "certificate verify failed"),
            (RabbitMQ(**told, ca_file=str(keys / "none.pem")), "ca_file='.*none.pem'"),
            (RabbitMQ(**{**told, "tls": False}), "cannot be used for streams"),
        ):
            with pytest.raises(PreflightError, match=words):
                scene.sink(server=wrong).preflight(QUERY, None)

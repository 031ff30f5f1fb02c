"""What the models do by themselves, and that a fault of a model is never taken for an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from simulation import queue_server, queue_source
from simulation.config import FAULTS, Config
from simulation.delta import Delta
from simulation.dice import Given
from simulation.engine import Broken, Simulation
from simulation.files import HELD, ROOT, Files, Inode
from simulation.iceberg import Iceberg
from simulation.kafka import CONCURRENT_TRANSACTIONS, Kafka
from simulation.mariadb import MariaDB
from simulation.oracle import Oracle, Violation
from simulation.postgres import Postgres
from simulation.pravega import Pravega
from simulation.pravega import Writer as PravegaWriter
from simulation.product import replaced, under_way
from simulation.rabbitmq import Connection, Queue, Stream
from simulation.s3 import PREFIX, S3, Upload
from simulation.sheets import STREAM, TRANSACTIONS, stream_answers, transaction_answers
from simulation.spark import Process
from simulation.staged import SparkError
from sparkonce import errors
from sparkonce.driver import stops
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.sinks.files.names import file_path
from sparkonce.sinks.kafka.outcomes import Transaction
from sparkonce.sinks.rabbitmq.messages import frames

OWNER = Owner(query="5f6a2c1e0000", token=Token(0, "00000001"), facts={"prefix": "p"})


def simulation(*sinks: str, **more: Any) -> Simulation:
    made = Simulation(Config(sinks=sinks, switches=0.0, **more), Given([]))
    made.oracle = Oracle(made, {})
    return made


def let(one: Simulation, run: Callable[[], None]) -> None:
    """A party does this, and is killed where it stands still."""
    party = one.start("a copy", run)
    one._hub = None
    one.current = party
    party.greenlet.switch()
    one.current = None
    if not party.greenlet.dead:
        one.kill(party)


def raising(error: Exception) -> Callable[[], None]:
    def apply() -> None:
        raise error

    return apply


def test_a_late_request_may_be_refused_and_may_not_fail() -> None:
    one = simulation("postgres")
    Postgres(one, "postgres")
    one.flights = [(("a",), raising(psycopg.errors.UndefinedObject("no"))), (("b",), raising(KeyError("no")))]
    one.land(0)
    with pytest.raises(Broken):
        one.land(0)
    assert one.oracle.violation is Violation.FAILED


def test_a_model_that_fails_is_never_read_as_an_answer() -> None:
    one = simulation("postgres")
    Postgres(one, "postgres")
    with pytest.raises(psycopg.Error):
        one.request(("a",), raising(psycopg.errors.UndefinedObject("no")))
    with pytest.raises(Broken):
        one.request(("b",), raising(KeyError("no")))


def test_what_a_run_goes_on_after_is_an_error_of_sparkonce() -> None:
    one = simulation("postgres")
    with replaced(), under_way(one):
        assert "away" in stops.first_line(errors.UnknownOutcomeError("away"))
        with pytest.raises(Broken):
            stops.first_line(TypeError("no"))
    assert one.oracle.violation is Violation.FAILED


@pytest.mark.parametrize(
    "take",
    [
        lambda files: files.unlink(f"{ROOT}/part"),
        lambda files: files.rename(f"{ROOT}/part", f"{HELD}/part.held"),
        lambda files: files.rename(f"{HELD}/other.held", f"{ROOT}/part"),
    ],
)
def test_a_published_file_stays(take: Callable[[Files], None]) -> None:
    one = simulation("files")
    files = Files(one, "files")
    files.names = {f"{ROOT}/part": Inode(0, 0), f"{HELD}/other.held": Inode(0, 0)}
    with pytest.raises(Broken):
        take(files)
    assert one.oracle.violation is Violation.VANISHED


def test_an_object_is_not_written_over() -> None:
    one = simulation("s3")
    s3 = S3(one, "s3")
    key = PREFIX + file_path("", s3.transaction_name(OWNER, 0, 0, 1), 0, ".jsonl")
    s3.objects[key] = Upload("1", key)
    s3.uploads["2"] = Upload("2", key)
    with pytest.raises(Broken):
        s3.complete("2", key, only_new=False)
    assert one.oracle.violation is Violation.VANISHED


def test_a_commit_is_writing_its_markers_until_they_are_written() -> None:
    one = simulation("kafka-v1")
    kafka = Kafka(one, "kafka-v1")
    asked = Transaction("id", 1, kafka.initialise("id") or 0)
    kafka.produce("id", 0, 0, 0, 2, None)
    kafka.ids["id"].state = "PrepareCommit"
    for _ in range(3):
        assert kafka.end(asked, commit=True, raises_epoch=False).code == CONCURRENT_TRANSACTIONS
        assert kafka.initialise("id") is None
    write = kafka.write_markers()
    assert write is not None
    write()
    assert kafka.write_markers() is None
    assert kafka.end(asked, commit=True, raises_epoch=False).code == 0
    assert kafka.initialise("id") == 1


def test_a_session_ends_with_its_process_and_what_is_prepared_stays() -> None:
    one = simulation("postgres")
    server = Postgres(one, "postgres")

    def write(copy: int, prepares: bool) -> None:
        writer = server.writer(OWNER, Process(one, copy, []), 0, 0, copy)
        writer.begin()
        writer.write(2)
        if prepares:
            writer.prepare()
        one.current.greenlet.parent.switch()  # type: ignore[union-attr]

    let(one, lambda: write(1, False))
    let(one, lambda: write(2, True))
    assert (len(server.sessions), len(server.prepared)) == (1, 1)
    end = server.hang_up()
    assert end is not None
    end()
    assert (len(server.sessions), len(server.prepared)) == (0, 1)
    assert server.hang_up() is None


def test_a_session_stays_as_long_as_its_writer_lives() -> None:
    one = simulation("postgres")
    server = Postgres(one, "postgres")
    server.writer(OWNER, Process(one, 1, []), 0, 0, 1).begin()
    assert server.hang_up() is None


def test_locks_end_with_the_process_of_their_driver() -> None:
    one = simulation("postgres-staged")
    server = Postgres(one, "postgres-staged")
    name = server.transaction_name(OWNER, 0, 0, 1)
    server.markers[name] = "staged"

    def lock() -> None:
        with server.committer()._sessions.lent() as connection:
            server.lock(connection, [name])  # type: ignore[arg-type]
            one.current.greenlet.parent.switch()  # type: ignore[union-attr]

    let(one, lock)
    assert set(server.locks) == {name}
    end = server.hang_up()
    assert end is not None
    end()
    assert server.locks == {}


def test_a_branch_that_is_prepared_outlives_the_connection_of_a_dead_copy() -> None:
    one = simulation("mariadb")
    server = MariaDB(one, "mariadb")

    def write(copy: int, prepares: bool) -> None:
        writer = server.writer(OWNER, Process(one, copy, []), 0, 0, copy)
        writer.begin()
        writer.write(2)
        server.branches[writer._name.copy].prepared = prepares  # type: ignore[attr-defined]
        one.current.greenlet.parent.switch()  # type: ignore[union-attr]

    let(one, lambda: write(1, False))
    let(one, lambda: write(2, True))
    while (end := server.hang_up()) is not None:
        end()
    (left,) = server.branches.values()
    assert (left.prepared, left.holder) == (True, 0)


def test_a_server_hangs_up_in_worlds_where_it_may() -> None:
    assert "connection ended" in FAULTS
    plain = simulation("postgres", faults=frozenset())
    Postgres(plain, "postgres")
    assert plain.events == []


def test_a_stream_answers_as_its_sheet_says() -> None:
    one = simulation("rabbitmq-stream")
    stream = Stream(one, "rabbitmq-stream")
    shown: list[int] = []
    stream.show = shown.append  # type: ignore[method-assign]
    assert stream_answers(lambda: Connection(Connection, stream, leader=True), "stream") == list(STREAM)
    assert shown == [0, 1, 2, 3, 4]


def test_a_leader_that_fails_takes_with_it_what_no_replica_has() -> None:
    one = simulation("rabbitmq-stream")
    stream = Stream(one, "rabbitmq-stream")
    stream.open = [Connection(Connection, stream, leader=True)]
    stream.log, stream.safe = [("one", 1, 0), ("one", 2, 1)], 1
    fail = stream.restart()
    assert fail is not None
    fail()
    assert stream.highest("one") == 1
    (frame,) = frames(pa.array([b"000001"], pa.large_binary()), 2, 1_000)
    stream.take(0, "one", frame)
    assert stream.highest("one") == 1, "it was sent to the leader of before"


def test_pravega_answers_as_its_sheet_says() -> None:
    one = simulation("pravega")
    pravega = Pravega(one, "pravega")
    assert transaction_answers(PravegaWriter(pravega), pravega.status) == list(TRANSACTIONS)


def test_a_lease_runs_out_once_its_writer_is_gone() -> None:
    one = simulation("pravega")
    pravega = Pravega(one, "pravega")
    writer = PravegaWriter(pravega)
    number = pravega.begin(writer)
    assert pravega.expire() is None
    writer.is_closed = True
    run_out = pravega.expire()
    assert run_out is not None
    run_out()
    assert pravega.status(number) == "ABORTED"


def test_delta_skips_what_it_has_and_refuses_what_is_not_the_newest() -> None:
    one = simulation("delta")
    delta = Delta(one, "delta")
    delta.publish = lambda *_: None  # type: ignore[method-assign]
    delta.commit(1, ("label", "a", 3), (), {})
    assert (delta.has("a", 3), delta.has("a", 2), delta.has("a", 4), delta.has("b", 3)) == (True, True, False, False)
    with pytest.raises(SparkError, match="Concurrent"):
        delta.commit(1, ("label", "a", 4), (), {})


def test_iceberg_forwards_a_branch_only_to_what_follows() -> None:
    one = simulation("iceberg")
    iceberg = Iceberg(one, "iceberg")
    iceberg.publish = lambda *_: None  # type: ignore[method-assign]
    for branch in ("a", "b"):
        iceberg.branches[branch] = iceberg.branches["main"]
        iceberg.merge(branch, (), {"branch": branch})
    iceberg.move("a", forward=True)
    with pytest.raises(SparkError, match="fast-forward"):
        iceberg.move("b", forward=True)
    assert iceberg.branches["main"].summary() == {"branch": "a"}


def test_rows_whose_file_was_taken_for_a_commit_are_not_given_up() -> None:
    one = simulation("rabbitmq-queue")
    queue = Queue(one, "rabbitmq-queue")
    name = queue.transaction_name(OWNER, 0, 0, 1)
    queue.number_of(name, 0)
    queue.store.kept[f"folder/rows/{name}"] = b"[0]"
    one.oracle.named[queue.name, str(name)] = 0
    with pytest.raises(Broken):
        queue.folder.discard(name)
    assert one.oracle.violation is Violation.UNDONE


def test_messages_on_a_connection_that_is_gone_are_ready_again() -> None:
    one = simulation("rabbitmq-source")
    query = queue_source.Query(one, queue_source.Oracle(one))
    turns = 2

    def deliver(*_: object) -> None:
        nonlocal turns
        turns -= 1
        if not turns:
            connection.ioloop.stop()

    def opened(channel: queue_server.Connection) -> None:
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("q", deliver, exclusive=False, callback=lambda _: None)

    connection = queue_server.Connection(
        query.queue, lambda made: made.channel(opened), lambda *_: None, lambda *_: None
    )
    connection.ioloop.start()
    assert list(connection.unacked.values()) == ["m0", "m1"]
    query.queue.drop(connection)
    assert (list(query.queue.ready)[:2], query.queue.waiting) == (["m0", "m1"], 0)

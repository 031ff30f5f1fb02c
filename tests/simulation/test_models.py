"""How the models behave on their own, and that a bug in a model is never mistaken for a response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from simulation.config import Config
from simulation.dice import Given
from simulation.engine import Broken, Simulation
from simulation.files import HELD, ROOT, Files, Inode
from simulation.mariadb import MariaDB
from simulation.oracle import Oracle, Violation
from simulation.postgres import Postgres
from simulation.pravega import Pravega
from simulation.pravega import Writer as PravegaWriter
from simulation.product import replaced, under_way
from simulation.rabbitmq import Connection, Stream
from simulation.sheets import STREAM, TRANSACTIONS, stream_answers, transaction_answers
from simulation.spark import Process
from sparkonce import errors
from sparkonce.driver import stops
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce_rabbitmq.sinks.messages import frames

OWNER = Owner(query="5f6a2c1e0000", token=Token(0, "00000001"), facts={"prefix": "p"})


def simulation(*sinks: str, **more: Any) -> Simulation:
    made = Simulation(Config(sinks=sinks, switches=0.0, **more), Given([]))
    made.oracle = Oracle(made, {})
    return made


def let(one: Simulation, run: Callable[[], None]) -> None:
    """A party runs this, and is killed while it is paused."""
    party = one.start("a copy", run)
    one._hub = None
    one.current = party
    party.greenlet.switch()
    one.current = None
    if not party.greenlet.dead:
        one.kill(party)


def test_a_fault_of_a_model_is_never_taken_for_an_answer_and_a_refusal_may_be_one() -> None:
    def raising(error: Exception) -> Callable[[], None]:
        def apply() -> None:
            raise error

        return apply

    one = simulation("postgres")
    Postgres(one, "postgres")
    with pytest.raises(psycopg.Error):
        one.request(("a",), raising(psycopg.errors.UndefinedObject("no")))
    one.flights = [(("late",), raising(psycopg.errors.UndefinedObject("no"))), (("late",), raising(KeyError("no")))]
    one.land(0)
    for ask in (lambda: one.land(0), lambda: one.request(("b",), raising(KeyError("no")))):
        one.oracle.violation = None
        with pytest.raises(Broken):
            ask()
        assert one.oracle.violation is Violation.FAILED
    with replaced(), under_way(one):
        assert "away" in stops.first_line(errors.UnknownOutcomeError("away"))
        with pytest.raises(Broken):
            stops.first_line(TypeError("no"))


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

"""What the models do by themselves, and that a fault of a model is never taken for an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from simulation.config import FAULTS, Config
from simulation.dice import Given
from simulation.engine import Broken, Simulation
from simulation.files import HELD, ROOT, Files, Inode
from simulation.kafka import CONCURRENT_TRANSACTIONS, Kafka
from simulation.mariadb import MariaDB
from simulation.oracle import Oracle, Violation
from simulation.postgres import Postgres
from simulation.product import replaced, under_way
from simulation.s3 import PREFIX, S3, Upload
from simulation.spark import Process
from sparkonce import errors
from sparkonce.driver import stops
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.sinks.files.names import file_path
from sparkonce.sinks.kafka.outcomes import Transaction

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

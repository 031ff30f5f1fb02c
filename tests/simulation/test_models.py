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
from simulation.oracle import Oracle, Violation
from simulation.postgres import Postgres
from simulation.pravega import Pravega
from simulation.pravega import Writer as PravegaWriter
from simulation.product import replaced, under_way
from simulation.rabbitmq import Connection, Stream
from simulation.sheets import STREAM, TRANSACTIONS, stream_answers, transaction_answers
from sparkonce import errors
from sparkonce.driver import stops
from sparkonce_rabbitmq.sinks.messages import frames


def simulation(*sinks: str, **more: Any) -> Simulation:
    made = Simulation(Config(sinks=sinks, switches=0.0, **more), Given([]))
    made.oracle = Oracle(made, {})
    return made


def test_a_fault_of_a_model_is_never_taken_for_an_answer_and_a_refusal_may_be_one():
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


def test_a_stream_answers_as_its_sheet_says():
    one = simulation("rabbitmq-stream")
    stream = Stream(one, "rabbitmq-stream")
    shown: list[int] = []
    stream.show = shown.append
    assert stream_answers(lambda: Connection(Connection, stream, leader=True), "stream") == list(STREAM)
    assert shown == [0, 1, 2, 3, 4]


def test_a_leader_that_fails_takes_with_it_what_no_replica_has():
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


def test_pravega_answers_as_its_sheet_says():
    one = simulation("pravega")
    pravega = Pravega(one, "pravega")
    assert transaction_answers(PravegaWriter(pravega), pravega.status) == list(TRANSACTIONS)

"""Three brokers: the one that coordinates the query's transactions is killed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing

import pytest

from integration.verify_query import Query, batches_in, started, until, with_batches
from sparkonce_lab.faults import Fault
from sparkonce_lab.kafka import coordinators
from sparkonce_lab.systems.kafka import KafkaSystem

# kafka-python leaves the socket of a connect that a dead broker refuses to the garbage collector.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSystem]:
    system = KafkaSystem(nodes=3)
    with started(system, tmp_path_factory.mktemp("system") / "folder"):
        yield system
        gc.collect()


def test_the_coordinator_of_an_open_transaction_moves(system: KafkaSystem) -> None:
    with closing(Query(system)) as query:
        query.write(0)
        query.prepare(1)
        (open_,) = system.left_open()
        name = open_.split()[0]
        before = coordinators(system.bootstrap)[name]
        assert system.inject(Fault.COORDINATOR_MOVED)
        query.commit(1)
        until(lambda: batches_in(system) == with_batches([], 0, 1), "both batches are read from the brokers left")
        assert coordinators(system.bootstrap)[name] != before
        system.lift(Fault.COORDINATOR_MOVED)
        query.write(2)
        until(lambda: system.newest() == 2, "the third batch is seen")
        assert batches_in(system) == with_batches([], 0, 1, 2)
        assert not system.left_open()


def test_all_brokers_are_killed(system: KafkaSystem) -> None:
    with closing(Query(system)) as query:
        before = batches_in(system)
        query.prepare(3)
        system.inject(Fault.SERVER_KILLED)
        system.lift(Fault.SERVER_KILLED)
        query.commit(3)
        until(lambda: batches_in(system) == with_batches(before, 3), "the batch is read")


def test_without_a_transaction_nothing_can_be_moved(system: KafkaSystem) -> None:
    stranger = KafkaSystem(system.bootstrap)
    stranger.cluster = system.cluster
    with pytest.raises(TimeoutError, match="no transactional id"):
        stranger._kill_coordinator(0.5)

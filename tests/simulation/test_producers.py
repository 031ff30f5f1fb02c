"""The shipped pool, writer and client on the model of Kafka: what waits, what dies, what moves, and what is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from simulation.config import Config
from simulation.dice import Given
from simulation.engine import Broken, Party, Simulation
from simulation.kafka import INVALID_PRODUCER_EPOCH, PRODUCER_ID, Kafka
from simulation.oracle import Oracle, Violation
from simulation.producers import ModelProducer
from simulation.product import replaced, under_way
from simulation.spark import Process
from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.sinks.kafka.committer import transaction_of
from sparkonce.sinks.kafka.outcomes import Transaction

OWNER = Owner(query="5f6a2c1e0000", token=Token(0, "00000001"), facts={"prefix": "p"})


class Scene:
    """A cluster, and a worker process of which every thread is a party."""

    def __init__(self, kind: str = "kafka-v1", **more: Any) -> None:
        settings = {"switches": 1.0, "rate": 0.0, "events": 0.0, "faults": frozenset(), **more}
        self.simulation = Simulation(Config(sinks=(kind,), **settings), Given([1] * 1_000), [])
        self.simulation.oracle = Oracle(self.simulation, {})
        self.kafka = Kafka(self.simulation, kind)
        self.simulation.hush()
        self.process = Process(self.simulation, 1, [])
        self.handles: list[Handle] = []
        self.failed: list[str] = []

    def start(self, batch: int = 0) -> Party:
        """A task of this batch, which prepares."""

        def run() -> None:
            self.process.task = self.simulation.current
            writer = self.kafka.writer(OWNER, self.process, batch, 0, 1)
            try:
                writer.begin()
                writer.write(2)
                fields = writer.prepare()
            except PrepareError as error:
                self.failed.append(error.message)
                writer.abort()
            else:
                self.handles.append(Handle(sink="k", slot=0, rows=1, transaction=transaction_fields(fields)))
                writer.close()
            self.process.leave()

        return self.simulation.start("a copy", run)

    def go_on(self, turns: int = 100) -> None:
        self.simulation.go_on(turns, 0.0)

    def thread(self) -> Party:
        """Lets others go on until there is one."""
        for _ in range(20):
            if self.process.threads:
                return self.process.threads[-1]
            self.go_on(1)
        raise AssertionError("no thread was started")

    def carry(self, *batches: int) -> list[str]:
        """The ids of transactions that tasks of these batches prepare, one after the other."""
        before = len(self.handles)
        for batch in batches:
            self.start(batch)
            self.go_on()
        return [str(one["transactional_id"]).rpartition(".")[2] for one in self.handles[before:]]


@contextmanager
def scene(kind: str = "kafka-v1", **more: Any) -> Iterator[Scene]:
    made = Scene(kind, **more)
    with replaced(), under_way(made.simulation):
        try:
            yield made
        finally:
            made.simulation.end()


def test_a_task_waits_for_the_thread_that_initialises_its_producer() -> None:
    with scene() as one:
        one.start()
        thread = one.thread()
        thread.paused = True
        one.go_on()
        assert one.handles == []
        thread.paused = False
        one.go_on()
        assert len(one.handles) == 1
        assert one.process.threads == []


def test_lanes_are_used_again_two_batches_later() -> None:
    with scene() as one:
        lanes = one.carry(0, 0, 1, 2, 3, 4)
        assert len(lanes) == 6
        assert len(set(lanes[:3])) == 3
        assert len(set(lanes)) < 6


@pytest.mark.parametrize("dies", ["the thread", "the task"])
def test_a_process_dies_as_a_whole(dies: str) -> None:
    with scene() as one:
        task = one.start()
        thread = one.thread()
        task.on_death = one.process.die
        one.simulation.kill(thread if dies == "the thread" else task)
        assert task.dead
        assert thread.dead
        assert one.simulation.parties == []
        one.go_on()
        assert one.handles == []


def test_a_process_without_a_task_that_dies_is_idle_no_more() -> None:
    with scene() as one:
        one.process._idle.append(one.process)
        one.process.in_thread(lambda: None)
        one.simulation.kill(one.thread())
        assert one.process._idle == []


def test_a_task_that_waits_no_longer_fails_and_leaves_its_producer_to_the_next() -> None:
    with scene(faults=frozenset({"paused"})) as one:
        one.start()
        thread = one.thread()
        one.go_on(1)
        assert one.kafka.keep_a_task_waiting() is None
        thread.paused = True
        lose_patience = one.kafka.keep_a_task_waiting()
        assert lose_patience is not None
        lose_patience()
        assert one.kafka.keep_a_task_waiting() is None
        one.go_on()
        assert one.failed == ["No Kafka producer was ready within 65 s."]
        thread.paused = False
        one.go_on()
        assert one.carry(1) == ["000000000001-0"]


def test_what_is_kept_ready_is_ended_when_nobody_takes_it_for_long() -> None:
    with scene(keep_ready=True) as one:
        one.carry(0)
        (worker,) = one.kafka.workers
        assert worker.keeps_some
        grow_old = one.kafka.grow_old()
        assert grow_old is not None
        grow_old()
        assert not worker.keeps_some
        assert one.kafka.grow_old() is None


def test_an_epoch_carries_one_transaction_of_one_copy() -> None:
    with scene() as one:
        epoch = one.kafka.initialise("id")
        assert epoch == 0
        first, second = (one.kafka.writer(OWNER, one.process, 0, slot, 1) for slot in (0, 1))
        assert one.kafka.produce("id", 0, 0, 0, 1, first) == "taken"
        assert one.kafka.produce("id", 0, 0, 0, 1, first) == "taken"
        assert one.kafka.produce("id", 0, 0, 1, 1, second) == "carries"
        one.kafka.give_up("id", 0)
        assert one.kafka.produce("id", 0, 0, 1, 1, second) == "carried"
        one.kafka.initialise("id")
        assert one.kafka.produce("id", 0, 0, 0, 1, first) == "fenced"


def test_a_copy_that_is_given_a_used_producer_is_seen() -> None:
    with scene() as one:
        one.carry(0)
        (worker,) = one.kafka.workers
        (pool,) = worker._pools.values()
        name = str(one.handles[0]["transactional_id"])
        used: Any = ModelProducer(one.kafka, 0, name)
        used.epoch = 0
        pool._ready.append(used)
        one.start(0)
        with pytest.raises(Broken):
            one.go_on()
        assert one.simulation.oracle.violation is Violation.SHARED_EPOCH


def test_a_late_initialisation_meets_who_has_initialised_the_id_since() -> None:
    with scene() as one:
        kafka = one.kafka
        kafka.initialises_late("id")
        kafka.overtake("id")
        assert "id" not in kafka.ids, "nobody would notice it"
        assert kafka.initialise("id") == 0
        kafka.produce("id", 0, 0, 0, 2, None)
        kafka.overtake("another")
        assert (kafka.ids["id"].state, kafka.ids["id"].epoch) == ("Ongoing", 0)
        answer = kafka.end(Transaction("id", PRODUCER_ID, 0), commit=True, raises_epoch=False)
        assert answer.code == INVALID_PRODUCER_EPOCH
        assert (kafka.ids["id"].state, kafka.ids["id"].epoch) == ("Empty", 2)
        assert one.simulation.oracle.undone == {("kafka-v1", "id", 0)}
        assert (kafka.late, kafka.overdue) == ([], [])


@pytest.mark.parametrize(("faults", "slow"), [({"request late"}, True), (set(), False)])
def test_an_initialisation_is_slow_where_requests_may_be_late(faults: set[str], *, slow: bool) -> None:
    with scene(faults=frozenset(faults)) as one:
        one.start()
        one.go_on()
        assert (len(one.failed), len(one.kafka.late)) == (slow, slow)
        assert len(one.handles) == (not slow)


def test_a_driver_finds_a_coordinator_that_has_moved() -> None:
    with scene() as one:
        one.simulation.peace = True
        committer = one.kafka.committer()
        one.start()
        assert one.kafka.move() is None
        one.simulation.peace = False
        one.go_on()
        one.simulation.peace = True
        one.simulation.oracle._identify = {"k": one.kafka.key}
        one.simulation.oracle.named[one.kafka.key(one.handles[0])] = 0
        assert commit(committer, one) == [Outcome.COMMITTED]
        move = one.kafka.move()
        assert move is not None
        move()
        assert one.kafka.move() is None
        assert commit(committer, one) == [Outcome.COMMITTED]


def commit(committer: Any, one: Scene) -> list[Outcome]:
    return [finished.outcome for finished in committer.commit(one.handles)]


@pytest.mark.parametrize(("kind", "asked"), [("kafka-v1", "fences"), ("kafka-v2", "aborts")])
def test_a_driver_aborts_as_the_cluster_can(kind: str, asked: str) -> None:
    with scene(kind) as one:
        one.carry(0)
        one.simulation.peace = True
        one.kafka.committer().abort(one.handles)
        name = one.handles[0]["transactional_id"]
        assert one.kafka.ids[str(name)].state == "CompleteAbort"
        assert any(f"{asked} {name}" in told for told in one.simulation.told or ())


def test_an_abort_that_compares_no_epoch_is_seen_where_there_is_a_better_one() -> None:
    with scene("kafka-v2") as one:
        one.carry(0)
        one.simulation.peace = True
        asked = {transaction_of(one.handles[0]): 60_000}
        with pytest.raises(Broken):
            one.kafka.committer()._client.fence(asked, deadline_s=0.0)
    assert one.simulation.oracle.violation is Violation.BLUNT_ABORT

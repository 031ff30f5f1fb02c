"""Faults of a cluster, each at a point of a batch, and the next one after a batch that is decided."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from cluster.job import ClusterJob
from cluster.standalone import Daemon, Standalone
from eventually import eventually
from spark.harness import Job
from spark.kills import WITHIN_TASKS, from_batch, hold_at
from spark.processes import Run, kill, kill_executor
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from striking.gate import Arrival
from striking.points import ASKING, FIRST, IN_DRIVER, PREPARED

LIMIT_S = 400.0
CONTINUOUS = {"processingTime": "0 seconds"}

ANY_BATCH = tuple(point for point in (*IN_DRIVER, *ASKING[1:], *WITHIN_TASKS) if point not in FIRST)
"""Points that a run comes to in each batch, or in each second one."""

Heal = Callable[[], None]
Fault = Callable[["Scene", Arrival], Heal]


@dataclass(slots=True)
class Scene:
    """A job that runs on, with all that can be taken away from it.

    Attributes:
        job: The job, with `CONTINUOUS` as its trigger.
        spark: Where it runs, if that is a cluster.
        kafka: What it reads and writes.
        dice: Draws what is hit.
        machines: How many other machines a driver was started on.
        is_new: Whether the next run is still to be started.
    """

    job: Job
    spark: Standalone | None
    kafka: Cluster
    dice: random.Random
    machines: int = 0
    is_new: bool = True

    def run(self) -> Run:
        """The newest run, started if there is none."""
        if self.is_new:
            self.is_new = False
            self.job.start(trigger=CONTINUOUS)
        return self.job.runs[-1]

    def check(self) -> None:
        """Raises if the driver has ended by itself, and sends rows if there may be none for the next batch."""
        self.run().check()
        rows = self.job.config.rows_per_batch
        if len(self.job.ids) < (self.job.decided() + 3) * rows:
            self.job.feed(rows)

    def await_batch(self, number: int) -> None:
        """Waits until a batch is decided."""

        def is_decided() -> bool:
            self.check()
            return self.job.decided() >= number

        eventually(is_decided, f"batch {number} is decided", limit_s=LIMIT_S)

    def strike(self, fault: Fault, point: str) -> None:
        """Waits for a new batch at a point, does a fault there, and waits until a batch after it is decided."""
        self.check()
        if point in FIRST:
            self.end_with_a_decided_batch()
        told = {"attempt": 0} if fault is slow_a_task else {}
        hold = hold_at(point, self.job, None if point in FIRST else from_batch(self.job.decided() + 1), **told)
        self.run()
        at = hold.wait(self.check, limit_s=LIMIT_S)
        now = self.job.phase()
        assert now is not None
        heal = fault(self, at)
        hold.cancel()
        hold.release()
        self.await_batch(max(now.told["batch"], self.job.decided()) + 1)
        heal()

    def end_with_a_decided_batch(self) -> None:
        """Kills the driver when a batch is decided and nothing of it committed, and forgets it."""
        hold = hold_at(Phase.FINISHING.name, self.job, from_batch(self.job.decided() + 1))
        hold.wait(self.check, limit_s=LIMIT_S)
        self.run().kill()
        hold.cancel()
        self.is_new = True

    def finish(self) -> None:
        """Ends the driver, and has another one write what is left."""
        self.run().kill()
        self.job.start().finish(limit_s=LIMIT_S)


def nothing() -> None:
    """Heals what heals by itself."""


def any_worker(scene: Scene) -> Daemon:
    assert scene.spark is not None
    return scene.dice.choice(scene.spark.workers)


def any_executor(scene: Scene) -> int:
    assert scene.spark is not None
    return scene.dice.choice(eventually(scene.spark.executors, "there is an executor", limit_s=LIMIT_S))


def kill_an_executor(scene: Scene, at: Arrival) -> Heal:
    """In a task, it is the task's own, and the Python worker lives on; else any."""
    if at.point in WITHIN_TASKS:
        kill_executor(at.pid)
    else:
        kill(any_executor(scene))
    return nothing


def decommission_an_executor(scene: Scene, _: Arrival) -> Heal:
    os.kill(any_executor(scene), signal.SIGPWR)
    return nothing


def kill_a_worker(scene: Scene, _: Arrival) -> Heal:
    """With all that runs on its host, which comes back later."""
    worker = any_worker(scene)
    worker.kill()
    return lambda: nothing() if worker.start() else None


def decommission_a_worker(scene: Scene, _: Arrival) -> Heal:
    worker = any_worker(scene)
    worker.decommission()

    def heal() -> None:
        worker.kill()
        worker.start()

    return heal


def slow_a_task(scene: Scene, at: Arrival) -> Heal:
    """Keeps a task until its speculative copy has prepared."""
    slot = {"batch": at.told["batch"], "slot": at.told["slot"]}
    gate = scene.job.gate
    gate.wait_for(
        lambda: bool(gate.at(PREPARED, attempt=1, **slot)), "a copy has prepared", scene.check, limit_s=LIMIT_S
    )
    return nothing


def kill_the_driver(scene: Scene, _: Arrival) -> Heal:
    scene.run().kill()
    scene.job.start(trigger=CONTINUOUS)
    return nothing


def move_the_driver(scene: Scene, _: Arrival) -> Heal:
    scene.run().kill()
    scene.machines += 1
    assert isinstance(scene.job, ClusterJob)
    scene.job.start(scene.job.elsewhere(scene.machines), trigger=CONTINUOUS)
    return nothing


def kill_a_broker(scene: Scene, _: Arrival) -> Heal:
    return kill_broker(scene.dice.randrange(len(scene.kafka.brokers)))(scene, _)


def kill_broker(number: int) -> Fault:
    """Makes the fault that a broker is away until a later batch is decided."""

    def kill_it(scene: Scene, _: Arrival) -> Heal:
        broker = scene.kafka.brokers[number]
        broker.kill()

        def heal() -> None:
            broker.start()
            await_replicas(scene.kafka)

        return heal

    return kill_it


def restart_broker(number: int) -> Fault:
    """Makes the fault that a broker ends in order, which moves what it leads and coordinates, and comes back."""

    def restart_it(scene: Scene, _: Arrival) -> Heal:
        scene.kafka.brokers[number].restart()
        return lambda: await_replicas(scene.kafka)

    return restart_it


def await_replicas(kafka: Cluster) -> None:
    """Waits until each partition has all of its replicas in sync."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})

    def in_sync() -> bool:
        topics = admin.list_topics(timeout=LIMIT_S).topics.values()
        return all(set(one.isrs) == set(one.replicas) for topic in topics for one in topic.partitions.values())

    eventually(in_sync, "all replicas are in sync", limit_s=LIMIT_S)


SLOW = "a task is slow"
FAULTS: dict[str, Fault] = {
    "an executor is killed": kill_an_executor,
    "an executor is decommissioned": decommission_an_executor,
    "a worker is killed": kill_a_worker,
    "a worker is decommissioned": decommission_a_worker,
    SLOW: slow_a_task,
    "the driver is killed": kill_the_driver,
    "the driver is moved": move_the_driver,
    "a broker is killed": kill_a_broker,
}


def points_of(fault: str) -> tuple[str, ...]:
    """Where a fault makes sense: only a task that has begun can be slow, and not yet done."""
    return WITHIN_TASKS[1:2] if fault == SLOW else ANY_BATCH

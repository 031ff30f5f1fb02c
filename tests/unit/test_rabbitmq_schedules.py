"""Drivers that publish at once to a model of a stream's leader, by seed: every row is there once, in order.

The model is what RabbitMQ 3.10.8's ``osiris_writer`` does. It keeps a publisher's highest id, drops what is not above
it, and confirms a dropped message when the entry of the highest id is safe. A leader that fails takes with it what no
replica has. Requests and answers are lost, and requests of a broken connection arrive late, in their order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from greenlet import getcurrent, greenlet

from sparkonce.sinks.rabbitmq import publishing
from sparkonce.sinks.rabbitmq.ids import Ids
from sparkonce.sinks.rabbitmq.messages import FRAME_OVERHEAD_BYTES, Frame
from sparkonce.sinks.rabbitmq.publishing import Publisher, StreamApplication

BATCHES, ROWS, DRIVERS = 3, 7, 3
SEEDS = 300
TURNS = 400
ROOM_FOR_TWO = FRAME_OVERHEAD_BYTES + 2 * (12 + 1)
"""Frames of two messages of a byte."""


class World:
    """A stream, and drivers that take turns."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log: list[int] = []
        self.safe = 0
        self.leader = 0
        self.late: list[tuple[int, Frame]] = []
        self.peace = False
        self.begun: set[int] = set()
        self.done: set[int] = set()

    @property
    def highest(self) -> int:
        return self.log[-1] if self.log else 0

    def chance(self, likely: float) -> bool:
        return not self.peace and self.dice.random() < likely

    def pause(self) -> None:
        """Lets others go on, and lets things happen."""
        if self.peace:
            self.safe = len(self.log)
            return
        if self.dice.random() < 0.3:
            self.safe = self.dice.randint(self.safe, len(self.log))
        if self.late and self.dice.random() < 0.2:
            self.arrive()
        if self.dice.random() < 0.02:
            del self.log[self.safe :]
            self.leader += 1
        getcurrent().parent.switch()

    def arrive(self) -> None:
        leader, frame = self.late.pop(0)
        if leader == self.leader:
            self.take(frame)

    def take(self, frame: Frame) -> None:
        for number in range(frame.first_id, frame.first_id + frame.count):
            if number > self.highest:
                self.log.append(number)


class ModelConnection:
    """A `StreamConnection` to the leader of now."""

    frame_max = ROOM_FOR_TWO

    def __init__(self, world: World) -> None:
        self.world = world
        self.leader = world.leader

    def declare(self, publisher: str) -> None:
        pass

    def sequence(self, publisher: str) -> int:
        self._answer()
        return self.world.highest

    def publish(self, frame: Frame) -> None:
        world = self.world
        self._answer()
        if world.chance(0.1):
            if world.chance(0.5):
                world.late.append((self.leader, frame))
            raise ConnectionError("the request is lost, or late")
        world.take(frame)
        needed = len(world.log)
        while world.safe < needed:
            self._answer()
        if world.chance(0.1):
            raise ConnectionError("the confirms are lost")

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        self.world.pause()
        if self.leader != self.world.leader:
            raise ConnectionError("the leader went away")


def drive(world: World) -> None:
    """A driver: publishes each batch that is not noted as done, asking again after an error, and notes it."""
    publisher = Publisher(SimpleNamespace(), "stream", "name")  # type: ignore[arg-type]
    application = StreamApplication.__new__(StreamApplication)
    application._publisher_of = lambda _: publisher
    application._begun, application._ahead_since = set(), {}
    for batch in range(BATCHES):
        repeated = batch in world.begun
        world.begun.add(batch)
        unit: Any = SimpleNamespace(repeated=repeated, number=0)
        token: Any = SimpleNamespace(id=str(batch), query="q", batch=batch, rows=ROWS)
        while batch not in world.done:
            world.pause()
            try:
                application.deliver(unit, token, ())
            except (ConnectionError, publishing.RetryLaterError):
                continue
            world.pause()
            world.done.add(batch)


def played(seed: int) -> World:
    """Some drivers at once, some of which die; then one in peace; then what is late."""
    world = World(seed)
    rows = [pa.record_batch({"message": [b"x"] * 4}), pa.record_batch({"message": [b"x"] * (ROWS - 4)})]
    with (
        mock.patch.object(publishing, "StreamConnection", side_effect=lambda *_: ModelConnection(world)),
        mock.patch.object(publishing, "read", return_value=rows),
    ):
        drivers = [greenlet(lambda: drive(world)) for _ in range(DRIVERS)]
        for _ in range(TURNS):
            if drivers:
                one = world.dice.choice(drivers)
                one.switch()
                if one.dead or world.chance(0.003):
                    drivers.remove(one)
        world.peace = True
        drive(world)
        while world.late:
            world.arrive()
    return world


def wanted() -> list[int]:
    ids = [Ids.of(batch, 0, ROWS) for batch in range(BATCHES)]
    return [number for one in ids for number in range(one.first, one.last + 1)]


def wrong(seeds: range = range(SEEDS)) -> Iterator[int]:
    """Yields the seeds after which the stream is not what it should be, or a driver stops for good."""
    for seed in seeds:
        try:
            log = played(seed).log
        except publishing.RefusedError:
            log = []
        if log != wanted():
            yield seed


def test_every_row_is_there_once_in_order() -> None:
    assert list(wrong()) == []


def after_the_highest(real: Callable[..., None]) -> Callable[..., None]:
    def publish(self: Publisher, rows: Any, first_id: int, skip: int = 0) -> None:
        there = self.sequence()
        real(self, rows, first_id, max(0, there - first_id + 1))

    return publish


def from_what_was_sent(real: Callable[..., None]) -> Callable[..., None]:
    def publish(self: ModelConnection, frame: Frame) -> None:
        sent = self.world.__dict__.setdefault("sent", set())
        if frame.first_id in sent:
            return
        sent.add(frame.first_id)
        real(self, frame)

    return publish


def without_waiting(real: Callable[..., None]) -> Callable[..., None]:
    def send(self: Publisher, connection: ModelConnection, messages: Any, first_id: int) -> None:
        failed: list[ConnectionError] = []
        for frame in publishing.frames(messages, first_id, connection.frame_max - FRAME_OVERHEAD_BYTES):
            try:
                connection.publish(frame)
            except ConnectionError as error:  # noqa: PERF203 - that it continues is the mistake
                failed.append(error)
        if failed:
            raise failed[0]

    return send


def drawn_ids(real: Callable[..., None]) -> Callable[..., None]:
    def publish(self: Publisher, rows: Any, first_id: int, skip: int = 0) -> None:
        real(self, rows, first_id + 100 * self.__dict__.setdefault("drawn", id(self) % 7), skip)

    return publish


MUTANTS: Sequence[tuple[str, type, str, Callable[[Any], Any]]] = (
    ("begins after the highest id, which may not be safe", Publisher, "publish", after_the_highest),
    ("believes what it has sent, instead of asking", ModelConnection, "publish", from_what_was_sent),
    ("sends the next frame although the last one failed", Publisher, "_send", without_waiting),
    ("draws its ids", Publisher, "publish", drawn_ids),
)


@pytest.mark.parametrize(("owner", "name", "make"), [one[1:] for one in MUTANTS], ids=[one[0] for one in MUTANTS])
def test_a_wrong_publisher_is_found(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    with mock.patch.object(owner, name, make(getattr(owner, name))):
        assert next(wrong(), None) is not None

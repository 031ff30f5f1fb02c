"""The thread that receives from a queue, and what it does while the server or the checkpoint store is down."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from sparkonce.errors import OutageError, PreflightError, SparkonceError
from sparkonce_rabbitmq.queue import consumer as module
from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, QueueConsumer
from sparkonce_rabbitmq.queue.messages import QueueMessage
from sparkonce_rabbitmq.server import RabbitMQ

PATIENCE_S = 30.0


class World:
    """A clock, a broker with messages, and a receiver whose checkpoint store can be down.

    Attributes:
        away: When the store is down, as a start and an end.
        messages_at: When the messages are delivered.
        on_consume: Called with the channel instead of a successful subscription.
        after_s: When the delivered messages have been finished and the query is stopped.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, messages: int = 0) -> None:
        self.now = 0.0
        self.away = (0.0, 0.0)
        self.messages_at = 0.0
        self.messages = messages
        self.subscriptions = 0
        self.taken: list[str] = []
        self.kept: list[str] = []
        self.acknowledged = 0
        self.is_tried = self.is_stopping = False
        self.after_s = 10 * PATIENCE_S
        self.on_consume: Callable[[Any], None] | None = None
        settings = ConsumerSettings(server=RabbitMQ(), queue="q", prefetch=9, exclusive=True, patience_s=PATIENCE_S)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(pika, "SelectConnection", lambda _, **callbacks: Connection(self, **callbacks))
        receiver: Any = self
        self.consumer = QueueConsumer(settings, receiver)
        stopping: Any = SimpleNamespace(is_set=lambda: self.now > self.after_s, wait=self.wait)
        self.consumer._stopping = stopping

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> SparkonceError | None:
        """Runs the thread here, and returns why it ended."""
        self.consumer._run()
        return self.consumer._error

    # --- a receiver ---

    def claim(self) -> None:
        pass

    def settle(self) -> None:
        if self.is_tried:
            self.keep()

    def poll(self) -> None:
        if self.away[0] <= self.now < self.away[1]:
            raise OSError("the store is away")

    def is_full(self) -> bool:
        return self.is_tried or len(self.taken) == 2

    def take(self, _: int, message: QueueMessage) -> None:
        assert not self.is_tried, "its segment has no known end"
        self.taken.append(message.value.decode())

    def keep(self) -> None:
        self.is_tried = True
        self.poll()
        self.kept += self.taken
        self.taken, self.is_tried = [], False

    def keep_due(self) -> bool:
        if self.taken:
            self.keep()
        return True

    def acknowledge(self) -> int | None:
        return len(self.kept) if len(self.kept) > self.acknowledged else None

    def disconnected(self) -> None:
        pass


class Connection:
    """pika's connection, its channel and its loop."""

    def __init__(self, world: World, **callbacks: Any) -> None:
        self._world, self._callbacks = world, callbacks
        self._later: list[Callable[[], None]] = []
        self._deliveries: list[Callable[[], None]] = []
        self.is_open, self.is_closed, self._is_stopped = True, False, False
        self.ioloop = SimpleNamespace(start=self._run, stop=self._stop, close=lambda: None, call_later=self._call)

    def _run(self) -> None:
        self._callbacks["on_open_callback"](self)
        while not self._is_stopped:
            if self.is_open and self._deliveries and self._world.now >= self._world.messages_at:
                self._deliveries.pop(0)()
            elif self.is_open:
                self._later.pop(0)()
            else:
                self.is_closed = True
                self._callbacks["on_close_callback"](self, None)

    def _stop(self) -> None:
        self._is_stopped = True

    def _call(self, seconds: float, call: Callable[[], None]) -> None:
        self._world.now += seconds
        self._later.append(call)

    def close(self) -> None:
        self.is_open = False

    def channel(self, on_open_callback: Callable[[Any], None]) -> None:
        on_open_callback(self)

    def add_on_close_callback(self, refused: Callable[[Any, BaseException], None]) -> None:
        self.refuse = lambda error: refused(self, error)

    def add_on_cancel_callback(self, cancelled: Callable[[Any], None]) -> None:
        self.cancel = lambda: cancelled(None)

    def basic_qos(self, prefetch_count: int) -> None:
        pass

    def basic_consume(
        self, _: str, deliver: Callable[..., None], exclusive: bool, callback: Callable[[Any], None]
    ) -> None:
        self._world.subscriptions += 1
        if self._world.on_consume is not None:
            self._world.on_consume(self)
            return
        callback(None)
        for number in range(self._world.messages):
            method = SimpleNamespace(delivery_tag=number + 1, exchange="", routing_key="q", redelivered=False)
            self._deliveries.append(lambda method=method: deliver(None, method, pika.BasicProperties(), b"m"))

    def basic_ack(self, tag: int, multiple: bool) -> None:
        assert multiple
        self._world.acknowledged = tag


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch, messages=9)


def test_a_store_that_is_away_for_a_while_costs_no_return_of_messages(world):
    world.away = (1.0, PATIENCE_S)
    world.messages_at = 1.0
    assert world.run() is None
    assert (world.subscriptions, len(world.kept), world.acknowledged) == (1, 9, 9)


@pytest.mark.parametrize("since", [0.0, 1.0])
def test_a_store_that_stays_away_ends_the_query(world, since):
    world.away = (since, 1e9)
    error = world.run()
    assert isinstance(error, OutageError)
    assert "has been unreachable for 3" in str(error)
    assert world.subscriptions == (1 if since else 0)


def test_another_consumer_is_waited_for_as_long_as_patience_lasts(world):
    refusal = ChannelClosedByBroker(403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")
    world.on_consume = lambda channel: channel.refuse(refusal)
    error = world.run()
    assert isinstance(error, PreflightError)
    assert "has had another consumer for 3" in str(error)


def test_a_queue_that_does_not_exist_is_not_waited_for(world):
    world.on_consume = lambda channel: channel.refuse(ChannelClosedByBroker(404, "NOT_FOUND - no queue 'q'"))
    assert isinstance(world.run(), PreflightError)
    assert world.subscriptions == 1


@pytest.mark.parametrize(
    "happens",
    [
        lambda channel: channel.refuse(
            ChannelClosedByBroker(
                404, "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible"
            )
        ),
        lambda channel: channel.cancel(),
    ],
    ids=["closed", "cancelled"],
)
def test_a_queue_whose_node_is_away_is_waited_for(world, happens):
    def once(channel: Any) -> None:
        if world.now >= PATIENCE_S / 2:
            world.on_consume = None
        happens(channel)

    world.on_consume = once
    assert world.run() is None
    assert world.acknowledged == 9
    world.on_consume, world.after_s = happens, 1e9
    assert isinstance(world.run(), OutageError)

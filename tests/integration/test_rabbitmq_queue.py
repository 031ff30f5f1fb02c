"""The receiver of a queue with a real server: what it stores and acknowledges, and what is redelivered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from secured import make_keys
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.errors import OutageError, PreflightError, SupersededError
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem
from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, QueueConsumer, queue_is_there
from sparkonce_rabbitmq.queue.progress import NEXT, QUEUE, Progress
from sparkonce_rabbitmq.queue.receiver import Receiver, ReceiverSettings
from sparkonce_rabbitmq.queue.segments import Segments
from sparkonce_rabbitmq.server import RabbitMQ

pytestmark = USES_RABBIT

WAIT_S = 30.0


@pytest.fixture
def rabbit(tmp_path: Path) -> RabbitQueueSystem:
    system = RabbitQueueSystem(server=rabbit_server())
    system.start(tmp_path)
    return system


class Driver:
    """The receiver's view of a query's driver, with a checkpoint that the test controls.

    Args:
        root: The checkpoint folder.
        server: The server's settings.
        queue: The queue.
        given: Fields of `ReceiverSettings` and `ConsumerSettings`.
    """

    def __init__(self, root: Path, server: RabbitMQ, queue: str, **given: Any) -> None:
        self.files = LocalFiles(root)
        self.segments = Segments(self.files.inside("sparkonce-queue"))
        self.identity = self.segments.identity("message_id")
        consumer = {"prefetch": 1000, "exclusive": True, "patience_s": 60.0, **given.pop("consumer", {})}
        self.receiver = Receiver(self.segments, Progress(self.files, self.identity), ReceiverSettings(**given))
        self.consumer = QueueConsumer(ConsumerSettings(server=server, queue=queue, **consumer), self.receiver)
        self.consumer.start()

    def kept(self) -> list[str]:
        """Returns the stored messages, in order."""
        self.consumer.check()
        tables = [self.segments.read(number).table() for number in self.segments.numbers()]
        return [bytes(one).decode() for table in tables for one in table.column("value").to_pylist()]

    def finish(self) -> None:
        """Records a batch that has read all stored messages, as Spark does."""
        batch = len(self.files.names("commits"))
        position = json.dumps({QUEUE: self.identity, NEXT: self.segments.numbers()[-1] + 1})
        for log in ("offsets", "commits"):
            self.files.put(f"{log}/{batch}", f"v1\n{{}}\n{position}\n".encode())


@pytest.fixture
def drivers(rabbit: RabbitQueueSystem, tmp_path: Path) -> Iterator[Any]:
    made: list[Driver] = []

    def make(queue: str, **given: Any) -> Driver:
        made.append(Driver(tmp_path / "checkpoint", rabbit.settings(), queue, **given))
        return made[-1]

    yield make
    for one in made:
        one.consumer.stop()


def numbered(first: int, end: int) -> list[str]:
    return [f"m{number}" for number in range(first, end)]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_are_acknowledged_when_their_batch_is_finished(
    rabbit: RabbitQueueSystem, kind: str, drivers: Any
) -> None:
    queue = rabbit.declare(kind)
    rabbit.publish(queue, numbered(0, 50))
    driver = drivers(queue)
    driver.consumer.wait_quiet(WAIT_S)
    assert driver.kept() == numbered(0, 50)
    assert len(driver.receiver._held) == 50
    driver.finish()
    assert left(rabbit, driver, queue) == 0


def left(rabbit: RabbitQueueSystem, driver: Driver, queue: str) -> int:
    """Stops a driver that has acknowledged everything it may, and returns the number of messages left in the queue."""
    eventually(lambda: not driver.receiver._held, "all are acknowledged")
    driver.consumer.stop()
    return len(rabbit.peek(queue))


def test_stored_messages_are_acknowledged_at_once(rabbit: RabbitQueueSystem, drivers: Any) -> None:
    queue = rabbit.declare()
    rabbit.publish(queue, numbered(0, 50))
    driver = drivers(queue, acknowledge="stored")
    eventually(lambda: len(driver.kept()) == 50, "all are kept")
    assert left(rabbit, driver, queue) == 0


@pytest.mark.slow
def test_it_goes_on_after_its_server_was_restarted(rabbit: RabbitQueueSystem, drivers: Any) -> None:
    def publishes(rabbit: RabbitQueueSystem, queue: str, names: list[str]) -> bool:
        try:
            rabbit.publish(queue, names)
        except Exception:  # noqa: BLE001 - retried whatever it is, since a restarted queue first elects a leader
            return False
        return True

    queue = rabbit.declare("quorum")
    rabbit.publish(queue, numbered(0, 50))
    driver = drivers(queue)
    driver.consumer.wait_quiet(WAIT_S)
    rabbit.restart()
    eventually(lambda: publishes(rabbit, queue, numbered(50, 60)), "the queue is there again")
    eventually(lambda: len(set(driver.kept())) >= 60, "it receives again")
    assert sorted(driver.kept()) == sorted(numbered(0, 60))
    driver.finish()
    assert left(rabbit, driver, queue) == 0


def test_of_two_drivers_the_newer_goes_on_and_nothing_is_kept_twice(rabbit: RabbitQueueSystem, drivers: Any) -> None:
    queue = rabbit.declare()
    rabbit.publish(queue, numbered(0, 50))
    older = drivers(queue)
    older.consumer.wait_quiet(WAIT_S)
    newer = drivers(queue)
    with pytest.raises(SupersededError, match="Another run is receiving from the queue"):
        eventually(older.consumer.check, "the older one stops")
    rabbit.publish(queue, numbered(50, 60))
    eventually(lambda: len(newer.kept()) >= 60, "the newer one receives")
    assert newer.kept() == numbered(0, 60)
    newer.finish()
    assert left(rabbit, newer, queue) == 0


def test_no_more_than_the_prefetch_is_received_ahead(rabbit: RabbitQueueSystem, drivers: Any) -> None:
    queue = rabbit.declare()
    rabbit.publish(queue, numbered(0, 50))
    driver = drivers(queue, consumer={"prefetch": 20})
    driver.consumer.wait_quiet(WAIT_S)
    assert [driver.kept(), rabbit.ready(queue)] == [numbered(0, 20), 30]
    driver.finish()
    eventually(lambda: len(driver.kept()) == 40, "the next ones come")


def test_a_queue_that_is_deleted_stops_it(rabbit: RabbitQueueSystem, drivers: Any) -> None:
    queue = rabbit.declare()
    driver = drivers(queue)
    driver.consumer.wait_quiet(WAIT_S)
    with rabbit.channel() as channel:
        channel.queue_delete(queue)
    with pytest.raises(PreflightError, match=f"refuses queue '{queue}': NOT_FOUND - no queue"):
        eventually(driver.consumer.check, "it stops")


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({}, "NOT_FOUND - no queue 'no-such'"),
        ({"password": "wrong"}, "ProbableAuthenticationError"),
        ({"virtual_host": "nowhere"}, "ProbableAccessDeniedError|vhost nowhere not found"),
    ],
)
def test_what_the_server_refuses_is_said(rabbit: RabbitQueueSystem, given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(PreflightError, match=refusal):
        queue_is_there(rabbit.settings(**given), "no-such")


def test_a_server_that_is_away_is_an_outage(tmp_path: Path) -> None:
    away = RabbitMQ(host="127.0.0.1", port=1, timeout_s=1.0)
    with pytest.raises(OutageError, match="cannot be reached"):
        queue_is_there(away, "orders")
    driver = Driver(tmp_path, away, "orders", consumer={"patience_s": 0.01})
    with pytest.raises(OutageError, match="has been unreachable"):
        eventually(driver.consumer.check, "it gives up")


@pytest.mark.slow
def test_with_tls_in_a_virtual_host_of_its_own(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    tls = (keys / "ca.pem", keys / "broker.pem", keys / "broker.key")
    with RabbitServer(tmp_path / "data", tls=tls, virtual_hosts=["shop"]) as server:
        given = {"port": server.tls_port, "tls": True, "ca_file": str(keys / "ca.pem"), "virtual_host": "shop"}
        settings = RabbitMQ(host=HOST, **given)
        with pytest.raises(PreflightError, match="no queue 'orders' in vhost 'shop'"):
            queue_is_there(settings, "orders")


def test_a_message_that_a_quorum_queue_may_soon_drop_is_told_of(
    rabbit: RabbitQueueSystem, drivers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.declare("quorum")
    rabbit.publish(queue, ["m0"])
    with rabbit.channel() as channel:
        for _ in range(10):
            method = eventually(lambda: channel.basic_get(queue)[0], "it is there again")
            channel.basic_nack(method.delivery_tag)
    driver = drivers(queue)
    eventually(lambda: driver.kept() == ["m0"], "it is kept")
    assert "was returned 10 times, and a delivery limit" in caplog.text

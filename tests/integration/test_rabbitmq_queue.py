"""A queue on a real server: what its receiver stores and acknowledges, and what its sink publishes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventually import eventually
from secured import make_keys
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.errors import CorruptRecordError, OutageError, PreflightError, SchemaError, SupersededError
from sparkonce.guarantees import Guarantee
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import ApplyToken, RefusedError
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem
from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, QueueConsumer, queue_is_there
from sparkonce_rabbitmq.queue.progress import NEXT, QUEUE, Progress
from sparkonce_rabbitmq.queue.receiver import Receiver, ReceiverSettings
from sparkonce_rabbitmq.queue.segments import Segments
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks import queue_publisher
from sparkonce_rabbitmq.sinks.queue_publisher import DEDUPLICATION_HEADER, QueuePublish, check_exchange
from sparkonce_rabbitmq.sinks.queue_sink import RabbitMQQueueSink, queue_columns

pytestmark = USES_RABBIT

WAIT_S = 30.0


@pytest.fixture
def rabbit(tmp_path) -> RabbitQueueSystem:
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
def drivers(rabbit, tmp_path) -> Iterator[Any]:
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
def test_messages_are_acknowledged_when_their_batch_is_finished(rabbit, kind, drivers):
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


def test_stored_messages_are_acknowledged_at_once(rabbit, drivers):
    queue = rabbit.declare()
    rabbit.publish(queue, numbered(0, 50))
    driver = drivers(queue, acknowledge="stored")
    eventually(lambda: len(driver.kept()) == 50, "all are kept")
    assert left(rabbit, driver, queue) == 0


@pytest.mark.parametrize("acknowledge", ["finished", "stored"])
def test_a_damaged_checkpoint_is_restored_from_its_newest_copy(rabbit, drivers, tmp_path, acknowledge):
    """As the error says. Some messages of the copy are still in the queue, and others are only in the copy."""
    queue = rabbit.declare()
    for first in (0, 50):
        rabbit.publish(queue, numbered(first, first + 50))
        driver = drivers(queue, acknowledge=acknowledge)
        eventually(lambda driver=driver, end=first + 50: len(driver.kept()) == end, "all are kept")
        if first == 0:
            driver.finish()
        if first == 0 or acknowledge == "stored":
            assert left(rabbit, driver, queue) == 0
        driver.consumer.stop()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    shutil.rmtree(tmp_path / "checkpoint" / "sparkonce-queue" / "segments")
    with pytest.raises(CorruptRecordError, match="with all of its folders, from its newest copy"):
        eventually(drivers(queue).consumer.check, "it stops")
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    rabbit.publish(queue, numbered(100, 110))
    driver = drivers(queue)
    eventually(lambda: len(driver.kept()) >= 110, "the new ones are kept")
    assert driver.kept() == numbered(0, 110)
    driver.finish()
    assert left(rabbit, driver, queue) == 0


@pytest.mark.slow
def test_it_goes_on_after_its_server_was_restarted(rabbit, drivers):
    def publishes(rabbit: RabbitQueueSystem, queue: str, names: list[str]) -> bool:
        try:
            rabbit.publish(queue, names)
        except Exception:  # noqa: BLE001 - retry after any error, since a restarted queue first has to elect a leader
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


def test_of_two_drivers_the_newer_goes_on_and_nothing_is_kept_twice(rabbit, drivers):
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


def test_no_more_than_the_prefetch_is_received_ahead(rabbit, drivers):
    queue = rabbit.declare()
    rabbit.publish(queue, numbered(0, 50))
    driver = drivers(queue, consumer={"prefetch": 20})
    driver.consumer.wait_quiet(WAIT_S)
    assert [driver.kept(), rabbit.ready(queue)] == [numbered(0, 20), 30]
    driver.finish()
    eventually(lambda: len(driver.kept()) == 40, "the next ones come")


def test_a_queue_that_is_deleted_stops_it(rabbit, drivers):
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
def test_what_the_server_refuses_is_said(rabbit, given, refusal):
    with pytest.raises(PreflightError, match=refusal):
        queue_is_there(rabbit.settings(**given), "no-such")


def test_a_server_that_is_away_is_an_outage(tmp_path):
    away = RabbitMQ(host="127.0.0.1", port=1, timeout_s=1.0)
    with pytest.raises(OutageError, match="cannot be reached"):
        queue_is_there(away, "orders")
    driver = Driver(tmp_path, away, "orders", consumer={"patience_s": 0.01})
    with pytest.raises(OutageError, match="has been unreachable"):
        eventually(driver.consumer.check, "it gives up")


@pytest.mark.slow
def test_with_tls_in_a_virtual_host_of_its_own(tmp_path):
    keys = make_keys(tmp_path)
    tls = (keys / "ca.pem", keys / "broker.pem", keys / "broker.key")
    with RabbitServer(tmp_path / "data", tls=tls, virtual_hosts=["shop"]) as server:
        given = {"port": server.tls_port, "tls": True, "ca_file": str(keys / "ca.pem"), "virtual_host": "shop"}
        settings = RabbitMQ(host=HOST, **given)
        with pytest.raises(PreflightError, match="no queue 'orders' in vhost 'shop'"):
            queue_is_there(settings, "orders")


def test_a_message_that_a_quorum_queue_may_soon_drop_is_told_of(rabbit, drivers, caplog):
    queue = rabbit.declare("quorum")
    rabbit.publish(queue, ["m0"])
    with rabbit.channel() as channel:
        for _ in range(10):
            method = eventually(lambda: channel.basic_get(queue)[0], "it is there again")
            channel.basic_nack(method.delivery_tag)
    driver = drivers(queue)
    eventually(lambda: driver.kept() == ["m0"], "it is kept")
    assert "was returned 10 times, and a delivery limit" in caplog.text


# --- the sink: what a message contains, and what is published again ---------------------------------------------------


TOKEN = ApplyToken(id="token", query="q", batch=0, slots=(0,), rows=3000)


def reader(**columns: Any) -> pa.RecordBatchReader:
    batch = pa.record_batch(columns)
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_repeat_publishes_the_same_ids_again(rabbit, kind, monkeypatch):
    monkeypatch.setattr(queue_publisher, "_WINDOW", 100)
    queue = rabbit.declare(kind)
    values = [f"v{number}" for number in range(300)]
    publish = QueuePublish(rabbit.settings(), "", queue)
    for _ in range(2):
        publish(reader(value=values), TOKEN)
    found = rabbit.peek(queue)
    assert [body.decode() for _, body in found] == values * 2
    ids = [properties.headers[DEDUPLICATION_HEADER] for properties, _ in found]
    assert ids[:300] == ids[300:] == [f"token-{number}" for number in range(300)]
    assert {properties.delivery_mode for properties, _ in found} == {2}


def test_a_message_has_what_its_row_has(rabbit):
    one, two = rabbit.declare(), rabbit.declare()
    with rabbit.channel() as channel:
        channel.exchange_declare("orders", "direct", durable=True)
        for queue in (one, two):
            channel.queue_bind(queue, "orders", f"to-{queue}")
    rows = reader(
        value=[b"1", b"2"], routing_key=[f"to-{one}", f"to-{two}"], message_id=["a", None], content_type=[None, "t"]
    )
    QueuePublish(rabbit.settings(), "orders", "")(rows, TOKEN)
    ((first, body),) = rabbit.peek(one)
    assert [body, first.message_id, first.content_type] == [b"1", "a", None]
    ((second, body),) = rabbit.peek(two)
    assert [body, second.message_id, second.content_type] == [b"2", "token-1", "t"]


@pytest.mark.parametrize(
    ("exchange", "key", "refusal"),
    [("", "no-such", "a message goes to no queue .*'no-such'.: NO_ROUTE"), ("no-such", "", "no exchange 'no-such'")],
)
def test_a_message_that_goes_nowhere_stops_the_query(rabbit, exchange, key, refusal):
    with pytest.raises(RefusedError, match=refusal):
        QueuePublish(rabbit.settings(), exchange, key)(reader(value=["v"] * 2000), TOKEN)
    with pytest.raises(PreflightError, match="NOT_FOUND"):
        check_exchange(rabbit.settings(), exchange, key)


@pytest.mark.slow
def test_a_full_queue_that_rejects_is_asked_again(rabbit):
    queue = rabbit.declare(x_max_length=1, x_overflow="reject-publish")
    with pytest.raises(ConnectionError, match="the server did not accept a message"):
        QueuePublish(rabbit.settings(), "", queue)(reader(value=["v"] * 5), TOKEN)


def test_a_server_that_is_away_or_refuses_the_login_is_told_apart(rabbit):
    with pytest.raises(ConnectionError):
        QueuePublish(RabbitMQ(host="127.0.0.1", port=1, timeout_s=1.0), "", "q")(reader(value=["v"]), TOKEN)
    with pytest.raises(RefusedError, match="refuses the login of user 'guest'"):
        QueuePublish(rabbit.settings(password="wrong"), "", "q")(reader(value=["v"]), TOKEN)  # noqa: S106


def test_it_promises_no_more_than_it_keeps():
    sink = RabbitMQQueueSink(RabbitMQ(), queue="orders")
    assert sink.promise is Guarantee.AT_LEAST_ONCE
    assert any("dropped" in one or "drops" in one for one in sink.conditions())


@pytest.mark.parametrize(
    ("columns", "refusal"),
    [
        ({"value": ["v"], "other": ["o"]}, "Column 'other' is not a column of a message"),
        ({"value": [1]}, "Column 'value' is bigint"),
        ({"routing_key": ["k"]}, "Column 'value' is missing"),
    ],
)
def test_columns_that_make_no_message_are_refused(columns, refusal):
    with pytest.raises(SchemaError, match=refusal):
        queue_columns(pa.record_batch(columns).schema)

"""Tests of the queue sink on a real server: what a message contains, and what is published again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.errors import PreflightError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.write_ahead import ApplyToken, RefusedError
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.queue_publisher import DEDUPLICATION_HEADER, QueuePublish, check_exchange
from sparkonce_rabbitmq.sinks.queue_sink import RabbitMQQueueSink, queue_columns

pytestmark = USES_RABBIT

TOKEN = ApplyToken(id="token", query="q", batch=0, slots=(0,), rows=3000)


@pytest.fixture
def rabbit(tmp_path: Path) -> RabbitQueueSystem:
    system = RabbitQueueSystem(server=rabbit_server())
    system.start(tmp_path)
    return system


def reader(**columns: Any) -> pa.RecordBatchReader:
    batch = pa.record_batch(columns)
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_repeat_publishes_the_same_ids_again(rabbit: RabbitQueueSystem, kind: str) -> None:
    queue = rabbit.declare(kind)
    values = [f"v{number}" for number in range(3000)]
    publish = QueuePublish(rabbit.settings(), "", queue)
    for _ in range(2):
        publish(reader(value=values), TOKEN)
    found = rabbit.peek(queue)
    assert [body.decode() for _, body in found] == values * 2
    ids = [properties.headers[DEDUPLICATION_HEADER] for properties, _ in found]
    assert ids[:3000] == ids[3000:] == [f"token-{number}" for number in range(3000)]
    assert {properties.delivery_mode for properties, _ in found} == {2}


def test_a_message_has_what_its_row_has(rabbit: RabbitQueueSystem) -> None:
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
def test_a_message_that_goes_nowhere_stops_the_query(
    rabbit: RabbitQueueSystem, exchange: str, key: str, refusal: str
) -> None:
    with pytest.raises(RefusedError, match=refusal):
        QueuePublish(rabbit.settings(), exchange, key)(reader(value=["v"] * 2000), TOKEN)
    with pytest.raises(PreflightError, match="NOT_FOUND"):
        check_exchange(rabbit.settings(), exchange, key)


@pytest.mark.slow
def test_a_full_queue_that_rejects_is_asked_again(rabbit: RabbitQueueSystem) -> None:
    queue = rabbit.declare(x_max_length=1, x_overflow="reject-publish")
    with pytest.raises(ConnectionError, match="the server did not accept a message"):
        QueuePublish(rabbit.settings(), "", queue)(reader(value=["v"] * 5), TOKEN)


def test_a_server_that_is_away_or_refuses_the_login_is_told_apart(rabbit: RabbitQueueSystem) -> None:
    with pytest.raises(ConnectionError):
        QueuePublish(RabbitMQ(host="127.0.0.1", port=1, timeout_s=1.0), "", "q")(reader(value=["v"]), TOKEN)
    with pytest.raises(RefusedError, match="refuses the login of user 'guest'"):
        QueuePublish(rabbit.settings(password="wrong"), "", "q")(reader(value=["v"]), TOKEN)  # noqa: S106


def test_it_promises_no_more_than_it_keeps() -> None:
    sink = RabbitMQQueueSink(RabbitMQ(), queue="orders")
    assert sink.promise is Guarantee.AT_LEAST_ONCE
    assert any("dropped" in one or "drops" in one for one in sink.conditions())


@pytest.mark.parametrize(
    ("columns", "refusal"),
    [
        ({"value": ["v"], "other": ["o"]}, "Column 'other' is not a column of a message"),
        ({"value": [1]}, "Column 'value' is a int64"),
        ({"routing_key": ["k"]}, "Column 'value' is missing"),
    ],
)
def test_columns_that_make_no_message_are_refused(columns: dict[str, list[Any]], refusal: str) -> None:
    with pytest.raises(SchemaError, match=refusal):
        queue_columns(pa.record_batch(columns).schema)

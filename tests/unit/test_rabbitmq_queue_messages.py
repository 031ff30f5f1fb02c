"""Unusual messages in a queue, and what a query on queues passes to Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from pyspark import cloudpickle

from sparkonce.storage.local import LocalFiles
from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, _message
from sparkonce_rabbitmq.queue.data_source import QueueOptions, source_of
from sparkonce_rabbitmq.queue.messages import QueueMessage, id_of, rows_of
from sparkonce_rabbitmq.queue.receiver import ReceiverSettings
from sparkonce_rabbitmq.server import RabbitMQ


def delivered(key: Any = "k", **properties: Any) -> QueueMessage:
    """Returns a message as pika delivers it, with bytes where pika could not decode a string."""
    method = SimpleNamespace(exchange="e", routing_key=key, redelivered=False)
    return _message(method, pika.BasicProperties(**properties), b"body")


@pytest.mark.parametrize("seconds", [2**63 - 1, 2**64 - 1, 9_223_372_036_855])
def test_a_time_that_spark_has_not_is_null(seconds):
    rows = rows_of([delivered(timestamp=seconds), delivered(timestamp=1)])
    assert rows.column("timestamp").to_pylist() == [None, datetime.fromtimestamp(1, UTC)]


def test_texts_that_are_no_utf_8_are_rows_all_the_same():
    odd = "caf\u00e9".encode("latin-1")
    message = delivered(odd, message_id=odd, app_id=odd, headers={odd: 1, "table": {odd: [{odd: odd}]}})
    (row,) = rows_of([message]).to_pylist()
    assert (row["message_id"], row["routing_key"]) == ("caf\\xe9", "caf\\xe9")
    assert row["properties"] == [("app_id", "caf\\xe9")]
    assert [name for name, _ in row["headers"]] == ["caf\\xe9", "table"]


@pytest.mark.parametrize("identify", ["message_id", "digest"])
def test_odd_messages_are_told_apart(identify):
    odd, other = (delivered(message_id=b"id-" + one, headers={one: 1}) for one in (b"\xe8", b"\xe9"))
    assert id_of(odd, identify) != id_of(other, identify)


def test_the_password_goes_to_the_process_that_plans_and_to_no_task(tmp_path):
    server = RabbitMQ(password="s3cret-word")  # noqa: S106 - not a real password
    consumer = ConsumerSettings(server=server, queue="q", prefetch=9, exclusive=True, patience_s=30.0)
    files = LocalFiles(tmp_path)
    options = QueueOptions(files=files, consumer=consumer, receiver=ReceiverSettings(), most=None, partitions=2)
    registered = source_of(options)
    planning = cloudpickle.loads(cloudpickle.dumps(registered))({})
    reader = planning.streamReader(None)
    assert reader._options.consumer == consumer
    for_tasks = cloudpickle.dumps((planning, reader))
    assert b"s3cret-word" not in for_tasks
    _, copy = cloudpickle.loads(for_tasks)
    assert copy._options.segments().files.location == options.segments().files.location

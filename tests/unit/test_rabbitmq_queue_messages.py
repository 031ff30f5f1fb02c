"""Unusual messages in a queue: none of them stops the query or is mistaken for another one."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from sparkonce_rabbitmq.queue.consumer import _message
from sparkonce_rabbitmq.queue.messages import QueueMessage, id_of, rows_of


def delivered(key: Any = "k", **properties: Any) -> QueueMessage:
    """Returns a message as pika delivers it, with bytes where pika could not decode a string."""
    method = SimpleNamespace(exchange="e", routing_key=key, redelivered=False)
    return _message(method, pika.BasicProperties(**properties), b"body")


@pytest.mark.parametrize("seconds", [2**63 - 1, 2**64 - 1, 9_223_372_036_855])
def test_a_time_that_spark_has_not_is_null(seconds: int) -> None:
    rows = rows_of([delivered(timestamp=seconds), delivered(timestamp=1)])
    assert rows.column("timestamp").to_pylist() == [None, datetime.fromtimestamp(1, UTC)]


def test_texts_that_are_no_utf_8_are_rows_all_the_same() -> None:
    odd = "caf\u00e9".encode("latin-1")
    message = delivered(odd, message_id=odd, app_id=odd, headers={odd: 1, "table": {odd: [{odd: odd}]}})
    (row,) = rows_of([message]).to_pylist()
    assert (row["message_id"], row["routing_key"]) == ("caf\\xe9", "caf\\xe9")
    assert row["properties"] == [("app_id", "caf\\xe9")]
    assert [name for name, _ in row["headers"]] == ["caf\\xe9", "table"]


@pytest.mark.parametrize("identify", ["message_id", "digest"])
def test_odd_messages_are_told_apart(identify: Any) -> None:
    odd, other = (delivered(message_id=b"id-" + one, headers={one: 1}) for one in (b"\xe8", b"\xe9"))
    assert id_of(odd, identify) != id_of(other, identify)

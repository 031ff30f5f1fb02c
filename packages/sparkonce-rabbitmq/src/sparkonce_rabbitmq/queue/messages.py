"""A message of a queue, its identity, and the conversion of messages to Arrow rows."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sparkonce.errors import ConfigurationError

ID_BYTES = 16
_MOST_SECONDS = (2**63 - 1) // 1_000_000

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("message_id", pa.string()),
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("redelivered", pa.bool_()),
    ]
)
SPARK_SCHEMA = (
    "value binary, message_id string, exchange string, routing_key string, timestamp timestamp, "
    "properties map<string, string>, headers map<string, string>, redelivered boolean"
)


class QueueMessage(NamedTuple):
    """A message as the server delivers it.

    Attributes:
        value: The body.
        message_id: The property ``message_id``, as set by the publisher.
        exchange: The exchange that the message was published to.
        routing_key: Its routing key.
        timestamp: The property ``timestamp``, in seconds since the epoch. In rows, it is null if Spark cannot represent
            it.
        properties: The other properties that are set, by name.
        headers: The headers, by name.
        redelivered: True if the server reports that the message may have been delivered before.
    """

    value: bytes
    message_id: str | None = None
    exchange: str = ""
    routing_key: str = ""
    timestamp: int | None = None
    properties: Mapping[str, str] = MappingProxyType({})
    headers: Mapping[str, Any] = MappingProxyType({})
    redelivered: bool = False


Identify = Literal["message_id", "digest"] | Callable[[QueueMessage], str | bytes]
"""The ways to identify messages: by their ``message_id``, by a digest of the whole message, or by a function."""


def id_of(message: QueueMessage, identify: Identify) -> bytes:
    """Returns a message's identity, in `ID_BYTES` bytes; raises ConfigurationError if the message has none."""
    if identify == "digest":
        return _digest(message)
    if identify == "message_id":
        found: object = message.message_id
    elif callable(identify):
        found = identify(message)
    if not isinstance(found, str | bytes) or not found:
        raise ConfigurationError(
            f"A message with routing key {message.routing_key!r} has no id: identify={identified_by(identify)} gives "
            f"{found!r}.",
            next_step=(
                "Remove the message from the queue, where it still is, or begin on a new checkpoint with another "
                "identify, such as 'digest'."
            ),
            setting="identify",
        )
    return hashlib.sha256(found.encode() if isinstance(found, str) else found).digest()[:ID_BYTES]


def rows_of(messages: Sequence[QueueMessage]) -> pa.RecordBatch:
    """Converts messages to rows."""
    columns = dict(zip(QueueMessage._fields, zip(*messages, strict=True), strict=True))
    # Publishers may set any 64-bit number as the timestamp, including those that Spark cannot represent.
    columns["timestamp"] = [
        one * 1_000_000 if one is not None and abs(one) <= _MOST_SECONDS else None for one in columns["timestamp"]
    ]
    arrays = [
        _maps(columns[field.name]) if pa.types.is_map(field.type) else pa.array(columns[field.name], field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _maps(each: Sequence[Any]) -> pa.MapArray:
    """Returns mappings as an Arrow column. This is much faster than a conversion row by row."""
    ends = [0, *itertools.accumulate(map(len, each))]
    names = [name for one in each for name in one]
    values = [value if isinstance(value, str) else _text(value) for one in each for value in one.values()]
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )


_OF_SERVER = frozenset({"x-delivery-count", "x-acquired-count"})
"""Headers that a quorum queue uses to count deliveries. They change when a message is delivered again."""


def _digest(message: QueueMessage) -> bytes:
    """Returns a digest of everything that the publisher has set. The length of each part delimits the part."""
    sent = {name: value for name, value in message.headers.items() if name not in _OF_SERVER}
    headers = json.dumps(sent, sort_keys=True, default=repr)
    properties = json.dumps({**message.properties, "message_id": message.message_id, "timestamp": message.timestamp})
    found = hashlib.sha256()
    for text in (message.exchange, message.routing_key, properties, headers):
        data = text.encode()
        found.update(len(data).to_bytes(8, "big") + data)
    found.update(message.value)
    return found.digest()[:ID_BYTES]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return json.dumps(value, sort_keys=True, default=str)


def identified_by(identify: Identify) -> str:
    """Returns a word for how messages are identified."""
    return identify if isinstance(identify, str) else getattr(identify, "__qualname__", type(identify).__name__)

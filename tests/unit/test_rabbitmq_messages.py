"""Messages of a stream, decoded by rstream, and their frames and ids."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from rstream.amqp import amqp_decoder

from sparkonce.errors import PrepareError, SchemaError
from sparkonce.sinks.write_ahead.application import ApplyToken
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.messages import MESSAGE, columns_of, encode, frames
from sparkonce_rabbitmq.sinks.publishing import MOST_ROWS, Ids
from sparkonce_rabbitmq.sinks.queue_publisher import QueuePublish
from sparkonce_rabbitmq.sinks.queue_sink import check_rows

ROOM = 1 << 20
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def rows(**columns: object) -> pa.RecordBatch:
    return pa.record_batch(columns)


def pairs(*of_rows: list[tuple[str | None, str | None]] | None) -> pa.Array:
    return pa.array(of_rows, PAIRS)


def decoded(batch: pa.RecordBatch) -> list[object]:
    return [amqp_decoder(one) for one in encode(batch, "amqp", ROOM).column(MESSAGE).to_pylist()]


def test_bodies_of_all_lengths():
    bodies = [b"", b"a", b"x" * 255, b"y" * 256, b"z" * 70_000]
    assert [message.body for message in decoded(rows(value=pa.array(bodies, pa.binary())))] == bodies

    assert encode(rows(value=["é", ""]), "raw", ROOM).column(MESSAGE).to_pylist() == ["é".encode(), b""]

    with pytest.raises(SchemaError, match="'message_id' is not a column"):
        columns_of(pa.schema([("value", pa.string()), ("message_id", pa.string())]), "raw")


@pytest.mark.parametrize("most_bytes", [1, 40, 100, ROOM])
def test_frames_hold_every_message_once_in_order(most_bytes):
    bodies = [b"x" * (at % 7) for at in range(50)]
    found: list[tuple[int, bytes]] = []
    for frame in frames(pa.array(bodies, pa.binary()).slice(3), 1000, most_bytes):
        assert frame.count == 1 or len(frame.payload) <= most_bytes
        data, first = bytes(frame.payload), len(found)
        while data:
            number, length = struct.unpack_from(">QI", data)
            found.append((number, data[12 : 12 + length]))
            data = data[12 + length :]
        assert (frame.first_id, frame.count) == (found[first][0], len(found) - first)
    assert found == list(enumerate(bodies[3:], start=1000))
    assert list(frames(pa.array([], pa.binary()), 1, most_bytes)) == []


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (rows(value=["a", None]), "The value of row 1 is null"),
        (rows(value=["a", "b", "x" * 100]), "Row 2 makes a message of 108 bytes, and this server takes 50 at most"),
    ],
)
def test_rows_that_are_refused(batch, words):
    with pytest.raises(PrepareError, match=words):
        encode(batch, "amqp", 50)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([("key", pa.string())], "Column 'key' is not a column of a message"),
        ([("message_id", pa.string())], "There is no column 'value'"),
        ([("value", pa.int64())], "Column 'value' is bigint"),
        ([("value", pa.string()), ("message_id", pa.int64())], "Column 'message_id' is bigint"),
        ([("value", pa.string()), ("application_properties", pa.string())], "'application_properties' is string"),
    ],
)
def test_columns_that_are_refused(schema, words):
    with pytest.raises(SchemaError, match=words):
        columns_of(pa.schema(schema), "amqp")


@pytest.mark.parametrize("too_much", [(2**30 - 1, 0, 1), (0, 32, 1), (0, 0, MOST_ROWS + 1), (-1, 0, 1)])
def test_what_has_no_ids(too_much):
    with pytest.raises(OverflowError, match="has no publishing ids"):
        Ids.of(*too_much)


def test_what_rabbitmq_cannot_hand_to_readers_of_amqp_0_9_1_is_refused():
    """RabbitMQ would close a reader's connection at such a message, and the reader would miss all further rows.

    Tested with RabbitMQ 3.10.8 and pika: 256 bytes close the connection and 255 do not. Long values and subjects are
    fine.
    """
    value = ["a", "b", "c"]
    taken = rows(
        value=value,
        content_type=["m" * 255, None, "é" * 127],
        subject=["s" * 300] * 3,
        application_properties=pairs([("k" * 255, "v" * 1000), ("", "v")], [], None),
    )
    assert len(decoded(taken)) == 3

    for name in ("message_id", "reply_to", "correlation_id", "content_type"):
        with pytest.raises(PrepareError, match=f"^{name} of row 2 has 256 bytes, of 255 at most: RabbitMQ would close"):
            encode(rows(value=value, **{name: ["m", None, "é" * 128]}), "amqp", ROOM)

    for wrong in (None, "k" * 256):
        three = rows(value=value, application_properties=pairs(None, [("k", "v"), (wrong, "v")], []))
        with pytest.raises(PrepareError, match=r"^application_properties of row 1 has a key that is null, or longer"):
            encode(three, "amqp", ROOM)
        assert len(decoded(three.slice(2))) == 1


def test_a_queue_takes_any_bytes_as_a_body_and_only_utf8_as_a_name():
    """Rows must not be rejected after they are decided, even if Python cannot represent their strings."""
    odd = pa.array([b"a\xff"]).view(pa.string())
    good = rows(value=odd, message_id=["1"])
    check_rows(good)
    publish = QueuePublish(RabbitMQ(host="nowhere"), "", "q")
    token = ApplyToken(id="t", query="q", batch=0, slots=(0,), rows=1)
    reader = pa.RecordBatchReader.from_batches(good.schema, [good])
    assert [body for _, body, _ in publish.messages(reader, token)] == [b"a\xff"]
    for name in ("routing_key", "message_id", "content_type"):
        with pytest.raises(PrepareError, match=f"Column '{name}' has a string that is not UTF-8"):
            check_rows(rows(value=["v"], **{name: odd}))

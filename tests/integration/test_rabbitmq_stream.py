"""Reading RabbitMQ streams from a real server: each message once, or an error, no matter what the server forgets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pika
import pyarrow as pa
import pytest
from rstream import CompressionType, Producer, RawMessage

from eventually import eventually
from secured import make_keys
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.errors import OutageError, PreflightError, PrepareError, StaleServerError
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.proxy import FaultProxy
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.systems.rabbitmq import RabbitStreamSystem, new_super_stream
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.stream.asking import StreamAsker
from sparkonce_rabbitmq.stream.chunks import with_sections
from sparkonce_rabbitmq.stream.positions import Positions, StreamRange, beginning, ranges_of
from sparkonce_rabbitmq.stream.reading import RangeReader

pytestmark = USES_RABBIT


@pytest.fixture
def rabbit(tmp_path) -> RabbitStreamSystem:
    system = RabbitStreamSystem(server=rabbit_server())
    system.start(tmp_path)
    return system


@pytest.fixture
def asker(rabbit) -> Iterator[StreamAsker]:
    found = StreamAsker(rabbit.settings(), patience_s=30)
    yield found
    found.close()


def end_of(rabbit: RabbitStreamSystem, stream: str) -> int:
    with closing(StreamAsker(rabbit.settings(), patience_s=30)) as asker:
        return asker.ends((stream,))[stream].get("offset", 0)


def numbered(first: int, end: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + b"." * size for number in range(first, end)]


def read(settings: RabbitMQ, part: StreamRange, **more: Any) -> list[pa.RecordBatch]:
    return list(RangeReader(settings, part, **{"patience_s": 30, **more}).batches())


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for one in batches for offset in one.column("offset").to_pylist()]


def values(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [value for one in batches for value in one.column("value").to_pylist()]


def plan(asker: StreamAsker, start: Positions, most: int | None = None) -> Positions:
    return asker.next_position(start, asker.ends(tuple(start)), most)


def all_batches(asker: StreamAsker, start: Positions, most: int) -> Iterator[tuple[Positions, Positions]]:
    while (end := plan(asker, start, most)) != start:
        yield start, end
        start = end


def test_batches_of_any_limit_read_each_message_once_and_again_the_same(rabbit, asker):
    async def publish_packed(*messages: bytes) -> None:
        async with Producer(HOST, rabbit.rabbit.stream_port, username="guest", password="guest") as producer:  # noqa: S106
            packed = [RawMessage(one) for one in messages]
            await producer.send_sub_entry(stream, packed, compression_type=CompressionType.Gzip)

    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 700), at_once=64)
    asyncio.run(publish_packed(*numbered(700, 750)))
    eventually(lambda: end_of(rabbit, stream) == 750, "the batch is there")
    rabbit.client.publish(stream, numbered(750, 800), publisher="named")
    for most in (1000, 170, 37):
        found: list[bytes] = []
        begun: Positions = {stream: asker.begin(stream, "earliest")}
        for start, end in all_batches(asker, begun, most):
            (part,) = ranges_of(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
            first, again = read(rabbit.settings(), part), read(rabbit.settings(), part)
            assert first == again
            assert offsets(first) == list(range(part.start, part.end))
            assert len(offsets(first)) <= most
            found += values(first)
        assert found == numbered(0, 800)


def test_offsets_that_the_server_took_for_its_notes_are_no_gap(rabbit, asker):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 10))
    position = {stream: asker.ends((stream,))[stream] | {"first": 0}}
    for _ in range(3):
        asker.store(position, "job")
        rabbit.client.publish(stream, [b"more"])
    end = plan(asker, {stream: beginning(0)})
    assert end[stream]["offset"] > 13, "the notes took offsets"
    (part,) = ranges_of({stream: beginning(0)}, end)
    batches = read(rabbit.settings(), part)
    assert values(batches) == [*numbered(0, 10), b"more", b"more", b"more"]
    assert len(offsets(batches)) < part.end
    for start, to in all_batches(asker, {stream: beginning(0)}, 1):
        (one,) = ranges_of(start, to)
        assert len(values(read(rabbit.settings(), one))) == 1


def test_a_stored_offset_is_that_of_the_last_message(rabbit, asker):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 10))
    asker.store(plan(asker, {stream: beginning(0)}), "job")
    eventually(lambda: asker._connection(stream).query_offset(stream, "job") == 9, "the offset is stored")


def test_messages_that_retention_has_deleted_stop_the_reader_by_name(rabbit, asker):
    def first_after_more() -> int:
        rabbit.client.publish(stream, numbered(0, 20, size=500), at_once=10)
        return asker.begin(stream, "earliest")["offset"]

    # Arguments of a stream that soon deletes its first messages.
    tiny = {"max-length-bytes": 20_000, "stream-max-segment-size-bytes": 5_000}
    stream = rabbit.client.create(**tiny)
    rabbit.client.publish(stream, numbered(0, 40), at_once=10)
    start = plan(asker, {stream: asker.begin(stream, "earliest")}, 25)
    rabbit.client.publish(stream, numbered(40, 80), at_once=10)
    end = plan(asker, start)
    eventually(lambda: first_after_more() > 60, "retention deletes messages")
    there = asker.begin(stream, "earliest")["offset"]
    (part,) = ranges_of(start, {stream: plan(asker, start)[stream]})
    with pytest.raises(PrepareError) as refused:
        read(rabbit.settings(), part)
    assert (refused.value.details["wanted"], refused.value.details["there"]) == (25, there)
    assert refused.value.message.startswith(f"The stream '{stream}' has no messages 25 to {there - 1}")
    assert f"accept_lost={{'{stream}': {there}}}" in refused.value.next_step
    with pytest.raises(PrepareError, match="has no messages 25 to"):
        read(rabbit.settings(), part, accepted=there - 1)
    accepted = read(rabbit.settings(), part, accepted=there)
    assert offsets(accepted)[0] == there
    assert asker.begin(stream, "earliest") == beginning(there)
    with pytest.raises(PrepareError, match="has no messages 25 to"):  # an end that is gone, too
        read(rabbit.settings(), ranges_of(start, end)[0])


def test_a_stream_that_was_made_again_is_refused(rabbit, asker):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 30), at_once=10)
    begun: Positions = {stream: beginning(0)}
    start = plan(asker, begun, 15)
    end = plan(asker, start)
    asker.patience_s = 0.1
    rabbit.client.delete(stream)
    rabbit.client.create(stream)
    rabbit.client.publish(stream, numbered(0, 10))
    with pytest.raises(StaleServerError, match="up to offset 15: it ends at offset 10"):
        plan(asker, start)
    with pytest.raises(StaleServerError, match="up to offset 30: it ends at offset 10"):
        asker.compare(end)
    rabbit.client.publish(stream, numbered(10, 100), at_once=7)
    asker.compare(end)
    for part in (*ranges_of(start, end), *ranges_of(begun, start)):
        with pytest.raises(StaleServerError, match="has a different timestamp"):
            read(rabbit.settings(), part)
    with pytest.raises(StaleServerError, match="has a different timestamp"):
        read(rabbit.settings(), ranges_of(start, plan(asker, start))[0])


def test_a_query_begins_where_it_is_told(rabbit, asker):
    stream = rabbit.client.create()
    empty = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 30))
    written_ms = asker.ends((stream,))[stream]["at"]
    eventually(lambda: time.time() * 1000 > written_ms + 1, "the clock goes on")
    between = datetime.now(timezone.utc)
    rabbit.client.publish(stream, numbered(30, 50))
    late = between + timedelta(days=1)
    starts: Mapping[str | int | datetime, int] = {
        "earliest": 0,
        "latest": 50,
        17: 17,
        50: 50,
        between: 30,
        late: 50,
        between - timedelta(days=1): 0,
    }
    assert {given: asker.begin(stream, given)["offset"] for given in starts} == starts
    assert [asker.begin(empty, given)["offset"] for given in ("earliest", "latest", between, 0)] == [0, 0, 0, 0]
    with pytest.raises(PreflightError, match="has messages 0 to 49"):
        asker.begin(stream, 51)


def test_a_super_stream_is_its_streams(rabbit, asker):
    name, streams = new_super_stream(rabbit.rabbit, 3)
    assert asker.partitions(name) == tuple(streams)
    with pytest.raises(PreflightError, match="'no-such', which this query reads, does not exist"):
        asker.partitions("no-such")


def test_what_is_published_by_amqp_is_read_by_its_sections(rabbit, asker):
    stream = rabbit.client.create()
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.rabbit.url))
    about = pika.BasicProperties(content_type="text/plain", message_id="id-7", headers={"kind": "order", "count": 3})
    connection.channel().basic_publish("", stream, b"the body", about)
    connection.close()
    eventually(lambda: end_of(rabbit, stream) == 1, "the message is there")
    (part,) = ranges_of({stream: beginning(0)}, plan(asker, {stream: beginning(0)}))
    (rows,) = map(with_sections, read(rabbit.settings(), part))
    assert rows.column("value").to_pylist() == [b"the body"]
    assert {"content_type": "text/plain", "message_id": "id-7"}.items() <= dict(rows["properties"][0].as_py()).items()
    assert {"kind": "order", "count": "3"}.items() <= dict(rows["application_properties"][0].as_py()).items()


def test_a_connection_that_is_cut_goes_on_behind_what_was_read(rabbit, asker, monkeypatch):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 60_000, size=100))
    (part,) = ranges_of({stream: beginning(0)}, plan(asker, {stream: beginning(0)}))
    with FaultProxy((HOST, rabbit.rabbit.stream_port)) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        batches = RangeReader(rabbit.settings(stream_port=port), part, patience_s=30).batches()
        found = [next(batches)]
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000, sleep=time.sleep)
        monkeypatch.setattr("sparkonce_rabbitmq.stream.reading.time", later)  # Spark took its time with these rows
        proxy.cut()
        found += batches
    assert len(found) > 1
    assert offsets(found) == list(range(60_000))


def test_a_server_that_is_away_is_an_outage(rabbit, asker):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 10))
    (part,) = ranges_of({stream: beginning(0)}, plan(asker, {stream: beginning(0)}))
    with FaultProxy((HOST, rabbit.rabbit.stream_port)) as proxy:
        port = int(proxy.address.rpartition(":")[2])
    with pytest.raises(OutageError, match=f"The stream '{stream}' could not be read for 0 s: ConnectionRefusedError"):
        read(rabbit.settings(stream_port=port), part, patience_s=0.1)
    away = StreamAsker(rabbit.settings(stream_port=port), patience_s=0.1)
    with pytest.raises(OutageError, match="could not be read"):
        away.ends((stream,))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"password": "wrong"}, "refused this user: AuthenticationFailure"),
        ({"virtual_host": "nowhere"}, "refused this user: VirtualHostAccessFailure"),
    ],
)
def test_a_wrong_login_is_refused_by_name(rabbit, changed, why):
    with pytest.raises(PreflightError, match=why):
        StreamAsker(rabbit.settings(**changed), patience_s=30).check("any")


def test_a_stream_that_is_missing_is_refused_by_name(asker):
    for ask in (asker.check, lambda stream: asker.begin(stream, "latest"), lambda stream: asker.ends((stream,))):
        with pytest.raises(PreflightError, match="The stream 'no-such', which this query reads, does not exist"):
            ask("no-such")


@pytest.mark.slow
def test_a_server_with_tls_rights_and_a_restart(tmp_path):
    keys = make_keys(tmp_path)
    rights = [("reader", "shop", "", "", "^may-.*"), ("reader", "/", "", "", "^may-.*")]
    with RabbitServer(
        tmp_path / "data",
        users={"reader": "secret"},
        permissions=rights,
        virtual_hosts=["shop"],
        tls=(keys / "ca.pem", keys / "broker.pem", keys / "broker.key"),
    ) as server:
        rabbit = RabbitStreamSystem(server=server)
        rabbit.start(tmp_path)
        rabbit.client.create("may-orders")
        rabbit.client.create("others")
        rabbit.client.publish("may-orders", numbered(0, 100))
        secured = RabbitMQ(
            host=HOST,
            stream_port=server.stream_tls_port,
            user="reader",
            password="secret",  # noqa: S106
            tls=True,
            ca_file=str(keys / "ca.pem"),
        )
        asker = StreamAsker(secured, patience_s=60)
        with pytest.raises(PreflightError, match="'others' may not be read by this user"):
            asker.check("others")
        with pytest.raises(PreflightError, match="shows a certificate that is not trusted: self-signed certificate"):
            StreamAsker(replace(secured, ca_file=None), patience_s=30).check("may-orders")
        begun: Positions = {"may-orders": asker.begin("may-orders", "earliest")}
        end = plan(asker, begun)
        assert server.stop()
        server.start()
        assert plan(asker, begun) == end, "the server's answer after it was restarted"
        assert values(read(secured, ranges_of(begun, end)[0])) == numbered(0, 100)
        asker.close()

"""User-provided servers: what the verifier may do to them, and that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient

from integration.verify_query import Query, batches_in, started, until, with_batches
from redis_servers import witness
from s3_bucket import Bucket
from shared_servers import redis_server, s3_server
from sparkonce.errors import PreflightError
from sparkonce_lab.faults import OF_REQUESTS, Fault
from sparkonce_lab.systems.injections import Injectable
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.names import parse
from sparkonce_lab.systems.s3 import S3System

OF_CONNECTIONS = {
    Fault.CUT,
    Fault.SLOWED,
    Fault.BLACK_HOLE,
    Fault.REQUESTS_SWALLOWED,
    Fault.REPLIES_SWALLOWED,
    *OF_REQUESTS,
}


@dataclass(frozen=True)
class Users:
    """A server that the user has: its address, the possible faults, and its content."""

    make: Callable[[], Injectable]
    faults: set[Fault]
    names: Callable[[], list[str]]


@pytest.fixture
def kafka(broker) -> Users:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return Users(lambda: parse(f"kafka={broker.bootstrap}"), set(), lambda: list(admin.list_topics().topics))


@pytest.fixture
def postgres(postgres) -> Users:
    text, names = f"postgres={postgres.server.conninfo()}", "SELECT nspname::text FROM pg_namespace"
    return Users(lambda: parse(text), OF_CONNECTIONS, lambda: postgres.column(names))


@pytest.fixture
def mysql(mariadb) -> Users:
    text = f"mysql=host=127.0.0.1 port={mariadb.server.port} user=root ssl_disabled=true"
    return Users(lambda: parse(text), OF_CONNECTIONS, lambda: [name for (name,) in mariadb.ask("SHOW DATABASES")])


@pytest.fixture
def redis() -> Iterator[Users]:
    with witness(redis_server()) as client:
        client.flushall()
        text = f"redis={redis_server().url}"
        yield Users(lambda: parse(text), OF_CONNECTIONS, lambda: [key.decode() for key in client.scan_iter()])


@pytest.fixture
def s3() -> Users:
    bucket = Bucket(s3_server())

    def names() -> list[str]:
        return [*bucket.objects(""), *(one["Key"] for one in bucket.uploads())]

    options = bucket.server.settings()
    return Users(lambda: S3System(f"s3://{bucket.name}/some", store_options=options), OF_CONNECTIONS, names)


@pytest.fixture
def files(tmp_path) -> Users:
    folder = tmp_path / "users"
    folder.mkdir()
    return Users(lambda: parse(f"files={folder}"), set(), lambda: [path.name for path in folder.iterdir()])


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "postgres", "mysql", "redis", "s3", "files"])
def users(request) -> Users:
    found: Users = request.getfixturevalue(request.param)
    return found


LEFT = {"__consumer_offsets", "__transaction_state", "sparkonce:id"}
"""What a server keeps for itself, and the key that identifies a Redis server."""


def test_it_is_struck_where_it_can_be_and_nothing_is_left_behind(users, tmp_path):
    before = set(users.names())
    with started(users.make(), tmp_path / "folder") as system, closing(Query(system)) as query:
        assert set(system.faults()) == users.faults
        query.write(0)
        query.prepare(1)
        query.prepare(2)
        assert set(users.names()) != before
        if Fault.BLACK_HOLE in users.faults:
            system.inject(Fault.BLACK_HOLE)
            system.lift(Fault.BLACK_HOLE)
        query.commit(1)
        until(lambda: system.newest() == 1, "the batch is seen")
        assert batches_in(system) == with_batches([], 0, 1)
        assert system.left_open()
    until(lambda: set(users.names()) - LEFT == before - LEFT, "nothing is left")
    system.stop()


def test_what_is_to_be_kept_is_kept(users, tmp_path):
    before = set(users.names())
    with started(users.make(), tmp_path / "folder") as system, closing(Query(system)) as query:
        system.keep_place = True
        query.write(0)
    assert set(users.names()) - LEFT > before - LEFT


@pytest.mark.parametrize(
    "text",
    [
        "postgres=host=127.0.0.1 port=1 user=nobody",
        "mysql=host=127.0.0.1 port=1 user=nobody",
        "redis=redis://127.0.0.1:1",
        "files=/proc/nowhere",
    ],
)
def test_a_server_that_does_not_answer_is_named(text, tmp_path):
    system = parse(text)
    with pytest.raises(PreflightError), started(system, tmp_path / "folder"):
        pass


def test_connecting_securely_is_for_every_client(tmp_path):
    system = KafkaSystem("127.0.0.1:1", settings={"security.protocol": "SASL_SSL"})
    assert system.settings == {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL"}
    settings = system.sink_settings()["settings"]
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["bootstrap.servers"] == "127.0.0.1:1"

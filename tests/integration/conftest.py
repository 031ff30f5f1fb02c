from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from s3_between import Between
    from s3_bucket import Bucket
    from sparkonce_lab.rig.servers.redis import RedisCluster, RedisServer


@pytest.fixture
def bucket() -> Bucket:
    from s3_bucket import Bucket

    return Bucket()


@pytest.fixture
def between() -> Iterator[Between]:
    """A proxy in front of the S3 server that all tests of the process share."""
    from s3_between import Between
    from shared_servers import s3_server

    with Between(s3_server().port).running() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RedisServer]:
    """A Redis server whose settings the module may change."""
    from sparkonce_lab.rig.servers.redis import RedisServer

    with RedisServer(tmp_path_factory.mktemp("redis") / "data") as started:
        yield started


@pytest.fixture
def client(server) -> Iterator[Any]:
    """A client of `server`, which is empty."""
    from redis_servers import witness

    with witness(server) as connection:
        connection.flushall()
        yield connection


@pytest.fixture(scope="module")
def cluster() -> RedisCluster:
    """A cluster takes seconds to form, so all modules share one. It is empty when a module starts."""
    from redis_servers import witness
    from shared_servers import redis_cluster

    started = redis_cluster()
    for node in started.nodes:
        with witness(node) as connection:
            connection.flushall()
    return started

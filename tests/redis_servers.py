"""Redis for tests: started once, and asked through connections of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sparkonce.testing.servers.process import find_program
from sparkonce.testing.servers.redis import RedisCluster, RedisServer

needs_redis = pytest.mark.skipif(find_program("redis-server") is None, reason="redis-server is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def witness(server: RedisServer) -> Any:
    """Another connection."""
    return redis.Redis(port=server.port, protocol=2)


class Everywhere:
    """All nodes of a cluster, or the only server, asked one by one."""

    def __init__(self, *servers: RedisServer) -> None:
        self.clients = [witness(one) for one in servers]

    def data(self) -> dict[bytes, Any]:
        """Every key that is not the sink's own, with its text."""
        return {key: client.get(key) for client in self.clients for key in client.scan_iter(count=1000) if not own(key)}

    def own_keys(self) -> set[bytes]:
        """The sink's own."""
        return {key for client in self.clients for key in client.scan_iter(count=1000) if own(key)}

    def clear(self) -> None:
        for client in self.clients:
            client.flushall()

    def close(self) -> None:
        for client in self.clients:
            client.close()


def own(key: bytes) -> bool:
    return key.startswith(b"sparkonce:")

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from redis_servers import Everywhere, cluster, needs_redis, server
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.rig.servers.redis import RedisCluster, RedisServer
from sparkonce.sink import Facts
from sparkonce.sinks.redis import names
from sparkonce.sinks.redis.hash_slots import unpack_slots
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.testing.conformance import SinkConformance

__all__ = ["cluster", "server"]

pytestmark = needs_redis


class RedisSuite(SinkConformance):
    servers: list[RedisServer]
    url: str
    clustered = False
    shape: dict[str, Any] = {}  # noqa: RUF012 - each class has one of its own

    @pytest.fixture(autouse=True)
    def _witness(self) -> Iterator[None]:
        raise NotImplementedError

    def watch(self, *servers: RedisServer) -> Iterator[None]:
        self.settle(*servers)
        yield
        self.everywhere.close()

    def settle(self, *servers: RedisServer) -> None:
        """Gives the check empty servers."""
        self.servers = list(servers)
        self.url = servers[0].url
        self.everywhere = Everywhere(*servers)
        self.everywhere.clear()

    def make(self, **more: Any) -> RedisSink:
        return RedisSink(self.url, cluster=self.clustered, key_template="row:{number}", **{**self.shape, **more})

    def make_sink(self) -> RedisSink:
        return self.make()

    def make_second_sink(self) -> RedisSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> RedisSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = list(range(start, start + count))
        values = [f"v{number}" for number in numbers]
        return pa.record_batch({"number": numbers, "value": values, "amount": [1] * count})

    def visible(self) -> Sequence[int]:
        found = self.everywhere.data()
        return [int(key.removeprefix(b"row:")) for key in found for _ in range(self.times(found[key]))]

    def times(self, value: bytes) -> int:
        return 1

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def restart_server(self) -> bool:
        self.servers[0].restart()
        return True

    def expire(self, handle: Handle) -> bool:
        name = TransactionName.parse(str(handle[names.TRANSACTION]))
        assert name is not None
        (client,) = self.everywhere.clients
        assert client.pexpire(names.single_key(name).name, 1) == 1
        while client.exists(names.single_key(name).name):
            pass
        return True


class Incrementing(RedisSuite):
    """Tells a row that is there twice from one that is there once."""

    shape = {"structure": "increment"}  # noqa: RUF012

    def times(self, value: bytes) -> int:
        return int(value)


@pytest.mark.drawn(5, "strings of Redis")
class TestStrings(RedisSuite):
    @pytest.fixture(autouse=True)
    def _witness(self, server: RedisServer) -> Iterator[None]:
        yield from self.watch(server)


class TestIncrements(Incrementing):
    @pytest.fixture(autouse=True)
    def _witness(self, server: RedisServer) -> Iterator[None]:
        yield from self.watch(server)


class TestIncrementsInACluster(Incrementing):
    clustered = True

    @pytest.fixture(autouse=True)
    def _witness(self, cluster: RedisCluster) -> Iterator[None]:
        self.cluster = cluster
        yield from self.watch(*cluster.nodes)

    def restart_server(self) -> bool:
        self.cluster.restart()
        return True

    def expire(self, handle: Handle) -> bool:
        name = TransactionName.parse(str(handle[names.TRANSACTION]))
        assert name is not None
        ledger = names.ledger_of(name).name
        (home,) = (client for client in self.everywhere.clients if ledger.encode() in client.scan_iter())
        stands = home.hget(ledger, str(name)).decode()
        entry = names.LedgerEntry.parse(stands)
        # Its rows have gone by themselves, a week and more ago.
        for key in self.everywhere.own_keys():
            if key.endswith(str(name).encode()):
                for client in self.everywhere.clients:
                    if key in set(client.scan_iter()):
                        client.delete(key)
        week_ms = 7 * 24 * 60 * 60 * 1000
        home.hset(ledger, str(name), stands.replace(str(entry.prepared_ms), str(entry.prepared_ms - week_ms - 1)))
        return bool(unpack_slots(entry.slots))

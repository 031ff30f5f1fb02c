"""Redis, alone and as a cluster: increments, which show a row that was applied twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from crashes.target import ServerOnSmallDisk, Target
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.proxy import FaultProxy
from sparkonce.rig.servers.process import HOST, find_program
from sparkonce.rig.servers.redis import RedisCluster, RedisServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.testing.systems.redis import RedisWitness

_MEGABYTES = 32


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(start, start + count)), "amount": [1] * count})


class _Redis(Target):
    """Asks each server on its own port."""

    preload = ("sparkonce.sinks.redis.writer", "sparkonce.sinks.redis.committer", "sparkonce.sinks.redis.preflight")
    shows_within_s = 0.5
    rows = staticmethod(rows)
    requests = RedisWitness.requests["staged"]
    witness: RedisWitness

    def missing(self) -> str:
        return "" if find_program("redis-server") else "redis-server is not installed"

    def watch(self, *servers: RedisServer) -> None:
        self.witness = RedisWitness(*(server.url for server in servers))

    def stop(self) -> None:
        self.witness.close()
        super().stop()

    def new_place(self) -> None:
        self.witness.delete("*")

    def visible(self) -> Sequence[int]:
        found = self.witness.values("row:*")
        return [int(key[4:]) for key, times in found for _ in range(int(times or 0))]

    def lingering(self) -> Sequence[str]:
        return self.witness.left_open()

    def state(self) -> object:
        """With the ledger, which has the state of each transaction."""
        return super().state(), self.witness.ledgers()


class RedisTarget(_Redis, ServerOnSmallDisk):
    name = "redis"
    can_fill_memory = True
    server: RedisServer

    def make_server(self, folder: Path) -> RedisServer:
        self.disk = SmallDisk(folder, _MEGABYTES)
        return RedisServer(folder)

    def start(self, folder: Path) -> None:
        super().start(folder)
        self.watch(self.server)

    def make_sink(self) -> TwoPhaseCommitSink:
        url = f"redis://{HOST}:{self.proxy.port}/0"
        return RedisSink(url, structure="increment", key_template="row:{number}", timeout_s=2.0)

    def fill_memory(self) -> None:
        self.witness.clients[0].config_set("maxmemory", 1)

    def free_memory(self) -> None:
        self.witness.clients[0].config_set("maxmemory", 0)


class RedisClusterTarget(_Redis):
    """Three masters, each of which tells clients the proxy's port for its own."""

    name = "redis-cluster"
    choice = "few"
    can_restart = can_pause = True
    proxy: FaultProxy

    def start(self, folder: Path) -> None:
        self._cluster = RedisCluster(folder)
        first, *others = self._cluster.nodes
        self.proxy = FaultProxy((HOST, first.port), self.requests)
        ports = [self.proxy.port, *(self.proxy.add((HOST, node.port)) for node in others)]
        for node, port in zip(self._cluster.nodes, ports, strict=True):
            node.settings |= {"cluster-announce-port": str(port), "cluster-announce-bus-port": str(node.port + 10_000)}
        self.proxy.start()
        self._cluster.start()
        self.watch(*self._cluster.nodes)

    def stop(self) -> None:
        super().stop()
        self.proxy.close()
        self._cluster.stop()

    def make_sink(self) -> TwoPhaseCommitSink:
        url = f"redis://{HOST}:{self.proxy.port}/0"
        return RedisSink(url, cluster=True, structure="increment", key_template="row:{number}", timeout_s=2.0)

    def kill(self) -> None:
        for node in self._cluster.nodes:
            node.kill()

    def revive(self) -> None:
        for node in self._cluster.nodes:
            node.start()
        self._cluster.await_formed()

    def pause(self) -> None:
        for node in self._cluster.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self._cluster.nodes:
            node.resume()

"""Redis, alone and as a cluster: increments, which show a row that was applied twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import redis

from crashes.target import ServerOnSmallDisk, Target
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.proxy import FaultProxy, Request
from sparkonce.rig.servers.process import HOST, find_program
from sparkonce.rig.servers.redis import RedisCluster, RedisServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.sink import RedisSink

_MEGABYTES = 32


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(start, start + count)), "amount": [1] * count})


def any_of(*several: scripts.Script) -> Request:
    return re.compile(b"|".join(script.sha.encode() for script in several))


class _Redis(Target):
    """Asks each server on its own port."""

    preload = ("sparkonce.sinks.redis.writer", "sparkonce.sinks.redis.committer", "sparkonce.sinks.redis.preflight")
    shows_within_s = 0.5
    rows = staticmethod(rows)
    requests = {  # noqa: RUF012
        "prepare": any_of(scripts.PREPARE),
        "commit": any_of(scripts.DECIDE, scripts.APPLY),
        "abort": any_of(scripts.ABORT),
    }
    _witnesses: Sequence[redis.Redis] = ()

    def missing(self) -> str:
        return "" if find_program("redis-server") else "redis-server is not installed"

    def watch(self, *servers: RedisServer) -> None:
        self._witnesses = [redis.Redis(port=server.port, protocol=2, socket_timeout=10) for server in servers]

    def stop(self) -> None:
        for witness in self._witnesses:
            witness.close()
        super().stop()

    def new_place(self) -> None:
        for witness in self._witnesses:
            witness.flushdb()

    def visible(self) -> Sequence[int]:
        return [number for witness in self._witnesses for number in _numbers(witness)]

    def lingering(self) -> Sequence[str]:
        """Staged rows. The ledger is a hash, and stays."""
        return [
            key.decode() for one in self._witnesses for key in one.scan_iter("sparkonce:*", count=10_000, _type="list")
        ]

    def state(self) -> object:
        """With the ledger, which has the state of each transaction."""
        keys = [(one, key) for one in self._witnesses for key in one.scan_iter("sparkonce:*", _type="hash")]
        return super().state(), sorted((key, sorted(one.hgetall(key).items())) for one, key in keys)


def _numbers(witness: redis.Redis) -> list[int]:
    keys = list(witness.scan_iter("row:*", count=10_000))
    several = witness.pipeline(transaction=False)  # a cluster refuses MGET for keys of more than one hash slot
    for key in keys:
        several.get(key)
    counts = several.execute()
    return [int(key[4:]) for key, times in zip(keys, counts, strict=True) for _ in range(int(times or 0))]


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
        self._witnesses[0].config_set("maxmemory", 1)

    def free_memory(self) -> None:
        self._witnesses[0].config_set("maxmemory", 0)


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

"""Redis: increments, which show a row that was applied twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import redis

from crashes.target import ServerTarget
from sparkonce.sinks.base import TwoPhaseCommitSink
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.testing.proxy import Request
from sparkonce.testing.servers.process import HOST, find_program
from sparkonce.testing.servers.redis import RedisServer


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(start, start + count)), "amount": [1] * count})


def any_of(*several: scripts.Script) -> Request:
    return re.compile(b"|".join(script.sha.encode() for script in several))


class RedisTarget(ServerTarget):
    name = "redis"
    preload = ("sparkonce.sinks.redis.writer", "sparkonce.sinks.redis.committer", "sparkonce.sinks.redis.preflight")
    shows_within_s = 0.5
    rows = staticmethod(rows)
    server: RedisServer
    requests = {  # noqa: RUF012
        "prepare": any_of(scripts.PREPARE),
        "commit": any_of(scripts.DECIDE, scripts.APPLY),
        "abort": any_of(scripts.ABORT),
    }

    def missing(self) -> str:
        return "" if find_program("redis-server") else "redis-server is not installed"

    def make_server(self, folder: Path) -> RedisServer:
        return RedisServer(folder)

    def start(self, folder: Path) -> None:
        super().start(folder)
        self._client = redis.Redis(port=self.server.port, protocol=2, socket_timeout=10)

    def stop(self) -> None:
        self._client.close()
        super().stop()

    def new_place(self) -> None:
        self._client.flushdb()

    def make_sink(self) -> TwoPhaseCommitSink:
        url = f"redis://{HOST}:{self.proxy.port}/0"
        return RedisSink(url, structure="increment", key_template="row:{number}", timeout_s=2.0)

    def visible(self) -> Sequence[int]:
        keys = list(self._client.scan_iter("row:*", count=10_000))
        counts = self._client.mget(keys) if keys else []
        return [int(key[4:]) for key, times in zip(keys, counts, strict=True) for _ in range(int(times or 0))]

    def lingering(self) -> Sequence[str]:
        """Staged rows. The ledger is a hash, and stays."""
        return [key.decode() for key in self._client.scan_iter("sparkonce:*", count=10_000, _type="list")]

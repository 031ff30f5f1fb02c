"""Redis for tests: separate connections, the keys of a whole cluster, and a query that writes to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import redis

from one_run import open_writer, prepare
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sink import Owner, SinkCommitter, SinkWriter
from sparkonce.sinks.redis import names
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.systems.redis import RedisSystem


def witness(server: RedisServer) -> Any:
    return redis.Redis(port=server.port, protocol=2)


class Everywhere(RedisSystem):
    """Reads all nodes of a cluster, or the only server, one by one."""

    def __init__(self, *servers: RedisServer) -> None:
        super().__init__(alone=True, answers_within_s=10.0)
        self.watch(*servers)

    def data(self) -> dict[bytes, Any]:
        """Returns every key that does not belong to the sink's own state, with its value."""
        return dict(self.values())

    def clear(self) -> None:
        for client in self.clients:
            client.flushall()


def own(key: bytes) -> bool:
    return key.startswith(b"sparkonce:")


class Query:
    def __init__(self, sink: RedisSink) -> None:
        self.sink = sink
        self.query = secrets.token_hex(6)
        self.facts = sink.preflight(self.query, None)
        self.owner = Owner(query=self.query, token=Token(7, secrets.token_hex(4)), facts=self.facts)
        self.committer: SinkCommitter = sink.committer()
        self.open: Callable[..., SinkWriter] = partial(open_writer, sink, run=self.owner)
        self.prepare: Callable[..., Handle] = partial(prepare, sink, run=self.owner)

    def commit(self, *handles: Handle) -> list[Outcome]:
        return [answer.outcome for answer in self.committer.commit(handles)]

    def write(self, rows: Mapping[str, Any], batch: int = 0) -> None:
        assert self.commit(self.prepare(pa.record_batch(rows), batch=batch)) == [Outcome.COMMITTED]

    @property
    def ledger(self) -> str:
        return names.ledger_key(self.facts["prefix"], self.query).name

    def close(self) -> None:
        self.committer.close()


def staged(handle: Handle) -> str:
    """The list of a transaction on a single server."""
    name = TransactionName.parse(str(handle[names.TRANSACTION]))
    assert name is not None
    return names.single_key(name).name

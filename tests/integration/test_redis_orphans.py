"""``sparkonce transactions list --system redis``: every unfinished transaction is listed, and nothing is changed."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

from redis_servers import Query, client, cluster, server
from shared_servers import needs_redis
from sparkonce.cli.main import app
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisCluster, RedisServer

__all__ = ["client", "cluster", "server"]

pytestmark = needs_redis

ROWS = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]})


def listed(url: str, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        CliRunner()
        .invoke(app, ["transactions", "list", "--system", "redis", "--settings", url, "--json", *more])
        .output
    )
    return found


def test_what_is_not_finished_is_listed_and_not_changed(server: RedisServer, client: Any) -> None:
    query = Query(RedisSink(server.url, prefix="shop"))
    assert listed(server.url) == []
    query.write({"key": ["z"], "value": ["0"]})
    handle = query.prepare(ROWS, batch=1, slot=3)
    query.open(ROWS, batch=2)
    before = {key: client.dump(key) for key in client.keys("*")}
    open_, prepared = sorted(listed(server.url), key=lambda one: str(one["kind"]))
    assert (prepared["kind"], prepared["name"], prepared["batch"], prepared["slot"]) == (
        "prepared",
        handle["transaction"],
        1,
        3,
    )
    assert (open_["kind"], open_["query"], open_["batch"]) == ("open", query.query, 2)
    assert 0 <= prepared["age_s"] < 60
    assert listed(server.url, "--older-than-s", "3600") == []
    assert {key: client.dump(key) for key in client.keys("*")} == before
    query.close()


def test_all_nodes_of_a_cluster_are_searched(cluster: RedisCluster) -> None:
    queries = [Query(RedisSink(cluster.nodes[0].url, cluster=True)) for _ in range(6)]
    handles = [query.prepare(ROWS) for query in queries]
    found = {one["name"] for one in listed(cluster.nodes[1].url)}
    assert {str(handle["transaction"]) for handle in handles} <= found
    for query, handle in zip(queries, handles, strict=True):
        query.commit(handle)
        query.close()

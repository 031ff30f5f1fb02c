from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from itertools import filterfalse
from typing import Any

import pyarrow as pa
import pytest

from redis_servers import Query, own, staged, witness
from shared_servers import needs_redis
from small_job import SmallJob
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.redis import preflight as preflight_module
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.nodes import Nodes, Request
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.process import HOST, Server, find_program, free_port
from sparkonce_lab.rig.servers.redis import RedisServer

pytestmark = needs_redis

QUERY = "0123456789ab"


def preflight(sink: RedisSink, recorded: dict[str, str] | None = None) -> dict[str, str]:
    return dict(sink.preflight(QUERY, recorded))


@pytest.fixture
def settings(client) -> Iterator[Any]:
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, client.config_get(name)[name])
        client.config_set(name, value)

    yield change
    for name, value in before.items():
        client.config_set(name, value)


def test_what_is_remembered(server, client):
    facts = preflight(RedisSink(server.url, prefix="p"))
    server_id = client.get("sparkonce:id").decode()
    assert facts == {"prefix": "p", "server": server_id, "mode": "single", "ledger_ttl_s": "2592000"}
    assert preflight(RedisSink(server.url, prefix="p")) == facts
    assert client.keys() == [b"sparkonce:id"]


def test_a_server_that_is_too_old_is_refused(server, client, monkeypatch):
    version = client.info("server")["redis_version"]
    newer = int(version.split(".")[0]) + 1
    monkeypatch.setattr(preflight_module, "OLDEST", (newer, 0))
    with pytest.raises(PreflightError, match=rf"runs Redis {re.escape(version)}\..* Use Redis {newer}\.0 or newer"):
        preflight(RedisSink(server.url))
    assert client.keys() == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(server, settings, policy):
    settings("maxmemory-policy", policy)
    with pytest.raises(PreflightError, match=f"maxmemory-policy={policy}"):
        preflight(RedisSink(server.url))
    preflight(RedisSink(server.url, guarantee=Guarantee.AT_LEAST_ONCE))


def test_a_server_that_is_told_to_evict_while_the_query_runs_gets_no_more_batches(server, client, settings, tmp_path):
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"key": [f"{batch}.{slot}"], "value": ["x"]})

    def evict(phase: Phase, batch: int) -> None:
        if (phase, batch) == (Phase.WRITING, 1):
            settings("maxmemory-policy", "allkeys-lru")

    job = SmallJob(tmp_path, lambda: [RedisSink(server.url, prefix="p")], rows, slots=1)
    with pytest.raises(PrepareError, match="has maxmemory-policy=allkeys-lru"):
        job.run(0, 1, listener=evict)
    assert set(filterfalse(own, client.scan_iter())) == {b"0.0"}
    settings("maxmemory-policy", "noeviction")
    job.run(1)
    assert set(filterfalse(own, client.scan_iter())) == {b"0.0", b"1.0"}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("appendfsync", "everysec", "appendfsync=everysec"),
        ("appendfsync", "no", "appendfsync=no"),
        ("appendonly", "no", "appendonly=no"),
    ],
)
def test_what_weakens_the_guarantee_is_said(server, settings, caplog, name, value, says):
    with caplog.at_level(logging.WARNING, "sparkonce"):
        preflight(RedisSink(server.url))
        assert caplog.records == []
        settings(name, value)
        preflight(RedisSink(server.url))
    assert says in caplog.text


def test_another_server_is_refused(server, client):
    facts = preflight(RedisSink(server.url))
    client.set("sparkonce:id", "somebody else")
    with pytest.raises(PreflightError, match="'somebody else', and this query wrote to") as raised:
        preflight(RedisSink(server.url), facts)
    client.flushall()
    with pytest.raises(PreflightError, match="None, and this query wrote to"):
        preflight(RedisSink(server.url), facts)
    command = raised.value.next_step.partition("lost: ")[2].rstrip(".")
    client.execute_command(command)
    assert preflight(RedisSink(server.url), facts) == facts


def test_a_cluster_and_a_server_are_told_apart(server, cluster):
    with pytest.raises(PreflightError, match=r"cluster=False: .* has cluster_enabled=1"):
        preflight(RedisSink(cluster.url))
    with pytest.raises(PreflightError, match="cluster=True"):
        preflight(RedisSink(server.url, cluster=True))
    facts = preflight(RedisSink(cluster.url, cluster=True))
    assert facts["mode"] == "cluster"
    with pytest.raises(PreflightError, match="wrote to a single server"):
        preflight(RedisSink(cluster.url, cluster=True), {**facts, "mode": "single"})


@pytest.mark.parametrize(
    ("login", "says"),
    [
        ("worker:secret", r"Scripts do not run.*NOPERM.*Grant"),
        ("nobody:secret", r"does not answer INFO.*WRONGPASS"),
        ("", "does not answer INFO"),
    ],
    ids=["rights to other keys", "a wrong password", "nobody listens"],
)
def test_a_server_that_cannot_be_used(server, client, login, says):
    """test_redis_rights.py tests the individual commands."""
    client.execute_command("ACL SETUSER worker reset on >secret ~other:* +@all")
    url = f"redis://{login}@{server.address}/0" if login else f"redis://127.0.0.1:{free_port()}/0"
    with pytest.raises(PreflightError, match=says) as raised:
        preflight(RedisSink(url))
    assert "secret" not in str(raised.value)


# --- replicas ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def replica(server, client, tmp_path) -> Iterator[RedisServer]:
    client.config_set("repl-diskless-sync-delay", "0")
    started = RedisServer(tmp_path / "replica", settings={"replicaof": f"{HOST} {server.port}"})
    started.start()
    try:
        # A master sends nothing before a replica's first acknowledgement, and a replica sends one per second.
        client.set("first", "1")
        assert client.wait(1, 30_000) == 1
        client.delete("first")
        give_up_at = time.monotonic() + 30.0
        # replicas of earlier tests, which were killed
        while (told := client.info("replication"))["connected_slaves"] != 1:
            assert time.monotonic() < give_up_at, told
        yield started
    finally:
        started.kill()  # SIGTERM would wait until a replica that has just synced has rewritten its log


def test_a_replica_is_refused(replica):
    with pytest.raises(PreflightError, match="is a replica of"):
        preflight(RedisSink(replica.url))


def test_replicas_are_waited_for(server, replica, client):
    with pytest.raises(PreflightError, match=r"wait_replicas=2: .* has connected_slaves=1"):
        preflight(RedisSink(server.url, wait_replicas=2))
    rows = pa.record_batch({"key": ["a"], "value": ["1"]})
    query = Query(RedisSink(server.url, wait_replicas=1, timeout_s=1.0))
    handle, waiting = query.prepare(rows), query.prepare(rows, slot=1)
    assert query.commit(handle) == [Outcome.COMMITTED]
    replica.kill()
    with pytest.raises(PrepareError, match="0 replicas have the staged rows, and wait_replicas=1"):
        query.prepare(rows, batch=1)
    assert query.commit(waiting) == [Outcome.RETRY]
    query.close()


def test_replicas_are_waited_for_until_they_count_the_commit(server, replica, client, monkeypatch):
    """A master that did not count it would look like one that lost it, and the query would stop at its next batch."""
    query = Query(RedisSink(server.url, wait_replicas=1, timeout_s=1.0))
    handle = query.prepare(pa.record_batch({"key": ["a"], "value": ["1"]}))
    run = Nodes.run

    def paused(self: Nodes, requests: Sequence[Request], **more: Any) -> list[Any]:
        if any(scripts.CONCLUDE.sha in request.args for request in requests):
            replica.pause()
        return run(self, requests, **more)

    monkeypatch.setattr(Nodes, "run", paused)
    try:
        assert query.commit(handle) == [Outcome.RETRY]
    finally:
        replica.resume()
    monkeypatch.undo()
    assert query.commit(handle) == [Outcome.ALREADY_COMMITTED]
    with witness(replica) as other:
        assert other.hget(f"{staged(handle).rpartition(':')[0]}:ledger", "#commits") == b"1"
    query.close()


def test_sentinels_say_where_the_master_is(server, replica, client, tmp_path):
    class Sentinel(Server):
        """A ``redis-server --sentinel`` that monitors one master."""

        def initialise(self) -> None:
            lines = [f"port {self.port}", f"bind {HOST}", f"dir {self.folder}"]
            lines.append(f"sentinel monitor first {HOST} {server.port} 1")
            (self.folder / "sentinel.conf").write_text("\n".join(lines))

        def command(self) -> list[str]:
            return [str(find_program("redis-server")), str(self.folder / "sentinel.conf"), "--sentinel"]

        is_up = RedisServer.is_up
        ask = RedisServer.ask

    with Sentinel(tmp_path / "sentinel") as sentinel:
        # The URL names the replica: only Sentinel knows the actual master.
        query = Query(RedisSink(replica.url, sentinels=[(HOST, sentinel.port)], service="first"))
        query.write({"key": ["a"], "value": ["1"]})
        assert client.get("a") == b"1"
        query.close()

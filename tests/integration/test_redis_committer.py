from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from redis_servers import Query, staged
from shared_servers import needs_redis
from small_job import SmallJob
from sparkonce.cli.main import app
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sink import SinkCommitter
from sparkonce.sinks.redis import committer as committing
from sparkonce.sinks.redis import names, scripts
from sparkonce.sinks.redis.encoding import CHUNK_VALUES
from sparkonce.sinks.redis.nodes import Nodes
from sparkonce.sinks.redis.outcomes import Refusal
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisServer

pytestmark = needs_redis

KEYS = 50
ROWS = 10_000
EACH = ROWS // KEYS


def counting(server: RedisServer, **more: Any) -> RedisSink:
    return RedisSink(server.url, structure="increment", key_template="n:{number}", **more)


def rows(count: int = ROWS) -> pa.RecordBatch:
    return pa.record_batch({"number": [number % KEYS for number in range(count)], "amount": [1] * count})


def sums(client: Any) -> list[int]:
    return [int(value or 0) for value in client.mget([f"n:{number}" for number in range(KEYS)])]


@pytest.fixture
def query(server, client) -> Iterator[Query]:
    opened = Query(counting(server))
    yield opened
    opened.close()


def apply_chunks(query: Query, client: Any, handle: Handle, count: int) -> None:
    committer = query.sink.committer()
    found = names.StagedTransaction.of(handle)
    committer._decide([committing._Pending(found.name, found.seen)], "single")
    for _ in range(count):
        client.eval(scripts.APPLY.text, 1, staged(handle), scripts.END, CHUNK_VALUES)
    committer.close()


# --- once, no matter what is repeated ---------------------------------------------------------------------------------


def test_a_commit_that_stopped_between_chunks_is_finished_by_another_driver(query, client):
    handle = query.prepare(rows())
    apply_chunks(query, client, handle, 3)
    assert 0 < sum(sums(client)) < ROWS
    for expected in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED):
        with closing(query.sink.committer()) as other:
            (answer,) = other.commit([handle])
        assert answer.outcome is expected
    assert sums(client) == [EACH] * KEYS
    assert client.exists(staged(handle)) == 0


def test_only_what_is_staged_whole_is_begun_and_since_when_the_server_says(query, client):
    """The server's time counts, no matter what the executor's clock said."""
    before_ms = time.time_ns() // 1_000_000
    staying, aborted, committed, expired = (query.prepare(rows(10), slot=slot) for slot in range(4))
    unprepared = query.open(rows(10), slot=4)
    known = {one["transaction"] for one in (staying, aborted, committed, expired)}
    lingering = query.committer.list_lingering([query.owner])
    (opened,) = (one for one in lingering if one["transaction"] not in known)
    query.committer.abort([aborted])
    assert query.commit(committed) == [Outcome.COMMITTED]
    client.delete(staged(expired))
    asked = [replace(one, opened_ms=1) for one in (aborted, staying, committed, expired, opened)]
    begun = query.committer.begun_ms(asked)
    assert [one is None for one in begun] == [True, False, True, True, True]
    assert before_ms - 1 <= (begun[1] or 0) <= time.time_ns() // 1_000_000
    unprepared.abort()
    assert query.commit(staying) == [Outcome.COMMITTED]


def test_a_server_that_does_not_say_how_old_something_is_leaves_it_unknown(query, monkeypatch):
    handle = query.prepare(rows(10))
    refused = Refusal("NOPERM", "this user may not")
    monkeypatch.setattr(Nodes, "run", lambda _, requests: [refused for _ in requests])
    with pytest.raises(UnknownOutcomeError, match="does not report what it has"):
        query.committer.begun_ms([handle])


def test_an_abort_between_chunks_comes_too_late(query, client):
    handle = query.prepare(rows())
    apply_chunks(query, client, handle, 3)
    assert query.committer.abort([handle])[0].outcome is Outcome.ALREADY_COMMITTED
    assert query.commit(handle) == [Outcome.COMMITTED]
    assert sums(client) == [EACH] * KEYS


def test_committers_at_the_same_time(query, client):
    handles = [query.prepare(rows(), slot=slot) for slot in range(3)]
    committers = [query.sink.committer() for _ in range(4)]
    answers: list[list[Outcome]] = []

    def commit(committer: SinkCommitter, order: int) -> None:
        found = committer.commit(handles[::order])[::order]
        answers.append([answer.outcome for answer in found])

    threads = [threading.Thread(target=commit, args=(one, (-1) ** number)) for number, one in enumerate(committers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in committers:
        one.close()
    assert sums(client) == [3 * EACH] * KEYS
    assert len(answers) == len(committers)
    for slot in range(3):
        assert sorted(found[slot].name for found in answers) == ["ALREADY_COMMITTED"] * 3 + ["COMMITTED"]


@pytest.mark.parametrize("lost", range(1, 9))
def test_any_reply_of_a_commit_is_lost(query, client, monkeypatch, lost):
    """The request is executed, and the connection is closed before the reply."""
    handle = query.prepare(rows())
    receive, count = Nodes._receive, 0

    def receive_not_all(nodes: Nodes, address: Any) -> Any:
        nonlocal count
        count += 1
        if count == lost:
            nodes._connections[address].read_response()
            nodes._hang_up(address)
        return receive(nodes, address)

    monkeypatch.setattr(Nodes, "_receive", receive_not_all)
    (first,) = query.commit(handle)
    monkeypatch.undo()
    assert first is Outcome.RETRY
    assert query.commit(handle) in ([Outcome.COMMITTED], [Outcome.ALREADY_COMMITTED])
    assert sums(client) == [EACH] * KEYS


# --- errors of the server while a batch is applied --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (("RPUSH", "n:7", "not a number"), "WRONGTYPE"),
        (("SET", "n:7", "x"), "does not hold an integer"),
        (("SET", "n:7", str(2**63 - 1)), "does not fit into 64 bits"),
    ],
    ids=["another type", "no number", "too large"],
)
def test_a_key_that_cannot_be_increased_stops_the_commit_where_it_is(query, client, made, says):
    client.execute_command(*made)
    handle = query.prepare(rows())
    for _ in range(2):
        (answer,) = query.committer.commit([handle])
        assert answer.outcome is Outcome.UNKNOWN
        assert "'n:7'" in answer.reason
        assert says in answer.reason
        applied = client.mget([f"n:{number}" for number in range(KEYS) if number != 7])
        assert applied == [b"1"] * 7 + [None] * (KEYS - 8)
    client.delete("n:7")
    assert query.commit(handle) == [Outcome.COMMITTED]
    assert sums(client) == [EACH] * KEYS


def test_memory_is_full(query, client):
    handle = query.prepare(rows())
    client.config_set("maxmemory", "1mb")
    try:
        (answer,) = query.committer.commit([handle])
        assert (answer.outcome, "OOM" in answer.reason) == (Outcome.RETRY, True)
        with pytest.raises(PrepareError, match="maxmemory"):
            query.prepare(rows(), slot=1)
    finally:
        client.config_set("maxmemory", "0")
    assert query.commit(handle) == [Outcome.COMMITTED]
    assert sums(client) == [EACH] * KEYS


# --- crashes ----------------------------------------------------------------------------------------------------------


def go_back(server: RedisServer, copy: Path) -> None:
    """Crashes the server, and restarts it without the changes since the copy."""
    server.kill()
    shutil.rmtree(server.folder)
    shutil.copytree(copy, server.folder)
    server.start()


@pytest.mark.parametrize("at", ["begun", "nothing", "prepared"])
def test_a_server_that_lost_no_more_than_the_batch(query, server, client, tmp_path, at):
    """The missing rows were applied nowhere, so they may be written again."""
    query.commit(query.prepare(rows(KEYS)))
    if at == "nothing":
        shutil.copytree(server.folder, tmp_path / "copy")
    writer = query.open(rows(), batch=1)
    if at == "begun":
        shutil.copytree(server.folder, tmp_path / "copy")
    fields = writer.prepare()
    if at == "prepared":
        shutil.copytree(server.folder, tmp_path / "copy")
    handle = Handle(sink="redis", slot=0, transaction=tuple(sorted(fields.items())))
    go_back(server, tmp_path / "copy")
    expected = Outcome.COMMITTED if at == "prepared" else Outcome.LOST
    assert query.commit(handle) == [Outcome.RETRY]  # the old connection
    assert query.commit(handle) == [expected]
    assert sums(client) == ([1 + EACH] * KEYS if at == "prepared" else [1] * KEYS)
    assert query.commit(handle) == [Outcome.ALREADY_COMMITTED if at == "prepared" else Outcome.LOST]


@pytest.mark.parametrize(("idle_s", "expected"), [(0, Outcome.UNKNOWN), (31 * 86_400, Outcome.COMMITTED)])
def test_a_ledger_that_ended_while_no_rows_came_is_not_taken_for_lost_commits(
    query, client, monkeypatch, idle_s, expected
):
    assert query.commit(query.prepare(rows(1))) == [Outcome.COMMITTED]
    client.delete(query.ledger)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + idle_s, time_ns=time.time_ns)
    monkeypatch.setattr(committing, "time", later)
    assert query.commit(query.prepare(rows(1), batch=1)) == [expected]


def test_a_server_that_lost_earlier_commits_too(query, server, client, tmp_path):
    """Writing this batch again would hide that others are missing."""
    query.committer.abort([query.prepare(rows(KEYS))])
    shutil.copytree(server.folder, tmp_path / "copy")
    query.commit(query.prepare(rows(KEYS)))
    handle = query.prepare(rows(), batch=1)
    go_back(server, tmp_path / "copy")
    for committer in (query.sink.committer(), query.sink.committer()):
        (answer,) = committer.commit([handle])
        assert answer.outcome is Outcome.UNKNOWN
        assert "counts 0 commits, and this query has seen 1" in answer.reason
        committer.close()
    assert sums(client) == [0] * KEYS
    # Follows the steps in docs/redis.md for continuing without the missing rows.
    client.hincrby(query.ledger, "#commits", 1)
    query.commit(handle)  # the old connection
    assert query.commit(handle) == [Outcome.LOST]


def test_a_commit_that_this_driver_saw_is_gone(query, server, tmp_path):
    """The transaction was begun before it, and does not know of it; the committer does."""
    early = query.prepare(rows(), slot=1)
    shutil.copytree(server.folder, tmp_path / "copy")
    query.commit(query.prepare(rows(KEYS)))
    go_back(server, tmp_path / "copy")
    query.commit(early)
    (answer,) = query.committer.commit([early])
    assert (answer.outcome, "lost commits" in answer.reason) == (Outcome.UNKNOWN, True)


def test_a_server_that_lost_everything(query, server, client):
    handle = query.prepare(rows())
    client.flushall()
    (answer,) = query.committer.commit([handle])
    assert (answer.outcome, "ledger is gone" in answer.reason) == (Outcome.UNKNOWN, True)
    assert query.committer.abort([handle])[0].outcome is Outcome.ABORTED
    assert client.keys() == []


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_old_batches_are_forgotten_and_new_ones_are_not(query, client):
    handles = [query.prepare(rows(KEYS), batch=batch) for batch in range(3)]
    query.commit(*handles[:2])
    aborted = query.prepare(rows(KEYS), batch=0, slot=1)
    query.committer.abort([aborted])
    query.committer.conclude(committing.KEPT_BATCHES + 1, handles)
    left = {field for field in client.hkeys(query.ledger) if not field.startswith(b"#")}
    assert left == {str(handle["transaction"]).encode() for handle in handles[1:]}
    (answer,) = query.committer.commit([handles[0]])
    assert (answer.outcome, "so old" in answer.reason) == (Outcome.UNKNOWN, True)
    assert query.commit(handles[1], handles[2]) == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    with pytest.raises(PrepareError, match="ended long ago"):
        query.open(rows(KEYS), batch=0)
    assert sums(client) == [3] * KEYS


def test_everything_of_ours_dies_in_time_but_a_batch_that_is_being_committed(query, client):
    query.commit(query.prepare(rows()))
    open_one, prepared, deciding = (
        query.open(rows(), slot=1),
        query.prepare(rows(), slot=2),
        query.prepare(rows(), slot=3),
    )
    apply_chunks(query, client, deciding, 1)
    own = {key: client.ttl(key) for key in client.scan_iter() if key.startswith(b"sparkonce:")}
    lasting = {key for key, ttl in own.items() if ttl < 0}
    assert lasting == {b"sparkonce:id", staged(deciding).encode()}
    assert own[staged(prepared).encode()] <= query.sink.staging_ttl_s
    assert len(own) == 5
    open_one.abort()


# --- memory and time --------------------------------------------------------------------------------------------------


def test_one_step_does_little(query, client):
    """The largest amount of work between two commands of other clients."""
    handle = query.prepare(pa.record_batch({"number": [1] * 100_000, "amount": [1] * 100_000}))
    chunks = client.lrange(staged(handle), 0, -2)
    assert len(chunks) == 100_000 * 2 // CHUNK_VALUES
    assert max(map(len, chunks)) < 256 * 1024 + 100
    apply_chunks(query, client, handle, 1)
    assert sums(client)[1] == CHUNK_VALUES // 2


def test_missing_is_what_the_ledger_ought_to_know_and_does_not(server, client):
    query = Query(RedisSink(server.url, key_template="missing:{n}"))

    def at(batch: int) -> Handle:
        return replace(query.prepare(pa.record_batch({"n": [batch], "value": ["v"]}), batch=batch), opened_ms=now_ms)

    now_ms = time.time_ns() // 1_000_000
    old, newest, prepared = at(0), at(1000), at(1001)
    query.commit(old, newest)
    assert query.committer.missing([old, newest, prepared]) == [prepared]
    query.committer.conclude(1000, [newest])  # and batch 0 is forgotten
    assert client.hget(query.ledger, old["transaction"]) is None
    assert query.committer.missing([old, newest]) == []
    client.hdel(query.ledger, newest["transaction"])
    assert query.committer.missing([old, newest]) == [newest]
    half_s = query.sink.ledger_ttl_s // 2
    assert query.committer.missing([replace(newest, opened_ms=now_ms - half_s * 1000)]) == []
    query.close()


# --- ``sparkonce transactions list --system redis`` lists what is unfinished, and changes nothing ---------------------


def listed(url: str, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        CliRunner()
        .invoke(app, ["transactions", "list", "--system", "redis", "--settings", url, "--format=json", *more])
        .output
    )
    return found


def test_what_is_not_finished_is_listed_and_not_changed(server, client):
    rows = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]})
    query = Query(RedisSink(server.url, prefix="shop"))
    assert listed(server.url) == []
    query.write({"key": ["z"], "value": ["0"]})
    handle = query.prepare(rows, batch=1, slot=3)
    query.open(rows, batch=2)
    before = {key: client.dump(key) for key in client.keys("*")}
    open_, prepared = sorted(listed(server.url), key=lambda one: str(one["kind"]))
    assert [prepared[name] for name in ("kind", "name", "batch", "slot")] == ["prepared", handle["transaction"], 1, 3]
    assert (open_["kind"], open_["query"], open_["batch"]) == ("open", query.query, 2)
    assert 0 <= prepared["age_s"] < 60
    assert listed(server.url, "--older-than-s", "3600") == []
    assert {key: client.dump(key) for key in client.keys("*")} == before
    query.close()


def test_all_nodes_of_a_cluster_are_searched(cluster):
    queries = [Query(RedisSink(cluster.nodes[0].url, cluster=True)) for _ in range(6)]
    handles = [query.prepare(pa.record_batch({"key": ["a"], "value": ["1"]})) for query in queries]
    found = {one["name"] for one in listed(cluster.nodes[1].url)}
    assert {str(handle["transaction"]) for handle in handles} <= found
    for query, handle in zip(queries, handles, strict=True):
        query.commit(handle)
        query.close()


# --- which values of a key a reader sees while a killed run's batch is written again ----------------------------------


ONCE, AT_LEAST_ONCE = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE


@pytest.mark.parametrize(
    ("guarantee", "died_in", "wanted"),
    [
        (AT_LEAST_ONCE, Phase.DECIDING, [0, 1, 2, 3, 4, 4, 3, 4, 5, 6]),  # shows older values again
        (ONCE, Phase.DECIDING, [0, 0, 2, 2, 2, 2, 2, 4, 4, 6]),
        (ONCE, Phase.FINISHING, [0, 0, 2, 2, 2, 4, 4, 6]),
    ],
)
def test_a_replay_shows_older_values_only_if_it_is_at_least_once(server, client, tmp_path, guarantee, died_in, wanted):
    """Each of two slots sets one key to the next version. It is read before each slot, and after each run."""
    seen: list[int] = []

    def read() -> None:
        seen.append(int(client.get("version") or 0))

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        read()
        return pa.record_batch({"key": ["version"], "value": [1 + batch * 2 + slot]})

    job = SmallJob(tmp_path, lambda: [RedisSink(server.url, guarantee=guarantee)], rows, slots=2)
    job.run(0)
    job.kill(1, died_in, after=read)
    job.run(1)
    job.run(2)
    read()
    assert seen == wanted
    assert (seen == sorted(seen)) == (guarantee is ONCE)
    conditions = RedisSink(server.url, guarantee=guarantee).conditions()
    assert any("older values again, until it catches up" in one for one in conditions) == (guarantee is AT_LEAST_ONCE)

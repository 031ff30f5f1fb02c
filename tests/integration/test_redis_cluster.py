from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from redis.crc import key_slot

from eventually import eventually
from redis_servers import Everywhere, Query
from shared_servers import needs_redis
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import SinkCommitter
from sparkonce.sinks.redis import names
from sparkonce.sinks.redis import writer as writing
from sparkonce.sinks.redis.committer import RedisCommitter
from sparkonce.sinks.redis.names import HASH_SLOTS, LedgerEntry, unpack_slots
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisCluster

pytestmark = needs_redis

KEYS = 1_000
TIMES = 3


@pytest.fixture
def everywhere(cluster) -> Iterator[Everywhere]:
    found = Everywhere(*cluster.nodes)
    found.clear()
    yield found
    found.close()


@pytest.fixture
def query(cluster, everywhere) -> Iterator[Query]:
    opened = Query(RedisSink(cluster.url, cluster=True, structure="increment", key_template="n:{number}"))
    yield opened
    opened.close()


def rows(count: int = KEYS * TIMES) -> pa.RecordBatch:
    return pa.record_batch({"number": [number % KEYS for number in range(count)], "amount": [1] * count})


def is_applied(everywhere: Everywhere, times: int = TIMES) -> bool:
    found = everywhere.data()
    return len(found) == KEYS and set(found.values()) == {str(times).encode()}


def entry_of(query: Query, everywhere: Everywhere, handle: Handle) -> LedgerEntry:
    home = next(client for client in everywhere.clients if query.ledger.encode() in set(client.scan_iter()))
    return LedgerEntry.parse(home.hget(query.ledger, str(handle[names.TRANSACTION])).decode())


def test_rows_are_spread_over_all_nodes_and_applied_once(query, everywhere):
    handles = [query.prepare(rows(), slot=slot) for slot in range(2)]
    assert everywhere.data() == {}
    assert len(unpack_slots(entry_of(query, everywhere, handles[0]).slots)) > KEYS // 2
    assert query.commit(*handles) == [Outcome.COMMITTED] * 2
    assert is_applied(everywhere, 2 * TIMES)
    assert all(client.dbsize() > KEYS // 4 for client in everywhere.clients)
    assert everywhere.own_keys() == {b"sparkonce:id", query.ledger.encode()}
    assert entry_of(query, everywhere, handles[0]).slots == ""
    assert query.commit(*handles) == [Outcome.ALREADY_COMMITTED] * 2
    assert is_applied(everywhere, 2 * TIMES)


def test_a_transaction_of_which_a_list_is_gone_is_not_begun(query, everywhere):
    whole, cut = (query.prepare(rows(), slot=slot) for slot in range(2))
    name = str(cut["transaction"]).encode()
    owner, key = next((one, key) for one in everywhere.clients for key in one.scan_iter() if key.endswith(b":" + name))
    assert owner.delete(key) == 1
    assert [one is None for one in query.committer.begun_ms([cut, whole])] == [True, False]


def test_rows_that_are_sent_before_the_end_are_part_of_it(query, everywhere, monkeypatch):
    """A worker uses limited memory, since it sends rows in groups of a fixed size."""
    monkeypatch.setattr(writing, "BUFFER_BYTES", 10_000)
    parts = [rows().slice(start, 500) for start in range(0, KEYS * TIMES, 500)]
    handle = query.prepare(*parts)
    assert query.commit(handle) == [Outcome.COMMITTED]
    assert is_applied(everywhere)


@pytest.mark.parametrize("prepared", [True, False])
def test_rows_of_an_abort_that_was_cut_off_are_deleted_by_the_next_sweep(query, everywhere, monkeypatch, prepared):
    """According to the ledger, it is aborted, but the process that recorded this could not delete the rows anymore."""
    monkeypatch.setattr(writing, "BUFFER_BYTES", 0)
    if prepared:
        query.prepare(rows())
    else:
        query.open(rows())
    (lingering,) = query.committer.list_lingering([query.owner])
    with monkeypatch.context() as cut:
        away = Finished(outcome=Outcome.RETRY, reason="A node is away.")
        cut.setattr(RedisCommitter, "_clean", lambda *_: away)
        (answer,) = query.committer.abort([lingering])
    assert answer.outcome is Outcome.ABORTED
    assert answer.reason == "Its staged rows could not be deleted: A node is away."
    assert len(everywhere.own_keys()) > KEYS // 2
    with closing(query.sink.committer()) as later:
        assert later.list_lingering([query.owner]) == [lingering]
        assert later.abort([lingering])[0].outcome is Outcome.ABORTED
        assert later.list_lingering([query.owner]) == []
    assert everywhere.own_keys() == {b"sparkonce:id", query.ledger.encode()}


def test_staged_rows_that_are_gone_too_early_are_not_called_lost(query, everywhere):
    """The node may have applied them, and then lost that with the end of its log."""
    handle = query.prepare(rows())
    name = str(handle[names.TRANSACTION]).encode()
    for client in everywhere.clients[:1]:
        for key in [key for key in client.scan_iter() if key.endswith(name)]:
            client.delete(key)
    for _ in range(2):
        assert query.commit(handle) == [Outcome.UNKNOWN]
    assert everywhere.data() == {}


@pytest.mark.parametrize("state", [b"", b"O"], ids=["begun", "prepared"])
def test_a_ledger_that_went_back_is_not_taken_for_a_loss(query, everywhere, state):
    """Other nodes may have applied their part."""
    handle = query.prepare(rows())
    home = next(client for client in everywhere.clients if query.ledger.encode() in set(client.scan_iter()))
    home.hdel(query.ledger, str(handle[names.TRANSACTION]))
    if state:
        home.hset(query.ledger, str(handle[names.TRANSACTION]), b"O:1:0:0:")
    for _ in range(2):
        assert query.commit(handle) == [Outcome.UNKNOWN]


# --- staged rows that expire on some nodes, and a node that runs out of memory ---------------------------------------


@pytest.fixture
def late(query, cluster) -> Iterator[SinkCommitter]:
    """A committer for which staged rows that are older than a second may have ended."""
    committer = RedisSink(cluster.url, cluster=True, staging_ttl_s=1).committer()
    yield committer
    committer.close()


def home_of(handle: Handle) -> int:
    name = TransactionName.parse(str(handle[names.TRANSACTION]))
    assert name is not None
    return names.ledger_of(name).hash_slot * 3 // HASH_SLOTS


def await_age(everywhere: Everywhere, query: Query, handle: Handle, age_ms: int) -> None:
    """Waits until the ledger's node reports that the transaction was prepared this long ago."""
    prepared = entry_of(query, everywhere, handle).prepared_ms
    home = everywhere.clients[home_of(handle)]

    def now_ms() -> int:
        seconds, micros = home.time()
        return seconds * 1000 + micros // 1000

    eventually(lambda: now_ms() - prepared >= age_ms, "they are old enough")


def test_a_batch_that_has_ended_on_one_node_is_lost_whole(query, late, everywhere):
    """The ledger's node has been running since the prepare, so no commit can have begun or applied anything."""

    handle = query.prepare(rows())
    client = everywhere.clients[1]
    staged = [key for key in client.scan_iter() if key.endswith(str(handle[names.TRANSACTION]).encode())]
    assert staged
    for key in staged:
        assert client.delete(key) == 1, "as when their time to live ends"
    assert query.commit(handle) == [Outcome.UNKNOWN]
    await_age(everywhere, query, handle, 1_000)
    for _ in range(2):
        assert [one.outcome for one in late.commit([handle])] == [Outcome.LOST]
    assert everywhere.data() == {}
    assert everywhere.own_keys() == {b"sparkonce:id", query.ledger.encode()}


def test_a_batch_that_was_applied_and_is_forgotten_is_not_called_lost(query, late, everywhere, cluster):
    """The ledger's node came back without the end of its log: it knows that the batch was prepared, and no more."""
    handle = query.prepare(rows())
    name, home = str(handle[names.TRANSACTION]), home_of(handle)
    entry = everywhere.clients[home].hget(query.ledger, name)
    assert query.commit(handle) == [Outcome.COMMITTED]
    everywhere.clients[home].hset(query.ledger, mapping={name: entry, names.COMMITS_FIELD: 0})
    cluster.nodes[home].kill()
    cluster.nodes[home].start()
    cluster.await_formed()
    await_age(everywhere, query, handle, 1_000)
    for _ in range(2):
        (answer,) = late.commit([handle])
        assert answer.outcome is Outcome.UNKNOWN, answer
    assert is_applied(everywhere)
    again, done = re.findall(r"HSET '(\S+)' '(\S+)' '(\S+)'", answer.reason)
    everywhere.clients[home].hset(*again)
    assert [one.outcome for one in late.commit([handle])] == [Outcome.LOST]
    everywhere.clients[home].hset(*done)
    assert [one.outcome for one in late.commit([handle])] == [Outcome.ALREADY_COMMITTED]
    assert [one.committed for one in late.list_traces(query.query, query.facts)] == [handle.transaction]


@pytest.mark.slow
def test_a_node_that_is_master_again_does_not_say_what_was_done_meanwhile(tmp_path):
    """The replica that took over meanwhile applied the batch, but could not replicate it."""

    def become_master(node: Any, other: Any) -> None:
        eventually(
            lambda: node.info("replication")["slave_repl_offset"] == other.info("replication")["master_repl_offset"],
            "it has what its master has",
        )
        node.execute_command("CLUSTER FAILOVER TAKEOVER")
        eventually(lambda: other.role()[0] == b"slave", "they have changed roles")

    with RedisCluster(tmp_path / "own") as cluster, RedisCluster(tmp_path / "fourth").nodes[0] as replica:
        sink = RedisSink(cluster.url, cluster=True, structure="increment", key_template="n:{number}", staging_ttl_s=1)
        query = Query(sink)
        everywhere = Everywhere(*cluster.nodes, replica)
        number = names.ledger_key(query.facts["prefix"], query.query).hash_slot * 3 // HASH_SLOTS
        home, spare = everywhere.clients[number], everywhere.clients[3]
        meet = cluster.nodes[number]
        spare.execute_command("CLUSTER MEET", "127.0.0.1", meet.port, meet.settings["cluster-port"])
        home_id = home.execute_command("CLUSTER MYID").decode()
        eventually(lambda: home_id in str(spare.execute_command("CLUSTER NODES")), "they know each other")
        spare.execute_command("CLUSTER REPLICATE", home_id)
        eventually(lambda: spare.info("replication").get("master_link_status") == "up", "it has what its master has")

        handle = query.prepare(rows(30))
        name = str(handle[names.TRANSACTION])
        entry = home.hget(query.ledger, name)
        become_master(spare, home)
        eventually(lambda: query.commit(handle) != [Outcome.RETRY], "the new master is found")
        spare.hset(query.ledger, mapping={name: entry, names.COMMITS_FIELD: 0})
        become_master(home, spare)
        await_age(everywhere, query, handle, 1_000)
        committer = sink.committer()
        eventually(lambda: committer.commit([handle])[0].outcome is not Outcome.RETRY, "the master of before is found")
        (answer,) = committer.commit([handle])
        assert answer.outcome is Outcome.UNKNOWN, answer
        for client in everywhere.clients[:3]:
            assert {client.get(key) for key in client.scan_iter("n:*")} <= {b"1"}
        for one in (committer, query, everywhere):
            one.close()


def full(everywhere: Everywhere, node: int, limit: int) -> None:
    everywhere.clients[node].config_set("maxmemory", limit)


@pytest.mark.parametrize("when", ["before the commit", "before the conclusion"])
def test_the_ledgers_node_is_out_of_memory(query, everywhere, monkeypatch, when):
    handle = query.prepare(rows())
    home = home_of(handle)
    conclude = RedisCommitter._conclude

    def conclude_when_full(*given: Any) -> None:
        full(everywhere, home, 1)
        conclude(*given)

    try:
        if when == "before the commit":
            full(everywhere, home, 1)
        else:
            monkeypatch.setattr(RedisCommitter, "_conclude", conclude_when_full)
        for _ in range(2):
            (answer,) = query.committer.commit([handle])
            assert answer.outcome is Outcome.RETRY, answer
            assert "maxmemory is reached" in answer.reason
        assert is_applied(everywhere) == (when == "before the conclusion")
        other = query.sink.committer()
        assert [one.outcome for one in other.commit([handle])] == [Outcome.RETRY]
        other.close()
    finally:
        full(everywhere, home, 0)
        monkeypatch.undo()
    assert query.commit(handle) == [Outcome.COMMITTED]
    assert query.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert is_applied(everywhere)
    assert everywhere.own_keys() == {b"sparkonce:id", query.ledger.encode()}


def test_what_fills_the_memory_can_be_swept(query, everywhere):
    """Otherwise, rows staged by a dead worker would block the query until they expire."""
    handle = query.prepare(rows())
    try:
        for node in range(3):
            full(everywhere, node, 1)
        assert [one.outcome for one in query.committer.abort([handle])] == [Outcome.ABORTED]
    finally:
        for node in range(3):
            full(everywhere, node, 0)
    assert everywhere.own_keys() == {b"sparkonce:id", query.ledger.encode()}


# --- hash slots on the move -------------------------------------------------------------------------------------------


class Move:
    """One hash slot goes from one node to the next, as redis-cli does it."""

    def __init__(self, cluster: RedisCluster, everywhere: Everywhere, slot: int) -> None:
        self.slot, self.clients = slot, everywhere.clients
        self.ids = [client.execute_command("CLUSTER MYID").decode() for client in everywhere.clients]
        self.ports = [node.port for node in cluster.nodes]
        self.source = slot * 3 // HASH_SLOTS
        self.target = (self.source + 1) % 3

    def begin(self) -> None:
        self.clients[self.target].execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", self.ids[self.source])
        self.clients[self.source].execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", self.ids[self.target])

    def carry(self) -> None:
        source = self.clients[self.source]
        for key in source.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 10_000):
            source.execute_command("MIGRATE", "127.0.0.1", self.ports[self.target], key, 0, 5_000)

    def end(self) -> None:
        for number in (self.target, self.source, 3 - self.source - self.target):
            self.clients[number].execute_command("CLUSTER SETSLOT", self.slot, "NODE", self.ids[self.target])

    def all_at_once(self) -> None:
        self.begin()
        self.carry()
        self.end()

    def back(self) -> None:
        self.source, self.target = self.target, self.source
        self.all_at_once()


@pytest.mark.parametrize("when", ["before staging", "before the commit"])
def test_a_hash_slot_has_moved(query, cluster, everywhere, when):
    move = Move(cluster, everywhere, key_slot(b"n:0"))
    writer = query.open()
    query.commit(query.prepare(rows(), slot=1))  # the committer knows where the slot was
    if when == "before staging":
        move.all_at_once()
    writer.write(rows().select(["number", "amount"]))
    fields = writer.prepare()
    handle = Handle(sink="redis", slot=0, transaction=tuple(sorted(fields.items())))
    if when == "before the commit":
        move.all_at_once()
    assert query.commit(handle) == [Outcome.COMMITTED]
    assert is_applied(everywhere, 2 * TIMES)
    assert b"n:0" in set(everywhere.clients[move.target].scan_iter())
    move.back()


@pytest.mark.parametrize("carried", [False, True], ids=["nothing carried yet", "all carried"])
def test_a_hash_slot_is_moving(query, cluster, everywhere, carried):
    """An increment at the new node while the key is still at the old one would be lost: so it waits."""
    query.commit(query.prepare(rows()))
    early = query.prepare(rows(), slot=1)
    move = Move(cluster, everywhere, key_slot(b"n:0"))
    move.begin()
    if carried:
        move.carry()
    late = query.prepare(rows(), slot=2)
    first = query.commit(early, late)
    assert set(first) <= {Outcome.COMMITTED, Outcome.RETRY}
    move.carry()
    move.end()
    assert set(query.commit(early, late)) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    assert is_applied(everywhere, 3 * TIMES)
    move.back()

"""Rows that an earlier version has staged in Redis are applied by today's scripts, on a real server.

Of all that waits on servers only this is read by code that no Python can stand in for: scripts in Redis itself.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from golden.kept import DECIDED, FINISHED, SHORT, UNDECIDED, VERSIONS, servers, state
from redis_servers import Everywhere, cluster, needs_redis, server
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.rig.servers.redis import RedisCluster, RedisServer
from sparkonce.sink import Owner
from sparkonce.sinks.redis.hash_slots import hash_slot
from sparkonce.sinks.redis.sink import RedisSink

__all__ = ["cluster", "server"]

pytestmark = [needs_redis, pytest.mark.parametrize("version", VERSIONS)]

SLOTS = 16384
ROWS = {f"row:{number}".encode(): b"1" for number in (300, 301, 302, 310, 311, 312)}


class Place:
    """Servers that hold what they held in a state."""

    def __init__(self, name: str, nodes: Sequence[RedisServer]) -> None:
        self.name, self._nodes = name, nodes
        self.everywhere = Everywhere(*nodes)
        self.everywhere.clear()

    def restore(self, version: str, state_name: str) -> None:
        held = servers(version, state_name)["redis"][self.name]
        for key, text in held["texts"].items():
            self._of(key).set(key, text)
        for key, ledger in held["ledgers"].items():
            self._of(key).hset(key, mapping=ledger)
        for key, chunks in held["lists"].items():
            self._of(key).rpush(key, *map(b64decode, chunks))

    def _of(self, key: str) -> Any:
        count = len(self._nodes)
        node = next(one for one in range(count) if hash_slot(key.encode()) < SLOTS * (one + 1) // count)
        return self.everywhere.clients[node]

    def sink(self) -> RedisSink:
        shape: Mapping[str, Any] = {"structure": "increment", "key_template": "row:{number}"}
        return RedisSink(self._nodes[0].url, cluster=len(self._nodes) > 1, name=self.name, **shape)


@pytest.fixture(params=["redis", "redis.cluster"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "redis":
        one: RedisServer = request.getfixturevalue("server")
        made = Place(request.param, [one])
    else:
        several: RedisCluster = request.getfixturevalue("cluster")
        made = Place(request.param, several.nodes)
    yield made
    made.everywhere.close()


def expected(version: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state(version, name) / "expected.json").read_text())
    return found


def handles(version: str, name: str, sink: str) -> list[Handle]:
    return [
        Handle(sink=sink, slot=one["slot"], rows=one["rows"], transaction=transaction_fields(one["transaction"]))
        for one in expected(version, name)["newest handles"][sink]
    ]


def test_decided_rows_are_applied_once(version: str, place: Place) -> None:
    place.restore(version, DECIDED)
    facts = expected(version, DECIDED)["newest facts"][place.name]
    sink = place.sink()
    assert sink.preflight(SHORT, facts) == {"ledger_ttl_s": "2592000", **facts}
    for wanted in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED):
        with closing(sink.committer()) as committer:
            found = committer.commit(handles(version, DECIDED, place.name))
        assert [one.outcome for one in found] == [wanted] * 2
        assert place.everywhere.data() == ROWS
    assert len(place.everywhere.own_keys()) == 2, "the ledger and the id"


def test_what_is_finished_is_not_applied_again(version: str, place: Place) -> None:
    place.restore(version, FINISHED)
    with closing(place.sink().committer()) as committer:
        found = committer.commit(handles(version, FINISHED, place.name))
    assert [one.outcome for one in found] == [Outcome.ALREADY_COMMITTED] * 2
    assert place.everywhere.data() == {}


def test_what_a_killed_run_has_staged_is_swept(version: str, place: Place) -> None:
    place.restore(version, UNDECIDED)
    view = expected(version, UNDECIDED)
    facts = view["newest facts"][place.name]
    owners = [Owner(query=SHORT, token=Token(*run["token"]), facts=facts) for run in view["runs"]]
    with closing(place.sink().committer()) as committer:
        left = committer.list_lingering(owners)
        assert len(left) == 2
        assert [one.outcome for one in committer.abort(left)] == [Outcome.ABORTED] * 2
        assert committer.list_lingering(owners) == []
        assert [one.outcome for one in committer.commit(left)] == [Outcome.LOST] * 2
    assert place.everywhere.data() == {}
    assert len(place.everywhere.own_keys()) == 2, "the ledger and the id"


def test_an_entry_of_a_newer_version_is_neither_committed_nor_lost(version: str, place: Place) -> None:
    place.restore(version, DECIDED)
    (one, _) = handles(version, DECIDED, place.name)
    held = servers(version, DECIDED)["redis"][place.name]
    ((key, ledger),) = held["ledgers"].items()
    name = str(one["transaction"])
    place._of(key).hset(key, name, f"Z{ledger[name][1:]}")
    sink = place.sink()
    with closing(sink.committer()) as committer:
        (answer,) = committer.commit([one])
    assert answer.outcome is Outcome.UNKNOWN, answer
    assert "'Z'" in answer.reason

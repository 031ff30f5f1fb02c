"""Lists the unfinished transactions of sparkonce on a Redis server or cluster, for operators. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from sparkonce.errors import PreflightError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.orphans import Orphan, run_of
from sparkonce.sinks._shared.preflight import refusal
from sparkonce.sinks.redis import names
from sparkonce.sinks.redis.committer import entries
from sparkonce.sinks.redis.names import Key, LedgerEntry, hash_slot, shown_url
from sparkonce.sinks.redis.nodes import Endpoint, Nodes, RedisReply, Request
from sparkonce.sinks.redis.outcomes import Refusal, read_refusal
from sparkonce.sinks.redis.preflight import read_info

_KINDS = {names.OPEN: "open", names.PREPARED: "prepared", names.COMMITTING: "committing", names.ABORTED: "aborted"}


def list_open(settings: str) -> list[Orphan]:
    """Lists unfinished transactions, and aborted ones whose rows are not yet deleted, oldest first.

    Args:
        settings: The sink's URL. For a cluster, it names any node; with Sentinels, it names the master.

    Raises:
        ConfigurationError: If redis-py does not accept the URL.
        PreflightError: If a server does not respond.
    """
    url = settings or "redis://localhost:6379/0"
    with closing(Nodes(Endpoint(url=url))) as one:
        (info,) = one.everywhere("INFO", "cluster").values()
    cluster = read_info(_answered(url, info)).get("cluster_enabled") == "1"
    with closing(Nodes(Endpoint(url=url, cluster=cluster))) as nodes:
        seconds, micros = _answered(url, nodes.ask(Request(0, ("TIME",))))
        now_s = int(seconds) + int(micros) / 1e6
        found = [
            _orphan(name, entry, now_s)
            for ledger in _ledgers(url, nodes)
            for name, entry in entries(nodes, ledger)
            if entry.state != names.COMMITTED and (entry.state != names.ABORTED or entry.slots)
        ]
    return sorted(found, key=lambda orphan: -orphan.age_s)


def _ledgers(url: str, nodes: Nodes) -> Iterator[Key]:
    for keys in nodes.scan(f"{names.OWN}*:ledger"):
        for key in _answered(url, keys):
            yield Key(key.decode(), hash_slot(key))


def _orphan(name: TransactionName, entry: LedgerEntry, now_s: float) -> Orphan:
    return Orphan(
        kind=_KINDS[entry.state],
        name=str(name),
        query=name.query,
        run=run_of(name.token),
        batch=name.batch,
        slot=name.slot,
        copy=name.copy,
        age_s=max(0.0, now_s - entry.begun_ms / 1000),
        holds=("the memory of its staged rows",),
    )


def _answered(url: str, reply: RedisReply) -> RedisReply:
    if not isinstance(reply, Refusal):
        return reply
    why = f"the server does not report what is open: {read_refusal(reply).reason}"
    error: PreflightError = refusal(
        "url", repr(shown_url(url)), why, "Check the address, that the server runs, and the credentials."
    )
    raise error

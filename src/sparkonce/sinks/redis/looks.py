"""What the driver asks of transactions, and changes nothing by: how old they are, and whether they are committed still.

Staged rows live for ``staging_ttl_s`` from their prepare on. How long ago that is, is told by the server, and counted
back from this process's clock: no two clocks are compared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.redis import names, scripts
from sparkonce.sinks.redis.hash_slots import unpack_slots
from sparkonce.sinks.redis.names import Entry, ledger_of, single_key, slot_key
from sparkonce.sinks.redis.nodes import Answer, Nodes, Request, run_script
from sparkonce.sinks.redis.outcomes import Refusal, read_refusal


def begun_ms(nodes: Nodes, handles: Sequence[Handle], ledger_ttl_ms: int) -> list[int | None]:
    """See `sparkonce.sink.SinkCommitter.begun_ms`. Asks with what a commit needs, too, and changes no row.

    Args:
        nodes: The servers.
        handles: Of the sink, all with a transaction.
        ledger_ttl_ms: How long the ledger is to live from now on.

    Raises:
        UnknownOutcomeError: if a server does not say.
    """
    asked = [name for handle in handles if (name := TransactionName.parse(str(handle[names.TRANSACTION])))]
    looks = [_look(nodes, name, ledger_ttl_ms) for name in asked]
    prepared = {
        name: answer
        for name, answer in zip(asked, _run(nodes, looks), strict=True)
        if answer[0].decode() == names.PREPARED
    }
    now_ms = time.time_ns() // 1_000_000
    places = [
        (name, key)
        for name, answer in prepared.items()
        for key in (
            [slot_key(name, slot) for slot in unpack_slots(answer[2].decode())]
            if nodes.place.cluster
            else [single_key(name)]
        )
    ]
    ends = _run(nodes, [Request(key.hash_slot, ("LINDEX", key.name, -1)) for _, key in places])
    cut = {name for (name, _), end in zip(places, ends, strict=True) if end != scripts.END.encode()}
    since_ms = {str(name): now_ms - int(answer[1]) for name, answer in prepared.items() if name not in cut}
    return [since_ms.get(str(handle[names.TRANSACTION])) for handle in handles]


def missing(nodes: Nodes, handles: Sequence[Handle], ledger_ttl_ms: int) -> list[Handle]:
    """See `sparkonce.sink.SinkCommitter.missing`.

    The ledger surely lives for so long; half of it leaves room for clocks.

    Raises:
        UnknownOutcomeError: if a server does not say.
    """
    since_ms = time.time_ns() // 1_000_000 - ledger_ttl_ms // 2
    asked = [handle for handle in handles if handle.opened_ms > since_ms]
    known = {name: handle for handle in asked if (name := TransactionName.parse(str(handle[names.TRANSACTION])))}
    requests = [
        Request(ledger.hash_slot, ("HGET", ledger.name, field))
        for name in known
        for ledger in [ledger_of(name)]
        for field in (str(name), names.FLOOR_FIELD)
    ]
    answers = _run(nodes, requests)
    found = []
    for (name, handle), entry, floor in zip(known.items(), answers[::2], answers[1::2], strict=True):
        forgotten = entry is None and name.batch < int(floor or 0)
        if not forgotten and (entry is None or Entry.parse(entry.decode()).state != names.COMMITTED):
            found.append(handle)
    return found


def _look(nodes: Nodes, name: TransactionName, ledger_ttl_ms: int) -> Request:
    keys = [ledger_of(name)] if nodes.place.cluster else [ledger_of(name), single_key(name)]
    return run_script(scripts.DECIDE, keys, str(name), name.batch, 0, scripts.END, "look", ledger_ttl_ms)


def _run(nodes: Nodes, requests: Sequence[Request]) -> Sequence[Answer]:
    answers = nodes.run(requests)
    for answer in answers:
        if isinstance(answer, Refusal):
            raise UnknownOutcomeError(f"Redis does not say what it has: {read_refusal(answer).reason}")
    return answers

"""Reads the state of transactions without changing it: their age, and whether they are still committed.

Staged rows live for ``staging_ttl_s`` after their prepare. The server tells how long ago that was, and the time is
counted back from this process's clock, so that no two clocks are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.redis import names, scripts
from sparkonce.sinks.redis.hash_slots import unpack_slots
from sparkonce.sinks.redis.names import Key, LedgerEntry, StagedTransaction, ledger_of, single_key, slot_key
from sparkonce.sinks.redis.nodes import SCAN_COUNT, Nodes, RedisReply, Request, run_script
from sparkonce.sinks.redis.outcomes import Refusal, read_refusal


def begun_ms(nodes: Nodes, handles: Sequence[Handle], ledger_ttl_ms: int) -> list[int | None]:
    """Returns when each transaction was prepared; None if it cannot be committed any more.

    Asks by the script that a commit uses, without changing a row.

    Args:
        nodes: The servers.
        handles: The sink's handles, all with a transaction.
        ledger_ttl_ms: The ledger's time to live from now on.

    Raises:
        UnknownOutcomeError: if a server does not answer.
    """
    asked = [one.name for handle in handles if (one := StagedTransaction.of(handle))]
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
            if nodes.endpoint.cluster
            else [single_key(name)]
        )
    ]
    ends = _run(nodes, [Request(key.hash_slot, ("LINDEX", key.name, -1)) for _, key in places])
    cut = {name for (name, _), end in zip(places, ends, strict=True) if end != scripts.END.encode()}
    since_ms = {str(name): now_ms - int(answer[1]) for name, answer in prepared.items() if name not in cut}
    return [since_ms.get(str(handle[names.TRANSACTION])) for handle in handles]


def missing(nodes: Nodes, handles: Sequence[Handle], ledger_ttl_ms: int) -> list[Handle]:
    """Returns those that the ledger does not show as committed. See `sparkonce.sink.SinkCommitter.missing`.

    Raises:
        UnknownOutcomeError: if a server does not answer.
    """
    # The ledger lives for the whole time; the other half allows for clocks that differ.
    since_ms = time.time_ns() // 1_000_000 - ledger_ttl_ms // 2
    asked = [handle for handle in handles if handle.opened_ms > since_ms]
    known = {one.name: handle for handle in asked if (one := StagedTransaction.of(handle))}
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
        if not forgotten and (entry is None or LedgerEntry.parse(entry.decode()).state != names.COMMITTED):
            found.append(handle)
    return found


def _look(nodes: Nodes, name: TransactionName, ledger_ttl_ms: int) -> Request:
    keys = [ledger_of(name)] if nodes.endpoint.cluster else [ledger_of(name), single_key(name)]
    return run_script(scripts.DECIDE, keys, str(name), name.batch, 0, scripts.END, "look", ledger_ttl_ms)


def _run(nodes: Nodes, requests: Sequence[Request]) -> Sequence[RedisReply]:
    answers = nodes.run(requests)
    for answer in answers:
        if isinstance(answer, Refusal):
            raise UnknownOutcomeError(f"Redis does not tell what it has: {read_refusal(answer).reason}")
    return answers


def entries(nodes: Nodes, ledger: Key) -> Iterator[tuple[TransactionName, LedgerEntry]]:
    """Yields the transactions in a ledger.

    Raises:
        UnknownOutcomeError: if the ledger cannot be read.
    """
    cursor, seen = b"0", set()
    while True:
        answer = nodes.ask(Request(ledger.hash_slot, ("HSCAN", ledger.name, cursor, "COUNT", SCAN_COUNT)))
        if isinstance(answer, Refusal):
            raise UnknownOutcomeError(
                f"The ledger {ledger.name} cannot be read: {read_refusal(answer).reason}",
                next_step="Check that the server can be reached, then start the query again.",
            )
        cursor, flat = answer
        for text, entry in zip(flat[::2], flat[1::2], strict=True):
            name = TransactionName.parse(text.decode())
            if name is not None and name not in seen:
                seen.add(name)
                yield name, LedgerEntry.parse(entry.decode())
        if int(cursor) == 0:
            return

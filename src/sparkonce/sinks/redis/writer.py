"""The executor side of the Redis sink: stages one task attempt's rows in Redis, or writes them immediately."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkonce.errors import OutageError, PrepareError, SparkonceError, one_line
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import SinkWriter, WriterContext
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.encoding import Shape, encode
from sparkonce.sinks.redis.names import (
    OWN,
    SEEN,
    TRANSACTION,
    Key,
    hash_slots,
    ledger_of,
    pack_slots,
    single_key,
    slot_key,
    tags,
)
from sparkonce.sinks.redis.nodes import Nodes, RedisReply, Request, run_script
from sparkonce.sinks.redis.outcomes import Refusal, code_of, read_refusal

BUFFER_BYTES = 16 * 1024 * 1024
"""The size at which buffered rows for a cluster are grouped by hash slot and sent, in bytes."""

_SEND_AT_ONCE_BYTES = 1024 * 1024


class SlotGroups:
    """Groups chunks by hash slot, and calls ``send`` with the chunks of each slot. A single server has one group."""

    def __init__(self, shape: Shape, *, cluster: bool, send: Callable[[Mapping[int, list[bytes]]], None]) -> None:
        self._shape = shape
        self._cluster = cluster
        self._send = send
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        if not self._cluster:
            self._send_in_pieces(rows)
            return
        self._buffered.append(rows)
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= BUFFER_BYTES:
            self._send(self.take())

    def take(self) -> dict[int, list[bytes]]:
        """Returns the buffered rows as chunks by hash slot, and clears the buffer."""
        buffered, self._buffered, self._buffered_bytes = self._buffered, [], 0
        if not buffered:
            return {}
        rows = pa.Table.from_batches(buffered).combine_chunks().to_batches()[0]
        encoded = encode(self._shape, rows)
        slots = hash_slots(encoded.keys)
        order = np.argsort(slots, kind="stable")
        starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        which = slots[order][starts].tolist()
        groups: dict[int, list[bytes]] = {}
        for number, chunk in encoded.reordered(order).chunks(np.append(starts, len(order))):
            groups.setdefault(which[number], []).append(chunk)
        return groups

    def _send_in_pieces(self, rows: pa.RecordBatch) -> None:
        """Sends a bounded number of chunks at a time, regardless of the batch's size."""
        pending: list[bytes] = []
        size = 0
        for _, chunk in encode(self._shape, rows).chunks():
            pending.append(chunk)
            size += len(chunk)
            if size >= _SEND_AT_ONCE_BYTES:
                self._send({0: pending})
                pending, size = [], 0
        if pending:
            self._send({0: pending})


class StagingWriter(SinkWriter):
    """Stages chunks in lists that no reader reads before the commit.

    Args:
        nodes: This process's own connections.
        shape: The commands into which a row is turned.
        context: The run, the batch and the slot of the rows.
        prefix: The prefix of the transaction's name.
        staging_ttl_s: The time to live of staged rows.
        ledger_ttl_s: The time to live of the query's ledger after its last transaction.
        wait_replicas: The number of replicas that must have staged rows.
    """

    def __init__(
        self,
        nodes: Nodes,
        shape: Shape,
        context: WriterContext,
        *,
        prefix: str,
        staging_ttl_s: int,
        ledger_ttl_s: int,
        wait_replicas: int = 0,
    ) -> None:
        self._nodes = nodes
        self._cluster = nodes.endpoint.cluster
        self._ttl_ms = staging_ttl_s * 1000
        self._ledger_ttl_ms = ledger_ttl_s * 1000
        self._wait_replicas = wait_replicas
        self._name = TransactionName(
            prefix=prefix,
            query=context.owner.query,
            token=context.owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )
        self._ledger = ledger_of(self._name)
        self._groups = SlotGroups(shape, cluster=self._cluster, send=self._stage)
        self._there: dict[int, int] = {}
        self._begun = False
        self._seen = 0

    def begin(self) -> None:
        self._begun = True
        request = run_script(scripts.BEGIN, [self._ledger], str(self._name), self._name.batch, self._ledger_ttl_ms)
        state, seen = self._answer(request, "opening")
        if state != b"O":
            raise PrepareError(
                f"The ledger {self._ledger.name} does not accept transaction {self._name}: {_text(state)}.",
                next_step="Do nothing: this attempt belongs to a run or a batch that ended long ago.",
            )
        self._seen = int(seen)

    def write(self, rows: pa.RecordBatch) -> None:
        self._groups.add(rows)

    def prepare(self) -> Mapping[str, str | int]:
        """Stages the remaining rows, and marks the transaction as prepared.

        The server's settings determine how durable the prepared transaction is.
        """
        keys = [self._ledger]
        if self._cluster:
            last = self._groups.take()
            self._stage({slot: [*last.get(slot, ()), scripts.END.encode()] for slot in {*last, *self._there}})
        else:
            keys.append(self._key(0))
        slots = pack_slots(self._there) if self._cluster else ""
        self._wait_for_replicas([*self._there])
        there = self._there.get(0, 0)
        request = run_script(scripts.PREPARE, keys, str(self._name), slots, there, scripts.END, self._ttl_ms)
        state = self._answer(request, "preparing")
        if state != b"P":
            raise self._gone(_text(state))
        self._wait_for_replicas([self._ledger.hash_slot])
        return {TRANSACTION: str(self._name), SEEN: self._seen}

    def abort(self) -> None:
        """Aborts the transaction. If the server is unreachable, leaves that to a sweep."""
        if self._begun:
            keys = [self._ledger] if self._cluster else [self._ledger, self._key(0)]
            slots = pack_slots(self._there) if self._cluster and self._there else ""
            aborted = self._nodes.ask(run_script(scripts.ABORT, keys, str(self._name), self._name.batch, slots))
            if slots:
                deleted = self._nodes.run([Request(slot, ("UNLINK", self._key(slot).name)) for slot in self._there])
                if not any(isinstance(answer, Refusal) for answer in (aborted, *deleted)):
                    self._nodes.ask(run_script(scripts.CLEANED, [self._ledger], str(self._name)))
        self.close()

    def close(self) -> None:
        self._nodes.close()

    # --- staging ----------------------------------------------------------------------------------------------------

    def _key(self, slot: int) -> Key:
        return slot_key(self._name, slot) if self._cluster else single_key(self._name)

    def _stage(self, groups: Mapping[int, list[bytes]]) -> None:
        requests = []
        for slot, chunks in groups.items():
            keys = [self._key(slot)] if self._cluster else [self._key(slot), self._ledger]
            there = self._there.get(slot, 0)
            requests.append(run_script(scripts.STAGE, keys, str(self._name), there, self._ttl_ms, *chunks))
            self._there[slot] = there + len(chunks)
        for slot, answer in zip(groups, self._nodes.run(requests), strict=True):
            if isinstance(answer, Refusal):
                raise _refused(answer, f"staging rows of transaction {self._name}")
            if answer != self._there[slot]:
                raise self._gone({-1: "no longer open", -2: "without what was staged"}.get(answer, str(answer)))

    def _answer(self, request: Request, doing: str) -> RedisReply:
        answer = self._nodes.ask(request)
        if isinstance(answer, Refusal):
            raise _refused(answer, f"{doing} transaction {self._name}")
        return answer

    def _gone(self, state: str) -> SparkonceError:
        return PrepareError(
            f"Transaction {self._name} is {state}: it was swept, or its rows have outlived staging_ttl_s="
            f"{self._ttl_ms // 1000}.",
            next_step="If the query has been restarted meanwhile, do nothing; else read the server's log.",
        )

    def _wait_for_replicas(self, hash_slots: Sequence[int]) -> None:
        reached = await_replicas(self._nodes, hash_slots, self._wait_replicas)
        if reached < self._wait_replicas:
            raise OutageError(
                f"{reached} replicas have the staged rows, and wait_replicas={self._wait_replicas}.",
                next_step="Start the replicas, or lower wait_replicas.",
            )


class DirectRedisWriter(SinkWriter):
    """Writes immediately. Rows are visible before the batch is decided."""

    def __init__(self, nodes: Nodes, shape: Shape, *, wait_replicas: int = 0) -> None:
        self._nodes = nodes
        self._groups = SlotGroups(shape, cluster=nodes.endpoint.cluster, send=self._apply)
        self._touched: set[int] = set()
        self._wait_replicas = wait_replicas

    def begin(self) -> None:
        """Does nothing: there is no transaction to open."""

    def write(self, rows: pa.RecordBatch) -> None:
        self._groups.add(rows)

    def prepare(self) -> Mapping[str, str | int]:
        self._apply(self._groups.take())
        reached = await_replicas(self._nodes, [*self._touched], self._wait_replicas)
        if reached < self._wait_replicas:
            raise OutageError(
                f"{reached} replicas have the rows, and wait_replicas={self._wait_replicas}.",
                next_step="Start the replicas, or lower wait_replicas.",
            )
        return {}

    def abort(self) -> None:
        """Closes the connections. Rows that were written remain."""
        self.close()

    def close(self) -> None:
        self._nodes.close()

    def _apply(self, groups: Mapping[int, list[bytes]]) -> None:
        requests = [
            run_script(scripts.APPLY_DIRECT, [Key(f"{OWN}{{{tags()[slot]}}}", slot)], chunk)
            for slot, chunks in groups.items()
            for chunk in chunks
        ]
        self._touched.update(groups)
        for answer in self._nodes.run(requests, window=2 if len(groups) == 1 else 64, follow=False):
            if isinstance(answer, Refusal):
                raise _refused(answer, "writing rows")
            if answer[0] != b"end":
                _, _, error, key, command = answer
                refusal = Refusal(code_of(_text(error)), one_line(_text(error)))
                raise _refused(refusal, f"{_text(command)}, writing key {_text(key)!r}")


def await_replicas(nodes: Nodes, hash_slots: Sequence[int], count: int) -> int:
    """Waits for replicas, and returns how many of them have everything written here (the minimum over all nodes).

    See https://redis.io/docs/latest/commands/wait/
    """
    if count == 0:
        return 0
    asked = {nodes.owner(slot): slot for slot in hash_slots}
    limit_ms = int(nodes.endpoint.timeout_s * 500)
    answers = nodes.run([Request(slot, ("WAIT", count, limit_ms)) for slot in asked.values()])
    return min((0 if isinstance(answer, Refusal) else int(answer) for answer in answers), default=count)


def _refused(refusal: Refusal, doing: str) -> PrepareError:
    kind = OutageError if refusal.is_outage else PrepareError
    return kind(read_refusal(refusal, f"{doing}:").reason, next_step="See docs/redis.md on what each error means.")


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)

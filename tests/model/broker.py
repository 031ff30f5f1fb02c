"""The other system, as the protocol sees it: transactional ids, epochs, and the rows that readers see.

A broker is a plain tuple, so that worlds can be hashed. Each operation returns the broker after it and the answer.

- Initializing an id aborts what is open under it and raises its epoch.
- A write under an older epoch is fenced. A write under the current epoch, after the end of a transaction, opens a
  second one under the same epoch: that is what Kafka's transaction version 1 does, and version 2 after EndTxn v4.
- Committing is EndTxn v4: the epoch stays, so it can be repeated.
- Aborting is EndTxn v5: exact in (id, epoch), and it raises the epoch even if nothing is open (KIP-890).
- A timeout aborts and raises the epoch.
- Retention deletes rows of an open transaction. A commit then succeeds with the remaining rows, so they must be checked
  before a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkonce.protocol.handles import Outcome

EMPTY, OPEN, COMMITTED, ABORTED = range(4)
ENDED: Mapping[str, Any] = {"status": ABORTED, "rows": None, "damaged": False}


class Rows(NamedTuple):
    """The rows of one transaction, that is, of one slot and sink, in parts."""

    batch: int
    slot: int
    sink: str
    version: int
    parts: int


class Entry(NamedTuple):
    """An id with its epoch and its transaction."""

    name: str
    epoch: int
    status: int
    rows: Rows | None
    owner: tuple[int, int]
    damaged: bool = False


class Broker(NamedTuple):
    """The ids, the rows that readers see, and the (id, epoch) pairs that were aborted by request, not by a timeout."""

    entries: tuple[Entry, ...] = ()
    visible: tuple[Rows, ...] = ()
    undone: tuple[tuple[str, int], ...] = ()

    def entry(self, name: str) -> Entry | None:
        for entry in self.entries:
            if entry.name == name:
                return entry
        return None

    def lingering(self) -> list[tuple[str, int]]:
        return [(entry.name, entry.epoch) for entry in self.entries if entry.status == OPEN]

    def _with(self, entry: Entry) -> Broker:
        others = [other for other in self.entries if other.name != entry.name]
        return self._replace(entries=tuple(sorted([*others, entry], key=lambda one: one.name)))

    def _undoing(self, entry: Entry) -> Broker:
        return self._replace(undone=tuple(sorted({*self.undone, (entry.name, entry.epoch)})))


Step = tuple[Broker, str]


def initialise(broker: Broker, name: str, owner: tuple[int, int]) -> tuple[Broker, tuple[int, bool]]:
    """InitProducerId: returns the new epoch, and whether somebody else had initialized the id before."""
    entry = broker.entry(name)
    if entry is None:
        return broker._with(Entry(name, 0, EMPTY, None, owner)), (0, False)
    after = broker._undoing(entry) if entry.status == OPEN else broker
    return after._with(Entry(name, entry.epoch + 1, EMPTY, None, owner)), (entry.epoch + 1, entry.owner != owner)


def write(broker: Broker, name: str, epoch: int, rows: Rows) -> Step:
    """Adds a part. Returns ``ok``, ``fenced``, or ``reopened`` if the epoch had already carried a transaction."""
    entry = broker.entry(name)
    if entry is None or entry.epoch != epoch:
        return broker, "fenced"
    if entry.status == OPEN and entry.rows is not None and entry.rows._replace(parts=0) == rows._replace(parts=0):
        rows = rows._replace(parts=entry.rows.parts + rows.parts)
    answer = "ok" if entry.status in (EMPTY, OPEN) else "reopened"
    return broker._with(entry._replace(status=OPEN, rows=rows)), answer


def commit(broker: Broker, name: str, epoch: int) -> tuple[Broker, Outcome]:
    entry = broker.entry(name)
    if entry is None:
        return broker, Outcome.UNKNOWN
    if entry.epoch != epoch or entry.status in (EMPTY, ABORTED):
        return broker, Outcome.LOST
    if entry.status == COMMITTED or entry.rows is None:
        return broker, Outcome.COMMITTED
    rows = entry.rows._replace(parts=entry.rows.parts - 1) if entry.damaged else entry.rows
    visible = tuple(sorted([*broker.visible, rows]))
    return broker._with(entry._replace(status=COMMITTED))._replace(visible=visible), Outcome.COMMITTED


def abort(broker: Broker, name: str, epoch: int, bump: bool = True) -> Step:
    """EndTxn v5, abort; without ``bump`` EndTxn v4."""
    entry = broker.entry(name)
    if entry is None or entry.epoch != epoch:
        return broker, "gone"
    if entry.status != OPEN:
        return (broker._with(entry._replace(epoch=epoch + 1, **ENDED)) if bump else broker), "gone"
    after = broker._undoing(entry)
    return after._with(entry._replace(epoch=epoch + 1 if bump else epoch, **ENDED)), "aborted"


def is_damaged(broker: Broker, name: str, epoch: int) -> bool:
    entry = broker.entry(name)
    return entry is not None and (entry.epoch, entry.status, entry.damaged) == (epoch, OPEN, True)


def damage(broker: Broker, name: str) -> Broker:
    """Deletes rows of an open transaction, as ``retention.ms`` does."""
    entry = broker.entry(name)
    if entry is None or entry.status != OPEN:
        raise ValueError(f"{name} is not open")
    return broker._with(entry._replace(damaged=True))


def time_out(broker: Broker, name: str) -> Broker:
    """Aborts an open transaction, as ``transaction.timeout.ms`` does."""
    entry = broker.entry(name)
    if entry is None or entry.status != OPEN:
        raise ValueError(f"{name} is not open")
    return broker._with(entry._replace(epoch=entry.epoch + 1, **ENDED))

"""The decision log's keys as a plain tuple, read by the product's own `DecisionLog`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import takewhile
from typing import NamedTuple

from sparkonce.decision_log import DecisionLog
from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.view import Amend, Commit, Floor, LogView, Record, Void

_encoded = cache(partial(codec.encode_record, at_ms=0))
_encoded_floor = cache(codec.encode_floor)


class Keys(NamedTuple):
    """The record at each position (None if deleted), the highest floor, and all that valid decisions have ever named.

    Attributes:
        records: The records by position. The position after the last is free.
        top: The highest floor.
        named: Every (id, epoch) in a decision that was not void when it landed, except those that were voided since.
        decided: The batches that such decisions decided.
        twice: True if a batch was decided by two commits.
        objected: Every (id, epoch) to which a sink has objected.
    """

    records: tuple[Record | None, ...] = ()
    top: Floor = Floor()
    named: frozenset[tuple[str, int]] = frozenset()
    decided: frozenset[int] = frozenset()
    twice: bool = False
    objected: frozenset[tuple[str, int]] = frozenset()


def put(keys: Keys, position: int, record: Record) -> tuple[Keys, Record | None]:
    if position > len(keys.records):
        raise ValueError(f"put at {position}, and the log ends at {len(keys.records)}")
    if position < len(keys.records) and (standing := keys.records[position]) is not None:
        return keys, standing
    records = (*keys.records[:position], record, *keys.records[position + 1 :])
    keys = keys._replace(records=records)
    if position < keys.top.position or not isinstance(record, Commit | Amend | Void):
        return keys, None
    void = record.void if isinstance(record, Void) else ()
    names = {handle.key: _name(handle) for handle in record.handles if handle.transaction}
    if void:
        return keys._replace(named=keys.named - {names[key] for key in void}), None
    named = set(names.values())
    return keys._replace(
        named=keys.named | named,
        decided=keys.decided | {record.batch},
        twice=keys.twice or (isinstance(record, Commit) and record.batch in keys.decided),
    ), None


def object_to(keys: Keys, handles: Sequence[Handle]) -> Keys:
    """Records that a sink has objected to a decision that names these."""
    return keys._replace(objected=keys.objected | {_name(handle) for handle in handles if handle.transaction})


def _name(handle: Handle) -> tuple[str, int]:
    return str(handle["id"]), int(handle["epoch"])


def raise_floor(keys: Keys, floor: Floor, lowers: bool = False) -> Keys:
    """Adds a floor. It is lowered only by a mutant that overwrites a single floor."""
    if lowers or floor.position > keys.top.position:
        return keys._replace(top=floor)
    return keys


def delete_below(keys: Keys, position: int) -> Keys:
    """Frees the keys below a position."""
    gone = min(position, len(keys.records))
    return keys._replace(records=(*([None] * gone), *keys.records[gone:]))


def read(keys: Keys, view: LogView) -> LogView:
    """Reads on from a view, like `DecisionLog.read`."""
    return _KeysLog(keys).read(view)


class _KeysLog(DecisionLog):
    location = "the model"

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def read_bytes(self, position: int) -> list[bytes]:
        standing = takewhile(lambda record: record is not None, self._keys.records[position:])
        return [_encoded(record) for record in standing if record is not None]

    def floor_bytes(self) -> bytes | None:
        return _encoded_floor(self._keys.top)

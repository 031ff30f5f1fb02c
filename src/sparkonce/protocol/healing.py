"""Plans the completion of a decided batch that lost transactions, or says why that is impossible.

To heal a batch, its plan runs a second time. A plan that returns the same rows may return them in different slots: for
example, Spark's Kafka source does not always list a topic's partitions in the same order (observed with Spark 4.0.0).
The rows of a slot are therefore identified by their evidence, that is, their number and fingerprint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from sparkonce.protocol.handles import FINGERPRINT_MODULUS, Handle

Key = tuple[str, int]
"""Sink and slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan to complete the batch.

    Attributes:
        write: The (sink, slot) pairs of the replay to write; None for all. If the replay has written other pairs, the
            batch must be replayed once more.
        handles: All handles in effect after the write, with new handles instead of the lost ones.
        replayed: The replay's handles, renumbered: each has the number of the recorded slot with the same rows.
    """

    write: frozenset[Key] | None
    handles: tuple[Handle, ...]
    replayed: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingRefusal:
    """The replay returned rows that differ from the visible ones, or the same rows in slots that do not match.

    Attributes:
        lost: The sink, slot and row count of each lost transaction.
        differing: The (sink, slot) pairs whose evidence differs from the record, or that exist on one side only.
        same_rows: True if each sink has the same rows in total, but in different slots.
    """

    lost: tuple[tuple[str, int, int], ...]
    differing: tuple[Key, ...]
    same_rows: bool


def first_write(recorded: Iterable[Handle], lost: Set[Key]) -> frozenset[Key] | None:
    """Returns the slots that the first replay writes: the lost ones, or None for all if no row is visible."""
    return None if _is_invisible(recorded, lost) else frozenset(lost)


def heal(
    recorded: Sequence[Handle], replayed: Sequence[Handle], lost: Set[Key], sinks: Sequence[str]
) -> Plan | HealingRefusal:
    """Compares a replay with the record.

    If no row of the batch is visible, any rows will do. Otherwise, the rewritten rows must be exactly the lost ones. In
    a sink that lost only part of the batch, every recorded slot must be found in the replay. In any other sink, either
    all slots or none are rewritten, so their rows may be distributed differently as long as the total is the same.

    Args:
        recorded: The handles that are in effect for the batch.
        replayed: The handles of the replay, one per slot, whether written or only counted.
        lost: The keys of the recorded handles whose transactions are lost. All others are committed.
        sinks: The sinks that took part in the replay.
    """
    if _is_invisible(recorded, lost):
        untouched = (one for one in recorded if one.sink not in sinks)
        return Plan(write=None, handles=tuple(sorted((*untouched, *replayed))), replayed=tuple(replayed))
    replayed_slots = _found_again(recorded, replayed)
    again = _as_recorded(replayed, replayed_slots)
    whole = _lost_whole(recorded, lost)
    if differing := _differing(recorded, again, {sink for sink, _ in lost} - whole, sinks):
        return HealingRefusal(
            lost=tuple((one.sink, one.slot, one.rows) for one in recorded if one.key in lost),
            differing=differing,
            same_rows=all(_in_all(recorded, sink) == _in_all(replayed, sink) for sink in sinks),
        )
    committed = (one for one in recorded if one.sink not in whole and one.key not in lost)
    written = (one for one in again if one.sink in whole or one.key in lost)
    return Plan(
        write=_where_lost(lost, whole, replayed, replayed_slots),
        handles=tuple(sorted((*committed, *written))),
        replayed=tuple(again),
    )


def _is_invisible(recorded: Iterable[Handle], lost: Set[Key]) -> bool:
    return all(one.key in lost for one in recorded if one.transaction)


def _lost_whole(recorded: Iterable[Handle], lost: Set[Key]) -> frozenset[str]:
    """Returns the sinks that lost all of their transactions, in which no row of the batch is visible."""
    visible = {one.sink for one in recorded if one.transaction and one.key not in lost}
    return frozenset({sink for sink, _ in lost} - visible)


def _found_again(recorded: Iterable[Handle], replayed: Iterable[Handle]) -> Mapping[Key, int]:
    """Maps each recorded slot to the replay's slot with the same rows, preferring the same number.

    Leaves out a sink if any of its slots cannot be found.
    """
    replayed_slots: dict[Key, int] = {}
    for sink in {one.sink for one in recorded} & {one.sink for one in replayed}:
        before = {one.slot: one.evidence for one in recorded if one.sink == sink}
        after = {one.slot: one.evidence for one in replayed if one.sink == sink}
        if sorted(before.values()) != sorted(after.values()):
            continue
        same = {slot for slot, evidence in before.items() if after.get(slot) == evidence}
        free: dict[tuple[int, int], list[int]] = defaultdict(list)
        for slot in sorted(after.keys() - same, reverse=True):
            free[after[slot]].append(slot)
        for slot, evidence in sorted(before.items()):
            replayed_slots[sink, slot] = slot if slot in same else free[evidence].pop()
    return replayed_slots


def _as_recorded(replayed: Iterable[Handle], replayed_slots: Mapping[Key, int]) -> list[Handle]:
    """Renumbers the replay's handles: each gets the number of the recorded slot with the same rows."""
    slots = {(sink, replayed_slot): slot for (sink, slot), replayed_slot in replayed_slots.items()}
    return [replace(one, slot=slots.get(one.key, one.slot)) for one in replayed]


def _where_lost(
    lost: Set[Key], whole: Set[str], replayed: Iterable[Handle], replayed_slots: Mapping[Key, int]
) -> frozenset[Key]:
    """Returns the replay's slots that hold the lost rows.

    A sink whose slots are not in ``replayed_slots`` has lost all of its transactions: in other cases, `heal` fails.
    """
    found = {(sink, replayed_slots[sink, slot]) for sink, slot in lost if (sink, slot) in replayed_slots}
    spread = whole - {sink for sink, _ in replayed_slots}
    return frozenset(found | {one.key for one in replayed if one.sink in spread and one.rows})


def _differing(
    recorded: Sequence[Handle], again: Sequence[Handle], by_slot: Set[str], sinks: Sequence[str]
) -> tuple[Key, ...]:
    """Lists the slots that differ. A sink that is not in ``by_slot`` is included only if its total differs."""
    counted = {*by_slot, *(sink for sink in sinks if _in_all(recorded, sink) != _in_all(again, sink))}
    before = {one.key: one.evidence for one in recorded if one.sink in sinks and one.sink in counted}
    after = {one.key: one.evidence for one in again if one.sink in sinks and one.sink in counted}
    return tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))


def _in_all(handles: Iterable[Handle], sink: str) -> tuple[int, int]:
    """Sums a sink's rows and fingerprints over all slots."""
    own = [one for one in handles if one.sink == sink]
    return sum(one.rows for one in own), sum(one.fingerprint for one in own) % FINGERPRINT_MODULUS

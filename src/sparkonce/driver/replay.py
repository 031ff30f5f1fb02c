"""Finds a decided batch's slots again when its plan runs a second time.

A plan that gives the same rows may give them in other slots: Spark's Kafka source, for one, does not always list a
topic's partitions in the order of the first time when it reads a batch again (seen with Spark 4.0.0). What a slot holds
is known by its evidence: rows and fingerprint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from sparkonce.protocol.handles import Handle, lost_whole

Key = tuple[str, int]
"""Sink and slot."""


def found_again(recorded: Sequence[Handle], replayed: Sequence[Handle]) -> Mapping[Key, int]:
    """In which slot of the replay the rows of each recorded slot are; in the same one where that fits.

    Returns:
        One place for each (sink, slot) of the sinks that both have, without those of which not every slot is found.
    """
    places: dict[Key, int] = {}
    sinks = {handle.sink for handle in recorded} & {handle.sink for handle in replayed}
    for sink in sinks:
        before = {handle.slot: handle.evidence for handle in recorded if handle.sink == sink}
        after = {handle.slot: handle.evidence for handle in replayed if handle.sink == sink}
        if sorted(before.values()) != sorted(after.values()):
            continue
        kept = {slot for slot, evidence in before.items() if after.get(slot) == evidence}
        free: dict[tuple[int, int], list[int]] = defaultdict(list)
        for slot in sorted(after.keys() - kept, reverse=True):
            free[after[slot]].append(slot)
        for slot, evidence in sorted(before.items()):
            places[sink, slot] = slot if slot in kept else free[evidence].pop()
    return places


def where_lost(lost: Set[Key], recorded: Sequence[Handle], replayed: Sequence[Handle]) -> frozenset[Key] | None:
    """Which slots of a replay hold the rows of the lost ones.

    Returns:
        Of a sink whose slots are not found again all that have rows, if each of its transactions was lost. None if
        what was lost cannot be told from the rest.
    """
    places = found_again(recorded, replayed)
    whole = lost_whole(lost, recorded)
    found: set[Key] = set()
    for sink, slot in lost:
        if (sink, slot) in places:
            found.add((sink, places[sink, slot]))
        elif sink in whole:
            found |= {handle.key for handle in replayed if handle.sink == sink and handle.rows}
        else:
            return None
    return frozenset(found)


def as_recorded(handles: Sequence[Handle], places: Mapping[Key, int]) -> list[Handle]:
    """The handles of a replay, each with the number of the recorded slot whose rows it holds."""
    slots = {(sink, place): slot for (sink, slot), place in places.items()}
    return [replace(handle, slot=slots.get(handle.key, handle.slot)) for handle in handles]

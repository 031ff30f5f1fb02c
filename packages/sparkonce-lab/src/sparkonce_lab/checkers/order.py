"""Judges the places of rows: their order within a partition, and their batch in each system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce_lab.checkers.tables import KEYS, ROW
from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Batches = dict[int, tuple[int, int]]
    """By batch: how many rows, and a fingerprint of them that does not depend on their order."""


def check_order(system: str, found: pa.Table) -> Iterator[Verdict]:
    """Finds OUT_OF_ORDER: the offsets of a key do not rise with its numbers, or it is in several partitions.

    Of rows with the same key and number in one partition only the first is looked at: a repetition is DOUBLED, or
    UNEXPECTED if its amount differs, and not counted again here.
    """
    placed = found.filter(pc.and_(pc.equal(found["kind"], ROW), pc.greater_equal(found["offset"], 0)))
    if not len(placed):
        return
    columns = {name: placed[name].to_numpy() for name in ("key", "partition", "number", "offset", "batch")}
    by = np.lexsort((columns["offset"], columns["number"], columns["partition"], columns["key"]))
    key, partition, number, offset, batch = (values[by] for values in columns.values())
    same_key = key[1:] == key[:-1]
    same_place = same_key & (partition[1:] == partition[:-1])
    first = np.r_[True, ~(same_place & (number[1:] == number[:-1]))]
    kept = np.flatnonzero(first)
    together = (key[kept][1:] == key[kept][:-1]) & (partition[kept][1:] == partition[kept][:-1])
    back = np.flatnonzero(together & (offset[kept][1:] < offset[kept][:-1]))
    torn_keys = np.flatnonzero(same_key & ~same_place)
    examples = [
        f"key {key[a]} in partition {partition[a]}: number {number[b]} (batch {batch[b]}) stands at offset "
        f"{offset[b]}, before number {number[a]} (batch {batch[a]}) at offset {offset[a]}"
        for a, b in ((kept[at], kept[at + 1]) for at in back[:MOST_EXAMPLES])
    ]
    examples += [
        f"key {key[at]} stands in partition {partition[at]} and in partition {partition[at + 1]}, there with number "
        f"{number[at + 1]} (batch {batch[at + 1]}) at offset {offset[at + 1]}"
        for at in torn_keys[: MOST_EXAMPLES - len(examples)]
    ]
    yield Verdict(
        anomaly=Anomaly.OUT_OF_ORDER,
        system=system,
        looked_at=len(placed),
        count=len(back) + len(torn_keys),
        examples=tuple(examples),
    )


def batches_of(found: pa.Table) -> Batches:
    """Returns each batch of a plain table, without rows that name no batch."""
    found = found.filter(pc.greater_equal(found["batch"], 0))
    if not len(found):
        return {}
    batch = found["batch"].to_numpy()
    by = np.argsort(batch, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(batch[by]) != 0])
    prints = np.add.reduceat(_hashes([found[name].to_numpy() for name in KEYS])[by], starts)
    counts = np.diff(np.r_[starts, len(by)])
    return {
        int(number): (int(count), int(one))
        for number, count, one in zip(batch[by][starts], counts, prints, strict=True)
    }


def check_torn(batches: Mapping[str, Batches]) -> Iterator[Verdict]:
    """Finds TORN: a batch has not the same rows in every system. Judges nothing if there is one system.

    A row that is missing, doubled or unexpected in one system only tears its batch, too.
    """
    if len(batches) < 2:
        return
    numbers = sorted(set().union(*batches.values()))
    torn = [number for number in numbers if len({found.get(number) for found in batches.values()}) > 1]
    yield Verdict(
        anomaly=Anomaly.TORN,
        system="",
        looked_at=len(numbers),
        count=len(torn),
        examples=tuple(
            f"batch {number}: " + "; ".join(f"{name} has {_has(found.get(number))}" for name, found in batches.items())
            for number in torn[:MOST_EXAMPLES]
        ),
    )


def _has(batch: tuple[int, int] | None) -> str:
    return "nothing" if batch is None else f"{batch[0]} rows, fingerprint {batch[1]:016x}"


def _hashes(columns: list[Ints]) -> npt.NDArray[np.uint64]:
    """Returns 64 bits of each row, mixed as splitmix64 does. Sums of them wrap around on purpose."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for values in columns:
        mixed += values.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed

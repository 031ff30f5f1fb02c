"""Compares rows: each must occur exactly as often as expected, in the right location, and no other rows may occur.

Tables are converted to a form that is fast to compare; see `plain`. The location of a row is its batch and, in Kafka,
its partition and offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Batches = dict[int, tuple[int, int]]
    """For each batch, the number of rows, and their fingerprint, which does not depend on their order."""


ROW, SUM, UNEXPECTED = 0, 1, 2
"""The codes of the kinds of rows in a plain table."""
KEYS = ["kind", "key", "number", "amount", "rows"]
"""The columns that identify a row."""
_MOST_POSITIONS = 4


def plain(table: pa.Table) -> pa.Table:
    """Returns the table without nulls, and with codes instead of the names of kinds.

    A row that contains a null, or has a kind other than ``row`` and ``sum``, is unexpected.
    """
    readable = reduce(pc.and_, (pc.is_valid(table[name]) for name in KEYS))
    kind = pc.fill_null(pc.index_in(table["kind"], pa.array(["row", "sum"])), UNEXPECTED)
    columns = {"kind": pc.if_else(readable, kind, UNEXPECTED).cast(pa.int8())}
    for name in table.column_names:
        if name != "kind":
            columns[name] = pc.fill_null(table[name], -1)
    return pa.table(columns)


def positions(found: pa.Table, row: Mapping[str, Any]) -> str:
    """Describes the positions of a row in a plain table: batch and, if available, partition and offset."""
    if "batch" not in found.column_names:
        return ""
    standing = found.filter(reduce(pc.and_, (pc.equal(found[name], row[name]) for name in KEYS)))
    standing = standing.sort_by([("batch", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    told = [position(one) for one in standing.slice(0, _MOST_POSITIONS).to_pylist()]
    return "; ".join([*told, "…"] if len(standing) > _MOST_POSITIONS else told)


def position(row: Mapping[str, Any]) -> str:
    """Describes a position: ``batch 3, partition 0 offset 17``."""
    batch = f"batch {row['batch']}" if row["batch"] >= 0 else "no batch"
    return f"{batch}, partition {row['partition']} offset {row['offset']}" if row["offset"] >= 0 else batch


def words(row: Mapping[str, Any]) -> str:
    """Describes a row of a plain table."""
    key, number, amount, rows = row["key"], row["number"], row["amount"], row["rows"]
    if row["kind"] == ROW:
        return f"row {number} of key {key}: amount {amount}" + ("" if rows == 1 else f", as {rows} rows")
    if row["kind"] == SUM:
        return f"sum of key {key} from {number}: {amount} of {rows} rows"
    return f"not a row: key {key}, number {number}, amount {amount}, rows {rows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two multisets, as tables of `KEYS` and ``times``.

    Attributes:
        missing: The rows that occur too rarely, with the number of missing occurrences.
        doubled: The expected rows that occur too often, with the number of surplus occurrences.
        unexpected: The rows that must not occur at all, with the number of occurrences.
    """

    missing: pa.Table
    doubled: pa.Table
    unexpected: pa.Table

    @property
    def count(self) -> int:
        return total(self.missing) + total(self.doubled) + total(self.unexpected)


def difference(wanted: pa.Table, found: pa.Table) -> Difference:
    """Compares two plain tables on `KEYS`."""
    both = pa.concat_tables([_marked(wanted, wanted=1, found=0), _marked(found, wanted=0, found=1)])
    groups = both.group_by(KEYS).aggregate([("wanted", "sum"), ("found", "sum")])
    uneven = groups.filter(pc.not_equal(groups["wanted_sum"], groups["found_sum"]))
    more = pc.subtract(uneven["found_sum"], uneven["wanted_sum"])
    uneven = uneven.select(KEYS).append_column("wanted", uneven["wanted_sum"]).append_column("times", more)
    known, excess = pc.greater(uneven["wanted"], 0), pc.greater(uneven["times"], 0)
    missing = uneven.filter(pc.invert(excess))
    missing = missing.set_column(missing.column_names.index("times"), "times", pc.negate(missing["times"]))
    return Difference(
        missing=missing.select([*KEYS, "times"]),
        doubled=uneven.filter(pc.and_(known, excess)).select([*KEYS, "times"]),
        unexpected=uneven.filter(pc.invert(known)).select([*KEYS, "times"]),
    )


def total(times: pa.Table) -> int:
    """Returns the total number of rows in a table of a `Difference`."""
    return int(pc.sum(times["times"]).as_py() or 0)


def check_rows(system: str, expected: pa.Table, found: pa.Table, unlike: Difference) -> Iterator[Verdict]:
    """Judges MISSING, DOUBLED and UNEXPECTED.

    Each occurrence of a row beyond the first one counts as doubled. Each occurrence of an unexpected row counts as
    unexpected. If a sum has a wrong amount, that sum is unexpected, and the correct one is missing.
    """
    for anomaly, times, looked_at in (
        (Anomaly.MISSING, unlike.missing, len(expected)),
        (Anomaly.DOUBLED, unlike.doubled, len(found)),
        (Anomaly.UNEXPECTED, unlike.unexpected, len(found)),
    ):
        yield Verdict(
            anomaly=anomaly, system=system, looked_at=looked_at, count=total(times), examples=_examples(times, found)
        )


def check_undisturbed(system: str, undisturbed: pa.Table, found: pa.Table, unlike: Difference) -> Iterator[Verdict]:
    """Finds STATE_DIFFERS: the system's rows differ from those that an undisturbed query produced."""
    yield Verdict(
        anomaly=Anomaly.STATE_DIFFERS,
        system=system,
        looked_at=len(undisturbed),
        count=unlike.count,
        examples=told(unlike, found),
    )


def told(unlike: Difference, found: pa.Table) -> tuple[str, ...]:
    """Returns examples of each kind of difference."""
    lines = [
        f"{name}: {line}"
        for name, times in (("missing", unlike.missing), ("doubled", unlike.doubled), ("unexpected", unlike.unexpected))
        for line in _examples(times, found)
    ]
    return tuple(lines[:MOST_EXAMPLES])


def _examples(times: pa.Table, found: pa.Table) -> tuple[str, ...]:
    """Describes the first rows by kind, key and number, with their locations."""
    if not len(times):
        return ()
    first = pc.select_k_unstable(times, k=MOST_EXAMPLES, sort_keys=[(name, "ascending") for name in KEYS])
    lines = []
    for row in times.take(first).to_pylist():
        where = positions(found, row)
        lines.append(words(row) + (f" [{where}]" if where else ""))
    return tuple(lines)


def _marked(table: pa.Table, **marks: int) -> pa.Table:
    plain = table.select(KEYS)
    for name, value in marks.items():
        plain = plain.append_column(name, pa.repeat(pa.scalar(value, pa.int8()), len(plain)))
    return plain


def check_order(system: str, found: pa.Table) -> Iterator[Verdict]:
    """Finds OUT_OF_ORDER: the offsets of a key do not increase with its numbers, or it is in several partitions.

    Only the first row with a key and number in each partition is considered. Repetitions are DOUBLED, or UNEXPECTED if
    their amounts differ, and are not counted again here.
    """
    positioned = found.filter(pc.and_(pc.equal(found["kind"], ROW), pc.greater_equal(found["offset"], 0)))
    if not len(positioned):
        return
    columns = {name: positioned[name].to_numpy() for name in ("key", "partition", "number", "offset", "batch")}
    by = np.lexsort((columns["offset"], columns["number"], columns["partition"], columns["key"]))
    key, partition, number, offset, batch = (values[by] for values in columns.values())
    same_key = key[1:] == key[:-1]
    same_partition = same_key & (partition[1:] == partition[:-1])
    first = np.r_[True, ~(same_partition & (number[1:] == number[:-1]))]
    first_seen = np.flatnonzero(first)
    together = (key[first_seen][1:] == key[first_seen][:-1]) & (partition[first_seen][1:] == partition[first_seen][:-1])
    back = np.flatnonzero(together & (offset[first_seen][1:] < offset[first_seen][:-1]))
    torn_keys = np.flatnonzero(same_key & ~same_partition)
    examples = [
        f"key {key[a]} in partition {partition[a]}: number {number[b]} (batch {batch[b]}) is at offset {offset[b]}, "
        f"before number {number[a]} (batch {batch[a]}) at offset {offset[a]}"
        for a, b in ((first_seen[at], first_seen[at + 1]) for at in back[:MOST_EXAMPLES])
    ]
    examples += [
        f"key {key[at]} is in partition {partition[at]} and in partition {partition[at + 1]}, there with number "
        f"{number[at + 1]} (batch {batch[at + 1]}) at offset {offset[at + 1]}"
        for at in torn_keys[: MOST_EXAMPLES - len(examples)]
    ]
    yield Verdict(
        anomaly=Anomaly.OUT_OF_ORDER,
        system=system,
        looked_at=len(positioned),
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
    """Finds TORN: a batch does not have the same rows in every system. With one system, nothing is judged.

    A row that is missing, doubled or unexpected in only one system also makes its batch torn.
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
    """Returns a 64-bit hash of each row, mixed as in splitmix64. Sums of hashes wrap around on purpose."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for values in columns:
        mixed += values.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed

"""Compares rows with rows: every one as often as it must be, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce_lab.checkers.tables import KEYS, places, words
from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two multisets: tables of `KEYS` and ``times``.

    Attributes:
        missing: How many times too few.
        doubled: How many times too many, of what must be there.
        unexpected: How many times what must not be there at all.
    """

    missing: pa.Table
    doubled: pa.Table
    unexpected: pa.Table

    @property
    def count(self) -> int:
        """The number of rows that differ."""
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
    """Counts the rows that a table of a `Difference` stands for."""
    return int(pc.sum(times["times"]).as_py() or 0)


def check_rows(system: str, expected: pa.Table, found: pa.Table, unlike: Difference) -> Iterator[Verdict]:
    """Judges MISSING, DOUBLED and UNEXPECTED.

    A row is doubled by each occurrence beyond the first; an unexpected row counts with each.
    A sum with a wrong amount is unexpected, and the right one is missing.
    """
    for anomaly, times, looked_at in (
        (Anomaly.MISSING, unlike.missing, len(expected)),
        (Anomaly.DOUBLED, unlike.doubled, len(found)),
        (Anomaly.UNEXPECTED, unlike.unexpected, len(found)),
    ):
        yield Verdict(
            anomaly=anomaly,
            system=system,
            looked_at=looked_at,
            count=total(times),
            examples=_examples(times, found),
        )


def check_undisturbed(system: str, undisturbed: pa.Table, found: pa.Table, unlike: Difference) -> Iterator[Verdict]:
    """Finds STATE_DIFFERS: the system has other rows than an undisturbed query made."""
    yield Verdict(
        anomaly=Anomaly.STATE_DIFFERS,
        system=system,
        looked_at=len(undisturbed),
        count=unlike.count,
        examples=told(unlike, found),
    )


def told(unlike: Difference, found: pa.Table) -> tuple[str, ...]:
    """Examples of all that differs."""
    lines = [
        f"{name}: {line}"
        for name, times in (("missing", unlike.missing), ("doubled", unlike.doubled), ("unexpected", unlike.unexpected))
        for line in _examples(times, found)
    ]
    return tuple(lines[:MOST_EXAMPLES])


def _examples(times: pa.Table, found: pa.Table) -> tuple[str, ...]:
    """Describes the first rows by kind, key and number, with their places."""
    if not len(times):
        return ()
    first = pc.select_k_unstable(times, k=MOST_EXAMPLES, sort_keys=[(name, "ascending") for name in KEYS])
    lines = []
    for row in times.take(first).to_pylist():
        where = places(found, row)
        lines.append(words(row) + (f" [{where}]" if where else ""))
    return tuple(lines)


def _marked(table: pa.Table, **marks: int) -> pa.Table:
    plain = table.select(KEYS)
    for name, value in marks.items():
        plain = plain.append_column(name, pa.repeat(pa.scalar(value, pa.int8()), len(plain)))
    return plain

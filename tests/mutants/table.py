"""The table's file, which other tests read, too: what a unit test sees need not be proved again."""

from __future__ import annotations

import csv
from collections.abc import Set
from pathlib import Path

COLUMNS = ("source", "mutant", "harness", "test", "seconds", "own", "not_run", "before")

_TABLE = Path(__file__).with_name("table.csv")

Row = dict[str, str]


def read() -> dict[tuple[str, str], Row]:
    """Returns all rows, by source and mutant."""
    if not _TABLE.exists():
        return {}
    with _TABLE.open(newline="") as file:
        return {(row["source"], row["mutant"]): row for row in csv.DictReader(file)}


def write(rows: dict[tuple[str, str], Row]) -> None:
    """Writes all rows."""
    with _TABLE.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows[key] for key in sorted(rows))


def seen_by_unit_tests(source: str) -> Set[str]:
    """Returns the names of a harness's own mutants that unit tests see as well."""
    return {name for (whose, name), row in read().items() if whose == source and row["harness"] == "unit"}

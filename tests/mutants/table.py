"""The table's file, which other tests read, too: what a unit test detects need not be proved again."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

COLUMNS = ("source", "mutant", "harness", "test", "seconds", "own", "not_run")

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


def slow_if_seen(source: str, mutants: Sequence[Any]) -> list[Any]:
    """Returns a harness's own mutants as parameters. Those that unit tests also detect are marked slow."""
    rows = read()
    seen = {mutant.name for mutant in mutants if rows.get((source, mutant.name), {}).get("harness") == "unit"}
    return [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in seen else []) for one in mutants]

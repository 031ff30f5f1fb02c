"""Tables of rows in a form that is quick to compare, and rows in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

ROW, SUM, UNEXPECTED = 0, 1, 2
"""Codes of the kinds in a plain table."""
KEYS = ["kind", "key", "number", "amount", "rows"]
"""The columns that identify a row."""


def plain(table: pa.Table) -> pa.Table:
    """Returns the table without nulls, with codes in place of the names of kinds.

    A row that has a null, or another kind than ``row`` and ``sum``, is unexpected.
    """
    readable = reduce(pc.and_, (pc.is_valid(table[name]) for name in KEYS))
    kind = pc.fill_null(pc.index_in(table["kind"], pa.array(["row", "sum"])), UNEXPECTED)
    columns = {"kind": pc.if_else(readable, kind, UNEXPECTED).cast(pa.int8())}
    for name in table.column_names:
        if name != "kind":
            columns[name] = pc.fill_null(table[name], -1)
    return pa.table(columns)


def places(found: pa.Table, row: Mapping[str, Any], most: int = 4) -> str:
    """Describes the places of a row in a plain table: batch, and partition and offset if it has them."""
    if "batch" not in found.column_names:
        return ""
    standing = found.filter(reduce(pc.and_, (pc.equal(found[name], row[name]) for name in KEYS)))
    standing = standing.sort_by([("batch", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    told = [place(one) for one in standing.slice(0, most).to_pylist()]
    return "; ".join([*told, "…"] if len(standing) > most else told)


def place(row: Mapping[str, Any]) -> str:
    """Describes a place: ``batch 3, partition 0 offset 17``."""
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

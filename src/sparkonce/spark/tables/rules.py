"""The rules of a table for every row that is added, beyond the types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a table for every row that is added, beyond the types.

    Attributes:
        fills: The values of columns that are not given, by name, made of those that are; all others get null.
        conditions: The conditions that a row must meet, by the table's name for each.
    """

    fills: Mapping[str, Column]
    conditions: Mapping[str, Column]


def not_null(column: str) -> tuple[str, Column]:
    """Returns the condition that a column, or a field within one, has a value; its name is quoted."""
    from pyspark.sql import functions

    return f"{column} must not be null", functions.col(column).isNotNull()

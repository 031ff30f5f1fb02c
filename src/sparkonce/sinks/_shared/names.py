"""Ownership of transactions: compares their names field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, claimed_by


class Name(Protocol):
    """A transaction's name on the server as a value, such as `sparkonce.protocol.ownership.TransactionName`."""

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Returns whether one of these runs of this query made it, under exactly this prefix."""


class Claims:
    """The runs whose transactions are asked for. Iterates over their (prefix, query).

    Args:
        owners: The runs. Those without a prefix among their facts wrote no transactions.
    """

    def __init__(self, owners: Sequence[Owner]) -> None:
        self._runs = claimed_by(owners)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def queries(self) -> list[str]:
        """The short forms of their queries' ids."""
        return sorted({query for _, query in self._runs})

    def has(self, name: Name) -> bool:
        """Returns whether one of these runs made the transaction of this name."""
        return any(name.belongs_to(prefix, query, tokens) for (prefix, query), tokens in self._runs.items())

"""The names that a copy's transaction goes by on the server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from sparkonce.protocol.handles import Handle, Scalar, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sink import Facts, Owner, claimed_by

TWO_PHASE = "two_phase"
STAGED = "staged"
OPEN = "open"
"""Stands in the handle of a transaction that is still being written; only `list_lingering` makes such."""

FIELDS = frozenset({"commit", "name", "system", "database", "commits"})
"""What a handle of this sink holds."""

_BACKEND = re.compile(
    r"so\.(?P<prefix>[0-9a-f]{8})\.(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9a-f][0-9a-f]{0,15})-(?P<nonce>[0-9a-f]{8})"
    r"\.(?P<copy>[0-9a-f]{12})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendName:
    """What an open transaction shows as ``application_name``, which ends at 63 bytes: what fits of its name.

    Attributes:
        prefix: The CRC-32 of the prefix.
        query: See `TransactionName`, as for the rest.
        token: The run's.
        copy: The copy's.
    """

    prefix: int
    query: str
    token: Token
    copy: str

    def __str__(self) -> str:
        return f"so.{self.prefix:08x}.{self.query}.{self.token.position:x}-{self.token.nonce}.{self.copy}"

    @classmethod
    def of(cls, name: TransactionName) -> BackendName:
        """That of a transaction."""
        return cls(prefix=_short(name.prefix), query=name.query, token=name.token, copy=name.copy)

    @classmethod
    def parse(cls, text: str) -> BackendName | None:
        """The name as a value, or None if it is not one of sparkonce's."""
        match = _BACKEND.fullmatch(text)
        if match is None:
            return None
        token = Token(int(match["position"], 16), match["nonce"])
        return cls(prefix=int(match["prefix"], 16), query=match["query"], token=token, copy=match["copy"])

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Whether one of these runs of this query made it."""
        return self.prefix == _short(prefix) and self.query == query and self.token in tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a transaction is, as far as the server says.

    Attributes:
        system: ``system_identifier`` of the cluster, empty if it may not be read.
        database: Its name.
        commits: The schema of the markers and staging tables.
    """

    system: str
    database: str
    commits: str

    @classmethod
    def of(cls, fields: Mapping[str, Scalar] | Facts) -> Place:
        """Out of facts, or of a handle's fields."""
        return cls(system=str(fields["system"]), database=str(fields["database"]), commits=str(fields["commits"]))


def fields_of(commit: str, name: str, place: Place) -> dict[str, Scalar]:
    """A transaction as the plain fields of a handle."""
    return {
        "commit": commit,
        "name": name,
        "system": place.system,
        "database": place.database,
        "commits": place.commits,
    }


def handle_of(sink: str, commit: str, name: str, place: Place) -> Handle:
    """A handle that an abort takes."""
    return Handle(sink=sink, slot=0, transaction=transaction_fields(fields_of(commit, name, place)))


def staging_table(name: TransactionName) -> str:
    """What a copy's staging table is called. Its whole name stands in the table of markers."""
    return f"sparkonce_{name.query}_{name.copy}"


class Claimed:
    """Which runs are asked for: compares names field by field.

    Args:
        owners: The runs. Those without a prefix among their facts wrote no transactions.
    """

    def __init__(self, owners: Sequence[Owner]) -> None:
        self._tokens = claimed_by(owners)
        self.places = dict.fromkeys(Place.of(owner.facts) for owner in owners if owner.facts.get("prefix"))

    @property
    def queries(self) -> list[str]:
        """Their queries."""
        return sorted({query for _, query in self._tokens})

    def has(self, name: TransactionName | BackendName | None) -> bool:
        """Whether one of them made it."""
        return name is not None and any(
            name.belongs_to(prefix, query, tokens) for (prefix, query), tokens in self._tokens.items()
        )


def _short(prefix: str) -> int:
    return crc32(prefix.encode())

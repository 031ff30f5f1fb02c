"""The names of a copy's transaction, session and staging table on the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from sparkonce.protocol.handles import Handle, Scalar, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE

OPEN = "open"
"""The kind of a transaction that is still being written; only `list_lingering` makes handles of such."""

FIELDS = frozenset({"commit", "name", "system", "database", "commits"})
"""The fields of this sink's handles."""

_BACKEND = re.compile(
    r"so\.(?P<prefix>[0-9a-f]{8})\.(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9a-f][0-9a-f]{0,15})-(?P<nonce>[0-9a-f]{8})"
    r"\.(?P<copy>[0-9a-f]{12})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendName:
    """The application_name of an open session: the transaction's name, cut to PostgreSQL's 63 bytes.

    Attributes:
        prefix: The CRC-32 of the prefix.
        query: See `TransactionName`, as for the rest.
        token: The run's token.
        copy: The copy's ID.
    """

    prefix: int
    query: str
    token: Token
    copy: str

    def __str__(self) -> str:
        return f"so.{self.prefix:08x}.{self.query}.{self.token.position:x}-{self.token.nonce}.{self.copy}"

    @classmethod
    def of(cls, name: TransactionName) -> BackendName:
        """Returns that of a transaction."""
        return cls(prefix=_short(name.prefix), query=name.query, token=name.token, copy=name.copy)

    @classmethod
    def parse(cls, text: str) -> BackendName | None:
        """Returns the name as a value, or None if it is not one of sparkonce's."""
        match = _BACKEND.fullmatch(text)
        if match is None:
            return None
        token = Token(int(match["position"], 16), match["nonce"])
        return cls(prefix=int(match["prefix"], 16), query=match["query"], token=token, copy=match["copy"])

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Returns True if one of these runs of this query made it."""
        return self.prefix == _short(prefix) and self.query == query and self.token in tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The database that holds a transaction, as far as the server says.

    Attributes:
        system: ``system_identifier`` of the cluster, empty if it may not be read.
        database: Its name.
        commits: The schema of the markers and staging tables.
    """

    system: str
    database: str
    commits: str

    @classmethod
    def of(cls, fields: Mapping[str, Scalar] | Facts) -> Location:
        """Returns that of facts, or of a handle's fields."""
        return cls(system=str(fields["system"]), database=str(fields["database"]), commits=str(fields["commits"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTransaction:
    """A copy's transaction, as a handle names it.

    Attributes:
        kind: ``two_phase`` if it is prepared, ``staged`` if its rows are in a staging table, or `OPEN`.
        name: Its name; of an open one that of its session.
        location: Where it is.
    """

    kind: str
    name: Any
    location: Location

    @classmethod
    def of(cls, fields: Mapping[str, Scalar]) -> PostgresTransaction | None:
        """Returns the transaction of a handle's fields, or None if they are not this sink's."""
        if set(fields) != FIELDS:
            return None
        kind, text = str(fields["commit"]), str(fields["name"])
        if kind not in (TWO_PHASE, STAGED, OPEN):
            return None
        name = BackendName.parse(text) if kind == OPEN else TransactionName.parse(text)
        return None if name is None else cls(kind=kind, name=name, location=Location.of(fields))

    @property
    def backend(self) -> BackendName:
        """The name of the session that writes it."""
        return self.name if isinstance(self.name, BackendName) else BackendName.of(self.name)

    @property
    def prefix_and_query(self) -> tuple[str, str]:
        """The prefix and query of its name."""
        return self.name.prefix, self.name.query

    def fields(self) -> dict[str, Scalar]:
        """Returns the fields of its handle."""
        return {
            "commit": self.kind,
            "name": str(self.name),
            "system": self.location.system,
            "database": self.location.database,
            "commits": self.location.commits,
        }

    def handle(self, sink: str) -> Handle:
        """Returns a handle that an abort takes."""
        return Handle(sink=sink, slot=0, transaction=transaction_fields(self.fields()))


def staging_table(name: TransactionName) -> str:
    """Returns the name of a copy's staging table. Its marker has the whole name of the transaction."""
    return f"sparkonce_{name.query}_{name.copy}"


def _short(prefix: str) -> int:
    return crc32(prefix.encode())

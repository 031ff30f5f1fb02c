"""The names of a task attempt's transaction, session and staging table on the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from zlib import crc32

from sparkonce.protocol.ownership import Token, TransactionName

_BACKEND = re.compile(
    r"so\.(?P<prefix>[0-9a-f]{8})\.(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9a-f][0-9a-f]{0,15})-(?P<nonce>[0-9a-f]{8})"
    r"\.(?P<copy>[0-9a-f]{12})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendName:
    """The application_name of an open session: the transaction's name, shortened to PostgreSQL's 63 bytes."""

    prefix: int
    query: str
    token: Token
    copy: str

    def __str__(self) -> str:
        return f"so.{self.prefix:08x}.{self.query}.{self.token.position:x}-{self.token.nonce}.{self.copy}"

    @classmethod
    def of(cls, name: TransactionName) -> BackendName:
        """Returns the name for a transaction."""
        return cls(prefix=_short(name.prefix), query=name.query, token=name.token, copy=name.copy)

    @classmethod
    def parse(cls, text: str) -> BackendName | None:
        """Parses a name. Returns None if it is not one of sparkonce's."""
        match = _BACKEND.fullmatch(text)
        if match is None:
            return None
        token = Token(int(match["position"], 16), match["nonce"])
        return cls(prefix=int(match["prefix"], 16), query=match["query"], token=token, copy=match["copy"])

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Returns True if one of these runs of this query created it."""
        return self.prefix == _short(prefix) and self.query == query and self.token in tokens


def staging_table(name: TransactionName) -> str:
    """Returns the name of a task attempt's staging table. Its marker has the full transaction name."""
    return f"sparkonce_{name.query}_{name.copy}"


def _short(prefix: str) -> int:
    return crc32(prefix.encode())

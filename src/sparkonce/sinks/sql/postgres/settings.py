"""The settings of a connection, as plain values that can be pickled and compared, and the names on the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from sparkonce.arguments import mapping, missing_package
from sparkonce.errors import ConfigurationError
from sparkonce.needs import files_of
from sparkonce.protocol.ownership import Token, TransactionName

COMMITS_TABLE = "sparkonce_commits"

_IDENTIFIER_LIMIT_BYTES = 63
_PORT = 5432
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_DEFAULTS = {
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "application_name": "sparkonce",
}
_BACKEND = re.compile(
    r"so\.(?P<prefix>[0-9a-f]{8})\.(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9a-f][0-9a-f]{0,15})-(?P<nonce>[0-9a-f]{8})"
    r"\.(?P<copy>[0-9a-f]{12})"
)


@dataclass(frozen=True, slots=True)
class Conninfo:
    """libpq's settings. Only the server's address is ever shown, never a secret."""

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    def __str__(self) -> str:
        known = dict(self.settings)
        parts = [f"{name}={known[name]}" for name in ("host", "hostaddr", "port", "dbname", "user") if name in known]
        return " ".join(parts) or "libpq's defaults"

    def __repr__(self) -> str:
        return f"Conninfo({self})"

    def files(self) -> tuple[tuple[str, str], ...]:
        """Returns the files named in the settings, without ``sslrootcert=system``, which is not a file."""
        return tuple(each for each in files_of(dict(self.settings), _FILES) if each[1] != "system")

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Returns the servers' addresses that the settings name; none for Unix sockets."""
        known = dict(self.settings)
        hosts = (known.get("hostaddr") or known.get("host") or "").split(",")
        ports = (known.get("port") or "").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        pairs = zip(hosts, ports, strict=False)
        return tuple((host, int(port or _PORT)) for host, port in pairs if host and host[0] not in "/@")

    @classmethod
    def of(cls, conninfo: str | Mapping[str, Any]) -> Conninfo:
        """Parses a connection string, a URI or a mapping. Errors omit the settings: one may be a password."""
        try:
            import psycopg
            import psycopg.conninfo
        except ImportError as error:
            raise missing_package("PostgresSink", f"psycopg ({error})", "postgres") from error
        if not isinstance(conninfo, str):
            mapping("conninfo", conninfo, example="'host=… dbname=… user=…', or a mapping of libpq's settings")
        try:
            if isinstance(conninfo, str):
                parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
            else:
                # libpq checks the names of settings only if they are in a connection string.
                parameters = psycopg.conninfo.conninfo_to_dict(psycopg.conninfo.make_conninfo(**conninfo))
        except psycopg.ProgrammingError:
            what = "conninfo is not a connection string that libpq understands, or has a setting that it does not know."
            raise ConfigurationError(what, next_step=_hint(conninfo), setting="conninfo") from None
        encoding = str(parameters.get("client_encoding", "UTF8")).upper().replace("-", "")
        if encoding != "UTF8":
            what = f"client_encoding={parameters['client_encoding']!r}: rows come from Spark as UTF-8."
            step = "Leave client_encoding out; the server converts to its own encoding."
            raise ConfigurationError(what, next_step=step)
        whole = {**_DEFAULTS, **parameters, "client_encoding": "UTF8"}
        return cls(tuple(sorted((name, str(value)) for name, value in whole.items() if value is not None)))


def _hint(conninfo: str | Mapping[str, Any]) -> str:
    """Returns the next step for settings that libpq rejects, without repeating their values."""
    if isinstance(conninfo, str) and conninfo.startswith("jdbc:"):
        return "Leave 'jdbc:' out: libpq takes the same URL, with user and password in it or as user=… password=…."
    if not isinstance(conninfo, str) and "database" in conninfo:
        return "Call the database dbname: that is libpq's name."
    return "Give 'host=… dbname=… user=…', a postgresql:// URI, or a mapping of libpq's settings."


def check_identifier(setting: str, name: str) -> None:
    """Raises `ConfigurationError` for a name that PostgreSQL would truncate or reject."""
    if not isinstance(name, str) or not name or "\0" in name or len(name.encode()) > _IDENTIFIER_LIMIT_BYTES:
        raise ConfigurationError(
            f"{setting}={name!r} is not a valid name in PostgreSQL: 1 to {_IDENTIFIER_LIMIT_BYTES} bytes, none of "
            "them NUL.",
            next_step="Give schema and table separately, each exactly as the catalog has it, without quotes.",
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
        return cls(prefix=crc32(name.prefix.encode()), query=name.query, token=name.token, copy=name.copy)

    @classmethod
    def parse(cls, text: str) -> BackendName | None:
        """Parses a name. Returns None if it is not one of sparkonce's."""
        match = _BACKEND.fullmatch(text)
        if match is None:
            return None
        token = Token(int(match["position"], 16), match["nonce"])
        return cls(prefix=int(match["prefix"], 16), query=match["query"], token=token, copy=match["copy"])

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        return self.prefix == crc32(prefix.encode()) and self.query == query and self.token in tokens


def staging_table(name: TransactionName) -> str:
    """Returns the name of a task attempt's staging table. Its marker has the full transaction name."""
    return f"sparkonce_{name.query}_{name.copy}"
